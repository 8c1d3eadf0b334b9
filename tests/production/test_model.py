"""A whole model, batched: logits of every row against the reference, and a cache that moves as one."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from small_models import MARGIN, SIZES, Rows, bytes_of, models, near, padded, poison

from torch_impl.cache import Cache
from torch_impl.model import Model, ModelConfig, random_weights
from torch_impl.refusals import AdvanceRefused, InvariantBroken, MaskRefused, Refusal
from torch_impl.schedule import V4_FLASH, V4_PRO


@pytest.mark.parametrize("count", [1, 2, 5, 8])
@pytest.mark.parametrize("seed", range(2))
def test_rows_that_step_go_back_join_leave_and_move_have_the_logits_of_their_own_history(count, seed):
    model, oracle = models(seed)
    rows, rng = Rows(model, count, seed), random.Random(100 * count + seed)

    def step(n_new: list[int]) -> None:
        found = rows.step(n_new)
        for sequence, logits in zip(rows.sequences, found, strict=True):
            if len(logits):
                assert near(logits, oracle.logits(sequence)[-len(logits) :])

    step([rng.randint(1, 30) for _ in range(count)])
    for turn in range(8):
        depth = rng.randint(1, 4)
        step([depth] * len(rows.sequences))  # verify: all take depth tokens,
        rows.rollback([rng.randint(0, depth) for _ in rows.sequences])  # each keeps its own
        if turn % 4 == 1:
            newcomer = Rows(model, 1, 1000 + turn)
            newcomer.step([rng.randint(1, 12)])
            rows.join(newcomer)
        if turn % 4 == 2:
            rows.leave(rng.randrange(len(rows.sequences)))
        if turn % 4 == 3:
            rows.select(rng.sample(range(len(rows.sequences)), len(rows.sequences)))
        step([rng.randint(0, 2) for _ in rows.sequences[1:]] + [1])


def test_a_row_that_leaves_goes_on_as_it_would_have_in_the_batch():
    model, oracle = models(3)
    rows = Rows(model, 3, 3)
    rows.step([17, 4, 29])
    own, alone = list(rows.sequences[1]), rows.leave(1)
    poison(rows.cache, 1e9)
    logits = model.forward(torch.tensor([[5, 6]]), alone)
    assert near(logits[0], oracle.logits([*own, 5, 6])[-2:])


@pytest.mark.parametrize("schedule", [("sliding",), ("csa",), ("hca",), ("hca", "csa", "sliding")])
def test_a_batch_is_each_row_alone(schedule):
    model, _ = models(1, schedule=schedule)
    rows = Rows(model, 4, 1)
    found = rows.step([1, 33, 8, 20])
    for own, logits in zip(rows.sequences, found, strict=True):
        alone = model.forward(torch.tensor([own]), model.cache(1, MARGIN))
        assert near(logits, alone[0], 1e-12)


def test_a_prompt_in_chunks_is_the_prompt_at_once():
    model, _ = models(2)
    tokens = torch.randint(11, (2, 40), generator=torch.Generator().manual_seed(1))
    at_once = model.forward(tokens, model.cache(2, MARGIN))
    cache = model.cache(2, MARGIN)
    chunks = [model.forward(chunk, cache) for chunk in tokens.split([7, 1, 20, 12], dim=1)]
    assert near(torch.cat(chunks, dim=1), at_once, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_rows_give_the_same_bytes_with_per_row_state_on_and_off(dtype):
    model, _ = models(4, dtype)
    caches = [model.cache(3, MARGIN, per_row_state=on) for on in (True, False)]
    tokens = torch.randint(11, (3, 30), generator=torch.Generator().manual_seed(1))
    for cut, back in ((slice(0, 21), 0), (slice(21, 25), 3), (slice(22, 23), 0), (slice(23, 30), 1)):
        on, off = (model.forward(tokens[:, cut], cache) for cache in caches)
        assert torch.equal(on.view(torch.uint8), off.view(torch.uint8))
        for cache in caches:
            cache.rollback_rows([back] * 3)
    assert bytes_of(caches[0]) == bytes_of(caches[1])


def test_a_refusal_in_the_last_slot_leaves_every_slot_untouched():
    model, _ = models(5)
    cache = model.cache(2, MARGIN)
    model.forward(torch.ones(2, 40, dtype=torch.int64), cache)
    last = cache.slots()[-1][1]
    last.base = [32, 32]  # as after a trim: this slot alone promises less
    before = bytes_of(cache)
    refusal = cache.rollback_refusal([5, 0])
    assert refusal.kind == "rollback-below-base"
    assert refusal.__notes__ == ["in layers.3.indexer"]
    with pytest.raises(Refusal):
        cache.rollback_rows([5, 0])
    assert bytes_of(cache) == before


@pytest.mark.parametrize("counts", [[MARGIN + 9, 0], [0, 41], [1], [-1, 0]])
def test_a_rollback_that_one_row_cannot_make_is_made_by_none(counts):
    model, _ = models(5)
    cache = model.cache(2, MARGIN)
    model.forward(torch.ones(2, 40, dtype=torch.int64), cache)
    before = bytes_of(cache)
    with pytest.raises(Refusal):
        cache.rollback_rows(counts)
    assert bytes_of(cache) == before


@pytest.mark.parametrize("rows", [[], [2], [0, -1]])
def test_rows_that_are_not_there_cannot_be_chosen(rows):
    model, _ = models(5)
    cache = model.cache(2, MARGIN)
    model.forward(torch.ones(2, 9, dtype=torch.int64), cache)
    before = bytes_of(cache)
    with pytest.raises(Refusal):
        cache.select(rows)
    assert bytes_of(cache) == before


def test_caches_share_no_memory_after_split_and_assemble():
    model, _ = models(5)
    cache = model.cache(2, MARGIN)
    model.forward(torch.ones(2, 40, dtype=torch.int64), cache)
    parts = [cache.split_row(0), cache.split_row(1)]
    joined = Cache.assemble(parts)
    owners = [
        {t.untyped_storage().data_ptr() for _, slot in each.slots() for t in slot.storage().values()}
        for each in (cache, *parts, joined)
    ]
    assert all(not a & b for a, b in itertools.combinations(owners, 2))


def test_a_mask_is_refused_before_the_first_layer_and_hides_tokens_from_all():
    model, _ = models(6)
    cache = model.cache(2, MARGIN)
    tokens = torch.randint(11, (2, 12), generator=torch.Generator().manual_seed(1))
    model.forward(tokens, cache)
    before = bytes_of(cache)
    with pytest.raises(MaskRefused):
        model.forward(tokens[:, :1], cache, mask=torch.ones(1, 7, dtype=torch.bool))
    assert bytes_of(cache) == before
    open_mask, closed = torch.ones(1, 6, dtype=torch.bool), torch.zeros(1, 6, dtype=torch.bool)
    seen = model.forward(tokens[:, :1], cache, mask=open_mask)
    cache.rollback_rows([1, 1])
    assert torch.equal(seen, model.forward(tokens[:, :1], cache))
    cache.rollback_rows([1, 1])
    assert not near(seen, model.forward(tokens[:, :1], cache, mask=closed), 1e-3)


def test_a_mask_that_the_first_layer_could_take_and_the_second_not_is_refused_before_either():
    """A mask over blocks fits one kind of layer only; a model takes masks over raw columns."""
    model, _ = models(6, schedule=("csa", "hca"))
    cache = model.cache(2, MARGIN)
    model.forward(torch.ones(2, 12, dtype=torch.int64), cache)
    before = bytes_of(cache)
    with pytest.raises(MaskRefused) as refused:
        model.forward(torch.ones(2, 1, dtype=torch.int64), cache, mask=torch.ones(1, 6 + 3, dtype=torch.bool))
    assert refused.value.kind == "mask-width"
    assert bytes_of(cache) == before


@pytest.mark.parametrize("n_new", [[3, 2], [0, 0, 0]])
def test_counts_that_do_not_fit_are_refused_by_the_cache_before_the_first_layer(n_new):
    model, _ = models(6)
    cache = model.cache(2, MARGIN)
    with pytest.raises(AdvanceRefused) as refused:
        model.forward(torch.ones(2, 2, dtype=torch.int64), cache, n_new)
    assert refused.value.kind == "advance-counts"
    assert cache.tokens == [0, 0]


def test_padding_may_hold_anything_and_tokens_may_not():
    model, _ = models(6)
    cache = model.cache(2, MARGIN)
    model.forward(padded([[1, 2], [3]], filler=10**9), cache, [2, 1])
    with pytest.raises(AdvanceRefused) as refused:
        model.forward(padded([[1, 2], [11]]), cache, [2, 1])
    assert refused.value.kind == "advance-vocabulary"
    assert cache.tokens == [2, 1]


def test_slots_that_do_not_stand_together_are_an_invariant_broken():
    model, _ = models(6)
    cache = model.cache(2, MARGIN)
    cache.layers[2].compressor.tokens = [0, 1]
    with pytest.raises(InvariantBroken, match=r"layers\.2\.compressor stands at \[0, 1\]"):
        cache.check_invariants()


@pytest.mark.parametrize("published", [V4_FLASH, V4_PRO])
def test_a_cache_of_a_published_schedule_has_its_slots_in_its_order(published):
    config = ModelConfig(**SIZES | {"schedule": published.schedule, "hca_ratio": 128})
    model = Model(config, random_weights(config, seed=0))
    found = [name for name, _ in model.cache(1).slots()]
    assert found == [f"layers.{slot.layer}.{slot.kind}" for slot in config.slots()]
    assert len(found) == len(published.slots())


def test_weights_that_are_not_the_configurations_are_a_value_error_that_names_them():
    config = ModelConfig(**SIZES)
    weights = random_weights(config, seed=0)
    for wrong in (
        {k: w for k, w in weights.items() if k != "norm"},
        weights | {"layers.0.attn.compressor.wkv": torch.zeros(1)},
        weights | {"norm": torch.zeros(3)},
    ):
        with pytest.raises(ValueError, match="should"):
            Model(config, wrong)


def test_groups_that_do_not_divide_the_heads_are_a_value_error():
    with pytest.raises(ValueError, match="should divide the 4 heads"):
        ModelConfig(**SIZES | {"o_groups": 3})
