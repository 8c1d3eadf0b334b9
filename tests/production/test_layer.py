"""One layer of a batch: what every query is given, in token ids, and what it computes, beside the reference."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.subjects.token_compressor import TokenCompressor
from reference_impl import model as reference
from torch_impl.attention import Attention, rms_norm
from torch_impl.layer import Branch, LayerSlots, step
from torch_impl.refusals import MaskRefused, Refusal
from torch_impl.schedule import AttentionConfig, Kind

KINDS: tuple[Kind, ...] = ("sliding", "csa", "hca")
WINDOW, MARGIN, TOPK, POISON = 6, 5, 3, -9


class TokenIndexer:
    """Prefers blocks in an order that depends on query and block alone, so that picks are known in closed form."""

    def __init__(self, ratio: int, topk: int) -> None:
        self.compressor = TokenCompressor(ratio, 2)
        self.topk = topk

    def scores(self, hidden: Tensor, residual: Tensor, position: Tensor, keys: Tensor) -> Tensor:
        return wish(position[..., None], keys[:, None, :, -1])  # a block's last channel says which one it is


def wish(position, block):
    return (position * 7 + block * 5) % 11 * 1.0


class TokenMath:
    """Carries event ids through a layer and notes what every query was given."""

    key_width, key_dtype = 1, torch.int64

    def __init__(self, kind: Kind, ratio: int = 4, topk: int = TOPK) -> None:
        self.compressor = None if kind == "sliding" else TokenCompressor(ratio, 2 if kind == "csa" else 1)
        self.indexer = TokenIndexer(ratio, topk) if kind == "csa" else None
        self.given: tuple[Branch, Branch | None] | None = None

    def queries(self, hidden: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        return hidden, hidden

    def keys(self, hidden: Tensor, position: Tensor) -> Tensor:
        return hidden

    def attend(self, queries: Tensor, raw: Branch, blocks: Branch | None) -> Tensor:
        self.given = raw, blocks
        return queries

    def output(self, read: Tensor, position: Tensor) -> Tensor:
        return read


@dataclass
class Row:
    """A sequence as its own list of event ids."""

    ids: list[int]


def block_of(ids: list[int], b: int, ratio: int, span: int) -> list[int]:
    tokens = range((b + 1 - span) * ratio, (b + 1) * ratio)
    return [ids[t] if t >= 0 else -1 for t in tokens] + [b]


def expected(row: Row, t: int, kind: Kind, ratio: int) -> tuple[list[int], list[list[int]]]:
    """The ids of the raw tokens and the blocks that the query at token t attends to."""
    raw = row.ids[max(t - WINDOW + 1, 0) : t + 1]
    if kind == "sliding":
        return raw, []
    blocks = list(range((t + 1) // ratio))
    if kind == "csa":
        blocks = sorted(sorted(blocks, key=lambda b: (-wish(t, b), b))[:TOPK])
    return raw, [block_of(row.ids, b, ratio, 2 if kind == "csa" else 1) for b in blocks]


def given(branch: Branch | None, row: int, t: int) -> list[list[int]]:
    return [] if branch is None else branch.keys[row, branch.keep[row, t]].tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_every_query_of_every_row_is_given_its_own_tokens_and_blocks(kind, seed):
    rng = random.Random(f"{kind} {seed}")
    ratio = rng.choice([2, 4, 8])
    math = TokenMath(kind, ratio)
    rows = [Row([]) for _ in range(rng.randint(1, 5))]
    slots = LayerSlots.open(math, len(rows), WINDOW, MARGIN)
    next_id = 1
    for _ in range(40):
        n_new = [rng.choice([0, 1, 1, 4, rng.randint(0, 20)]) for _ in rows]
        hidden = torch.full((len(rows), max(n_new), 1), POISON)
        for row, n in enumerate(n_new):
            before = len(rows[row].ids)
            rows[row].ids += range(next_id, next_id + n)
            hidden[row, :n, 0] = torch.tensor(rows[row].ids[before:], dtype=torch.int64)
            next_id += n
        for _, slot in slots.named():
            slot.fill_dead(POISON)
        step(math, slots, hidden, n_new)
        raw, blocks = math.given
        for row, n in enumerate(n_new):
            start = len(rows[row].ids) - n
            for k in range(hidden.shape[1]):
                if k >= n:
                    assert not raw.keep[row, k].any()
                    assert not raw.keys[row, k - hidden.shape[1]].any()  # and the column of padding is zero
                    assert blocks is None or not blocks.keep[row, k].any()
                    continue
                tokens, pooled = expected(rows[row], start + k, kind, ratio)
                assert [key for (key,) in given(raw, row, k)] == tokens
                assert sorted(given(blocks, row, k), key=lambda b: b[-1]) == pooled
        for branch in (raw, blocks):
            assert branch is None or not (branch.keys == POISON).any()
        back = [rng.choice([0, 0, rng.randint(0, min(MARGIN, n))]) for n in n_new]
        for _, slot in slots.named():
            slot.rollback_rows(back)
        for row, n in zip(rows, back, strict=True):
            del row.ids[len(row.ids) - n :]


def test_a_callers_mask_hides_a_block_before_the_choice():
    """A hidden block takes no pick away from another."""
    math = TokenMath("csa", ratio=2)
    slots = LayerSlots.open(math, 1, WINDOW, MARGIN)
    step(math, slots, torch.arange(1, 12).view(1, 11, 1))
    mask = torch.ones(1, WINDOW - 1 + 1 + 6, dtype=torch.bool)
    mask[0, WINDOW:] = torch.tensor([True, False, True, False, True, True])
    step(math, slots, torch.tensor([[[12]]]), mask=mask)
    shown = {key[-1] for key in given(math.given[1], 0, 0)}
    assert shown == set(sorted([0, 2, 4, 5], key=lambda b: (-wish(11, b), b))[:TOPK])


def test_a_mask_that_does_not_fit_is_refused_before_any_slot_is_touched():
    math = TokenMath("csa", ratio=2)
    slots = LayerSlots.open(math, 2, WINDOW, MARGIN)
    step(math, slots, torch.arange(1, 21).view(2, 10, 1))
    for mask in (torch.ones(1, 5), torch.ones(1, 4, dtype=torch.bool), torch.ones(1, 1, 6, dtype=torch.bool)):
        with pytest.raises(MaskRefused):
            step(math, slots, torch.tensor([[[12]], [[13]]]), mask=mask)
    assert {tuple(slot.tokens) for _, slot in slots.named()} == {(10, 10)}


def test_a_sliding_layer_has_no_blocks_that_a_mask_could_speak_of():
    math = TokenMath("sliding")
    slots = LayerSlots.open(math, 1, WINDOW, MARGIN)
    step(math, slots, torch.arange(1, 12).view(1, 11, 1))
    with pytest.raises(MaskRefused) as refused:
        step(math, slots, torch.tensor([[[12]]]), mask=torch.ones(1, WINDOW + 1, dtype=torch.bool))
    assert refused.value.kind == "mask-width"


@pytest.mark.parametrize("per_row_state", [True, False])
def test_all_slots_of_a_layer_are_opened_alike(per_row_state):
    slots = LayerSlots.open(TokenMath("csa", ratio=2), 2, WINDOW, 3, per_row_state)
    kinds, held = zip(*slots.named(), strict=True)
    assert kinds == ("kv", "compressor", "indexer")
    assert {slot.per_row_state for slot in held} == {per_row_state}
    assert (slots.kv.margin, slots.compressor.geometry.margin, slots.indexer.geometry.margin) == (3, 3, 3)
    assert {slot.rows for slot in held} == {2}


CONFIG = AttentionConfig(
    schedule=KINDS, hidden_width=24, heads=4, d=16, rope_width=8, window=WINDOW, index_heads=3, index_d=8,
    topk=TOPK, csa_ratio=4, hca_ratio=8,
)  # fmt: skip
FULL = reference.ModelConfig(
    schedule=KINDS, vocab=7, hidden_width=24, intermediate=5, heads=4, d=16, rope_width=8, window=WINDOW, q_lora=12,
    o_groups=2, o_lora=6, index_heads=3, index_d=8, topk=TOPK, csa_ratio=4, hca_ratio=8,
)  # fmt: skip


def layer_weights(kind: Kind, seed: int = 0) -> dict[str, np.ndarray]:
    weights = reference.random_weights(np.random.default_rng(seed), replace(FULL, schedule=(kind,)))
    return {k.removeprefix("layers.0.attn."): w for k, w in weights.items() if k.startswith("layers.0.attn.")}


def layer(
    kind: Kind, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Attention, reference.AttentionWeights]:
    """One layer twice: production's and the reference's, from the same weights."""
    own = layer_weights(kind, seed)
    tensors = {name: torch.from_numpy(w).to(dtype) for name, w in own.items()}
    production = Attention(CONFIG, kind, tensors, groups=FULL.o_groups, eps=FULL.eps)
    return production, reference.attention_layer(replace(FULL, schedule=(kind,)), kind, own)


def near(ours: Tensor, theirs, within: float = 1e-9) -> bool:
    theirs = torch.as_tensor(theirs, dtype=torch.float64)
    return bool((ours.double() - theirs).abs().max() <= within * theirs.abs().max())


class Play:
    """Rows of one layer that step, go back and are compared with the whole history computed anew."""

    def __init__(self, kind: Kind, rows: int, seed: int) -> None:
        self.math, self.oracle = layer(kind, seed)
        self.rng = np.random.default_rng(seed + 1)
        self.slots = LayerSlots.open(self.math, rows, WINDOW, MARGIN)
        self.history = [np.zeros((0, CONFIG.hidden_width)) for _ in range(rows)]

    def step(self, n_new: list[int]) -> None:
        hidden = torch.full((len(n_new), max(n_new), CONFIG.hidden_width), torch.nan, dtype=torch.float64)
        for row, n in enumerate(n_new):
            new = self.rng.standard_normal((n, CONFIG.hidden_width))
            self.history[row] = np.concatenate([self.history[row], new])
            hidden[row, :n] = torch.from_numpy(new)
        for _, slot in self.slots.named():
            slot.fill_dead(torch.nan)
        found = step(self.math, self.slots, hidden, n_new)
        for row, n in enumerate(n_new):
            if n:
                assert near(found[row, :n], self.oracle(self.history[row])[-n:])

    def rollback(self, counts: list[int]) -> None:
        for _, slot in self.slots.named():
            slot.rollback_rows(counts)
        self.history = [h[: len(h) - n] for h, n in zip(self.history, counts, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 3, 8])
def test_a_ragged_batch_computes_what_the_reference_computes_of_each_rows_whole_history(kind, rows):
    play, rng = Play(kind, rows, seed=rows), random.Random(rows)
    play.step([rng.randint(0, 40) for _ in range(rows - 1)] + [33])
    for _ in range(6):
        n_new = [rng.randint(1, 5), *(rng.randint(0, 5) for _ in range(rows - 1))]
        play.step(n_new)
        play.rollback([rng.randint(0, n) for n in n_new])


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_in_a_batch_is_what_it_is_alone(kind):
    math, _ = layer(kind)
    generator = torch.Generator().manual_seed(2)
    hidden = [
        torch.randn(n, CONFIG.hidden_width, generator=generator, dtype=torch.float64) for n in (3, 50, 17)
    ]
    together = LayerSlots.open(math, 3, WINDOW, MARGIN)
    padded = torch.nn.utils.rnn.pad_sequence(hidden, batch_first=True)
    batch = step(math, together, padded, [len(h) for h in hidden])
    for row, own in enumerate(hidden):
        alone = step(math, LayerSlots.open(math, 1, WINDOW, MARGIN), own[None])
        assert near(batch[row, : len(own)], alone[0], 1e-13)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_rows_give_the_same_bytes_with_per_row_state_on_and_off(kind, dtype):
    math, _ = layer(kind, dtype=dtype)
    outputs = []
    for on in (True, False):
        generator = torch.Generator().manual_seed(4)
        slots, found = LayerSlots.open(math, 3, WINDOW, MARGIN, per_row_state=on), []
        for columns in (21, 1, 4, 1):
            hidden = torch.randn(3, columns, CONFIG.hidden_width, generator=generator).to(dtype)
            found.append(step(math, slots, hidden))
            if columns == 4:
                for _, slot in slots.named():
                    slot.rollback_rows([2, 2, 2])
        outputs.append(torch.cat(found, dim=1))
    assert torch.equal(*(out.view(torch.uint8) for out in outputs))


def test_a_query_that_sees_nothing_reads_exactly_zero():
    math, _ = layer("csa")
    raw = Branch(torch.randn(1, 3, 16).double(), torch.zeros(1, 1, 3, dtype=torch.bool))
    assert not math.attend(torch.randn(1, 1, 4, 16).double(), raw, None).any()


def test_a_sink_takes_mass_and_gives_nothing_back():
    math, _ = layer("sliding")
    math.sink = torch.full((4,), 40.0, dtype=torch.float64)
    key = torch.full((1, 1, 16), 0.5, dtype=torch.float64)
    read = math.attend(
        torch.zeros(1, 1, 4, 16).double(), Branch(key, torch.ones(1, 1, 1, dtype=torch.bool)), None
    )
    assert near(read, np.full((1, 1, 4, 16), 0.5 * np.exp(-40) / (1 + np.exp(-40))))


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_no_columns_changes_nothing(kind):
    math, _ = layer(kind)
    slots = LayerSlots.open(math, 2, WINDOW, MARGIN)
    step(math, slots, torch.ones(2, 50, CONFIG.hidden_width, dtype=torch.float64))
    found = step(math, slots, torch.ones(2, 0, CONFIG.hidden_width, dtype=torch.float64))
    assert found.shape == (2, 0, CONFIG.hidden_width)
    assert {tuple(slot.tokens) for _, slot in slots.named()} == {(50, 50)}


def test_hidden_states_of_another_batch_are_refused_before_anything_is_computed():
    math = TokenMath("hca")
    slots = LayerSlots.open(math, 2, WINDOW, MARGIN)
    for shape in ((3, 1, 1), (2, 1)):
        with pytest.raises(Refusal) as refused:
            step(math, slots, torch.ones(shape, dtype=torch.int64))
        assert refused.value.kind == "advance-shape"


def test_scores_are_those_of_the_reference_to_their_scale():
    math, oracle = layer("csa", seed=5)
    history = np.random.default_rng(6).standard_normal((30, CONFIG.hidden_width))
    hidden, position = torch.from_numpy(history)[None], torch.arange(30)[None]
    _, residual = math.queries(hidden, position)
    keys = torch.from_numpy(oracle.indexer.compressor.blocks(history))[None]
    scores = math.indexer.scores(hidden, residual, position, keys)
    assert near(scores[0], oracle.indexer.scores(history, oracle.residual(history)))


def test_norms_of_bfloat16_are_taken_in_float32_and_rounded_once():
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    gamma = torch.randn(64, generator=torch.Generator().manual_seed(2)).bfloat16()
    wide = x.float()
    right = gamma.float() * wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    off = (rms_norm(x, gamma, 1e-6).float() - right).abs()
    assert (off <= right.abs() * 2**-8).all()  # half a unit in the last place


def test_neither_slots_nor_outputs_hold_a_graph():
    weights = {name: torch.from_numpy(w).requires_grad_() for name, w in layer_weights("csa").items()}
    math = Attention(CONFIG, "csa", weights, groups=FULL.o_groups)
    slots = LayerSlots.open(math, 1, WINDOW, MARGIN)
    found = step(math, slots, torch.ones(1, 20, CONFIG.hidden_width, dtype=torch.float64))
    assert not found.requires_grad
    assert not any(t.requires_grad for _, slot in slots.named() for t in slot.storage().values())


def test_a_prompt_of_many_queries_reads_what_its_queries_read_a_few_at_a_time():
    math, oracle = layer("csa")
    hidden = torch.randn(2, 60, CONFIG.hidden_width, generator=torch.Generator().manual_seed(4)).double()
    whole, pieces = (LayerSlots.open(math, 2, WINDOW, MARGIN) for _ in range(2))
    once = step(math, whole, hidden)  # 60 queries: their picks are a mask over all columns
    few = [step(math, pieces, piece) for piece in hidden.split(4, dim=1)]  # four: their picks are gathered
    assert TOPK < 60 // 4
    assert near(once, torch.cat(few, dim=1))
    assert all(near(row, oracle(history.numpy())) for row, history in zip(once, hidden, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_eps_of_a_model_reaches_every_norm_of_its_layers(kind: Kind):
    own, wide = layer_weights(kind), replace(FULL, schedule=(kind,), eps=0.3)
    math = Attention(CONFIG, kind, {k: torch.from_numpy(w) for k, w in own.items()}, wide.o_groups, eps=0.3)
    hidden = torch.randn(1, 23, CONFIG.hidden_width, generator=torch.Generator().manual_seed(8)).double()
    got = step(math, LayerSlots.open(math, 1, WINDOW, MARGIN), hidden)[0]
    assert near(got, reference.attention_layer(wide, kind, own)(hidden[0].numpy()))
    assert not near(got, reference.attention_layer(replace(wide, eps=1e-6), kind, own)(hidden[0].numpy()))
