"""Facts of the per-row state that a schedule does not say well: sizes, costs, dtypes, paths, and broken rules."""

from __future__ import annotations

import ast
import inspect
import random

import numpy as np
import pytest
import torch

import torch_impl.compressor as compressor_module
import torch_impl.storage as storage_module
from harness.subjects.token_compressor import TokenCompressor
from harness.subjects.writes import CountWrites, address
from reference_impl.compressor import CompressorWeights
from torch_impl.compressor import Compressor
from torch_impl.geometry import Geometry
from torch_impl.refusals import InvariantBroken
from torch_impl.rope import Rope
from torch_impl.xs_rolling import XsRolling, reconcile_xs_bases

RETAINS, PLANS = ("hidden", "projected"), ("grouped", "gathered")
CSA, HCA = (4, 2), (128, 1)
HIDDEN, D = 8, 8
POISON = -2

both_payloads = pytest.mark.parametrize("retain", RETAINS)
both_plans = pytest.mark.parametrize("plan", PLANS)


def token_rows(rows: int, ratio: int = 4, span: int = 2, margin: int = 16, **settings) -> XsRolling:
    return XsRolling(TokenCompressor(ratio, span), Geometry(ratio, span, margin), rows, **settings)


def ids(rows: int, n: int, first: int = 1) -> torch.Tensor:
    """[rows, n, 1]: every token of every row is another number."""
    return torch.arange(first, first + rows * n).view(rows, n, 1)


def at(*tokens: int, **settings) -> XsRolling:
    cache = token_rows(len(tokens), **settings)
    cache.advance(ids(len(tokens), max(tokens)), tokens)
    return cache


def real_layer(
    dtype: torch.dtype, ratio: int = 4, span: int = 2, seed: int = 1, scale: float = 1.0
) -> Compressor:
    generator = torch.Generator().manual_seed(seed)
    shapes = (span * D, HIDDEN), (span * D, HIDDEN), (ratio, span * D), (D,)
    wkv, wgate, bias, norm = (
        torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    return Compressor(wkv.to(dtype), (scale * wgate).to(dtype), bias.to(dtype), norm.to(dtype), Rope(4))


def real_rows(dtype: torch.dtype, rows: int, ratio: int = 4, span: int = 2, **settings) -> XsRolling:
    return XsRolling(real_layer(dtype, ratio, span), Geometry(ratio, span), rows, **settings)


def memory(cache: XsRolling) -> tuple[object, ...]:
    """All that is stored, dead memory included, to the byte."""
    stored = [
        (t.dtype, tuple(t.shape), bytes(t.reshape(-1).view(torch.uint8).numpy()))
        for t in cache.storage().values()
    ]
    return (*stored, list(cache.tokens), list(cache.base))


def wide_beside(*tokens: int, run: int = 64, **settings) -> XsRolling:
    """Row 0 was built elsewhere and keeps `run` tokens up to its 80th; the others have consumed `tokens`."""
    donor = at(80, **settings)
    width = donor.storage()["ring"].shape[2]
    tail = ids(1, run, 81 - run).expand(1, run, width)
    adopted = donor.adopt(donor.comp(0)[None], tail, [80], [80 - run])
    return XsRolling.assemble([adopted, *(at(n, **settings) for n in tokens)])


def capacity(cache: XsRolling) -> int:
    return cache.storage()["comp"].shape[1]


def most_columns(live: int) -> float:
    return 1.5 * live + 64


def test_comp_grows_geometrically_and_never_far_beyond_what_is_live():
    cache, seen = token_rows(1, ratio=1, span=1), []
    for live in range(1, 3001):
        cache.advance(ids(1, 1, live))
        assert live <= capacity(cache) <= most_columns(live)
        seen.append(capacity(cache))
    assert len(set(seen)) <= 14, "each growth should be by half of what is live"


@pytest.mark.parametrize("seed", range(5))
def test_comp_is_never_far_wider_than_its_longest_row(seed):
    choose, cache = random.Random(seed), at(5, 900, 40, ratio=2, span=1)
    for _ in range(40):
        n_new = [choose.choice([0, 1, 3, 200]) for _ in range(cache.rows)]
        cache.advance(ids(cache.rows, max(n_new)), n_new)
        if choose.random() < 0.3:
            cache.select(choose.choices(range(cache.rows), k=choose.randint(1, 3)))
        if choose.random() < 0.3:
            cache = XsRolling.assemble(
                [cache.split_row(choose.randrange(cache.rows)), at(3, ratio=2, span=1)]
            )
        assert capacity(cache) <= most_columns(max(cache.live_blocks(row) for row in range(cache.rows)))


def test_columns_of_a_long_row_leave_with_it():
    cache = at(9, 9000)
    cache.select([0])
    assert capacity(cache) <= most_columns(2)


@pytest.mark.parametrize("geometry", [CSA, HCA])
@pytest.mark.parametrize("margin", [8, 16, 17, 24, 32])
def test_a_ring_has_hardly_more_slots_than_its_longest_ordinary_run(geometry, margin):
    ratio, span = geometry
    cache = token_rows(3, ratio, span, margin)
    longest = span * ratio + margin - 1
    slots = cache.storage()["ring"].shape[1]
    assert longest <= slots < longest + 8
    if margin == 16:
        assert slots <= 1.10 * longest


@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 5, 7, 8, 128])
@pytest.mark.parametrize("span", [1, 2])
@pytest.mark.parametrize("margin", [0, 1, 7, 16, 40])
def test_the_longest_ordinary_run_is_reached_and_not_exceeded(ratio, span, margin):
    geometry, base, widths = Geometry(ratio, span, margin), 0, []
    for tokens in range(1, 4 * span * ratio + 2 * margin):
        base = geometry.base_after(tokens, base)
        widths.append(tokens - base)
    assert max(widths) == geometry.width_max


def test_the_width_of_a_tail_is_that_of_its_longest_run_at_every_moment():
    cache = at(9, 22, 40)
    assert (cache.width, cache.tail().shape[1]) == (22, 22)
    cache.rollback(1, 5)
    assert cache.width == cache.tail().shape[1] == 20
    cache.select([0, 1])
    assert cache.width == cache.tail().shape[1] == 17
    cache.rollback_rows([9, 17])
    assert cache.width == cache.tail().shape[1] == 0


def test_equal_prompts_of_nothing_have_an_empty_tail_and_no_block():
    cache = token_rows(2)
    assert cache.tail().shape == (2, 0, 2)
    assert cache.comp(1).shape == (0, 9)
    assert XsRolling.assemble([cache, at(5)]).tokens == [0, 0, 5]


@both_payloads
@both_plans
def test_an_idle_row_that_is_wider_than_ordinary_keeps_its_base_and_every_byte(retain, plan):
    cache = wide_beside(30, 22, retain=retain, plan=plan)
    cache.fill_dead(POISON)
    rows_before = [cache.storage()[name][0].clone() for name in ("ring", "comp")]
    for n in (1, 3, 40):
        cache.advance(ids(3, n), [0, n, n])
    assert cache.base[0] == 16
    assert cache.rollback_refusal(0, 60) is None
    rows_after = [cache.storage()[name][0] for name in ("ring", "comp")]
    assert all(torch.equal(a, b[: len(a)]) for a, b in zip(rows_before, rows_after, strict=True))
    cache.advance(ids(3, 1), [1, 0, 0])
    assert cache.base[0] == 60
    assert cache.rollback_refusal(0, 60).kind == "rollback-below-base"


@pytest.mark.parametrize("always_ragged", [False, True])
@pytest.mark.parametrize("columns", [0, 3])
def test_an_advance_by_nothing_changes_no_byte(columns, always_ragged):
    """Also where all rows are equal and wider than ordinary: a step that took no token would narrow them."""
    wide, ragged = (wide_beside(*tokens, always_ragged=always_ragged) for tokens in ((), (30,)))
    wide.select([0, 0])
    for cache in (wide, ragged, at(9, 9, always_ragged=always_ragged), token_rows(2)):
        cache.fill_dead(POISON)
        before = memory(cache)
        cache.advance(torch.full((2, columns, 1), POISON), [0, 0])
        assert memory(cache) == before


def test_columns_of_xs_beyond_the_new_tokens_are_never_read():
    for always_ragged in (False, True):
        padded, exact = token_rows(2, always_ragged=always_ragged), token_rows(2, always_ragged=always_ragged)
        for n in (3, 2, 9):
            xs = torch.full((2, n + 4, 1), POISON)
            xs[:, :n] = ids(2, n)
            padded.advance(xs, [n, n])
            exact.advance(ids(2, n))
        assert memory(padded) == memory(exact)


@both_payloads
@both_plans
@pytest.mark.parametrize("geometry", [CSA, HCA, (1, 1), (1, 2), (3, 2)])
def test_one_step_of_many_rings_equals_many_small_steps(retain, plan, geometry):
    for rows, always_ragged in ((2, False), (2, True)):
        settings = {"retain": retain, "plan": plan, "always_ragged": always_ragged}
        one, many = token_rows(rows, *geometry, **settings), token_rows(rows, *geometry, **settings)
        xs = ids(rows, 600)
        one.advance(xs)
        for first in range(0, 600, 7):
            many.advance(xs[:, first : first + 7])
        assert (one.tokens, one.base) == (many.tokens, many.base)
        assert torch.equal(one.tail(), many.tail())
        assert all(torch.equal(one.comp(row), many.comp(row)) for row in range(rows))


def test_counts_may_be_any_sequence_of_whole_numbers():
    for n_new in ((2, 1), [2, 1], torch.tensor([2, 1]), np.array([2, 1]), range(2, 0, -1)):
        cache = at(9, 22)
        cache.advance(ids(2, 2), n_new)
        assert cache.tokens == [11, 23]
        assert all(type(n) is int for n in cache.tokens + cache.base)


def test_new_tokens_may_lie_in_memory_in_any_order():
    straight, turned = token_rows(3), token_rows(3)
    straight.advance(ids(3, 9), [9, 4, 7])
    turned.advance(ids(3, 9).transpose(0, 1).contiguous().transpose(0, 1), [9, 4, 7])
    assert memory(straight) == memory(turned)


def batch_of_128(ratio: int, span: int, plan: str, choose: random.Random) -> XsRolling:
    """128 rows at random tokens, some of them before their first block, as if they had come from elsewhere."""
    empty = token_rows(1, ratio, span, plan=plan)
    tokens = [choose.randint(512, 2048) for _ in range(112)] + [choose.randint(0, ratio) for _ in range(16)]
    base = [empty.geometry.base_after(t, 0) for t in tokens]
    width = max(t - b for t, b in zip(tokens, base, strict=True))
    comp = torch.zeros(128, max(tokens) // ratio, empty.compressor.block_width, dtype=torch.int64)
    tail = torch.zeros(128, width, empty.storage()["ring"].shape[2], dtype=torch.int64)
    return empty.adopt(comp, tail, tokens, base)


@both_plans
@pytest.mark.parametrize("geometry", [CSA, HCA])
@pytest.mark.parametrize("n", [1, 4, 8])
def test_128_rows_pool_in_few_calls_and_write_their_completed_blocks_only(geometry, plan, n):
    ratio, span = geometry
    choose = random.Random(n)
    cache = batch_of_128(ratio, span, plan, choose)
    for step in range(8):
        n_new = [n if step % 2 else choose.randint(0, n) for _ in range(128)]
        before = list(cache.tokens)
        take = [(t + k) // ratio - t // ratio for t, k in zip(before, n_new, strict=True)]
        completing = [(t, k) for t, k in zip(before, take, strict=True) if k]
        calls = len({(t % ratio, k) for t, k in completing})
        if span == 2:
            calls += len({(t % ratio, k) for t, k in completing if t < ratio})
        if plan == "gathered":
            calls = min(len(completing), 1)
        counted = cache.compressor.pool_calls
        with CountWrites() as writes:
            cache.advance(ids(128, max(n_new)), n_new)
        assert cache.compressor.pool_calls - counted <= calls
        written = writes.elements[address(cache.storage()["comp"])]
        assert written == cache.compressor.block_width * sum(take)


@both_plans
def test_a_uniform_batch_pools_in_one_call(plan):
    cache = at(*[23] * 128, plan=plan)
    for n in (1, 4, 8):
        counted = cache.compressor.pool_calls
        cache.advance(ids(128, n))
        assert cache.compressor.pool_calls == counted + 1


def test_the_counter_of_written_elements_sees_a_write_that_is_too_wide(monkeypatch):
    def whole_columns(cache, rows, blocks, pooled):
        cache._comp[:, blocks] = pooled

    monkeypatch.setattr(XsRolling, "_scatter", whole_columns)
    cache = at(7, 9)
    with CountWrites() as writes:
        cache.advance(ids(2, 1), [1, 0])
    assert writes.elements[address(cache.storage()["comp"])] > cache.compressor.block_width


@pytest.mark.parametrize("elements", [1, 100, 1000])
@pytest.mark.parametrize("geometry", [CSA, HCA])
def test_cutting_a_pool_call_into_pieces_changes_nothing(geometry, elements, monkeypatch):
    ratio, span = geometry
    layer, generator = real_layer(torch.float64, ratio, span), torch.Generator().manual_seed(2)
    windows = torch.randn(37, span, ratio, 2 * D, generator=generator, dtype=torch.float64)
    block = torch.arange(37) // 3
    whole = layer.pool(windows.clone(), block)
    pieces = []
    monkeypatch.setattr(layer, "_pool", lambda w, b: pieces.append(len(w)) or Compressor._pool(layer, w, b))
    monkeypatch.setattr(compressor_module, "_POOL_CHUNK_ELEMENTS", elements)
    assert torch.allclose(layer.pool(windows, block), whole, rtol=0, atol=1e-13)
    assert len(pieces) > 1
    assert sum(pieces) == 37
    assert layer.pool(windows[:0], block[:0]).shape == (0, D)


@both_payloads
@both_plans
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_operation_runs_in_every_dtype_and_keeps_it(dtype, retain, plan, tmp_path):
    from torch_impl.snapshot import restore, snapshot

    cache = real_rows(dtype, 3, retain=retain, plan=plan)
    kept = dtype if retain == "hidden" else torch.promote_types(dtype, torch.float32)
    generator = torch.Generator().manual_seed(9)

    def step(n_new):
        xs = torch.randn(cache.rows, max(n_new), HIDDEN, generator=generator).to(dtype)
        cache.advance(xs, n_new)
        assert cache.storage()["ring"].dtype == cache.tail().dtype == kept
        assert cache.storage()["comp"].dtype == cache.comp(0).dtype == dtype
        assert all(cache.comp(row).isfinite().all() for row in range(cache.rows))

    step([30, 30, 30])
    step([3, 0, 11])
    cache.rollback(2, 7)
    cache.rollback_rows([1, 0, 2])
    cache.select([2, 0])
    parts = [cache.split_row(row) for row in (1, 0)]
    parts[0].trim_tail_to(parts[0].geometry.need(parts[0].tokens[0]))
    cache = XsRolling.assemble(parts)
    step([9, 2])
    snapshot(cache, tmp_path / "rows")
    cache = restore(real_rows(dtype, 1, retain=retain, plan=plan), tmp_path / "rows")
    step([0, 5])
    cache.select([0])
    cache.reshape(cache.comp(0)[None].repeat(4, 1, 1), cache.tail().repeat(4, 1, 1))
    step([1, 2, 3, 4])


@pytest.mark.parametrize("geometry", [CSA, HCA])
def test_a_bfloat16_layer_pools_in_float32_whatever_the_size_of_its_gates(geometry):
    """Gates of about 300 that differ by less than a bfloat16 can tell at that size decide the blocks."""
    ratio, span = geometry
    layer = real_layer(torch.bfloat16, ratio, span, scale=100.0)
    cache = XsRolling(layer, Geometry(ratio, span), 2)
    hidden = torch.randn(2, 5 * ratio, HIDDEN, generator=torch.Generator().manual_seed(4)).to(torch.bfloat16)
    cache.advance(hidden, [5 * ratio, 4 * ratio])
    payload = layer.project(hidden[0]).double().unflatten(-1, (2, D))  # [T, span, 2, d]
    kv, z = (payload[:, :, k].flatten(1).numpy() for k in range(2))
    bias = layer.bias.double().unflatten(0, (span, ratio)).transpose(0, 1).flatten(1).numpy()
    weights = CompressorWeights(
        np.zeros((span * D, HIDDEN)),
        np.zeros((span * D, HIDDEN)),
        bias,
        layer.norm.double().numpy(),
        ratio=ratio,
        span=span,
        rope_width=4,
    )
    for block, made in enumerate(cache.comp(0).double().numpy()):
        right = weights.block_of_payload(kv, z, block)
        assert (np.abs(made - right) <= 2.0**-8 * np.abs(right) + 1e-4).all()


@both_payloads
def test_a_state_holds_on_to_no_autograd_graph(retain):
    generator = torch.Generator().manual_seed(1)
    weights = [
        torch.nn.Parameter(torch.randn(*shape, generator=generator))
        for shape in ((16, 8), (16, 8), (4, 16), (8,))
    ]
    cache = XsRolling(Compressor(*weights, Rope(4)), Geometry(4, 2), 2, retain=retain)
    cache.advance(torch.randn(2, 9, 8, generator=generator, requires_grad=True), [9, 4])
    cache.advance(torch.randn(2, 9, 8, generator=generator, requires_grad=True))
    assert not any(tensor.requires_grad for tensor in cache.storage().values())


def uniform_steps(cache: XsRolling, width: int):
    """Steps that keep all rows equal; after each, the cache as it is then."""
    generator = torch.Generator().manual_seed(6)

    def fresh(n):
        shape = (cache.rows, n, width)
        if cache.hidden_dtype == torch.int64:
            return torch.randint(1, 1 << 40, shape, generator=generator)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(cache.hidden_dtype)

    ratio, margin = cache.geometry.ratio, cache.geometry.margin
    for n in (ratio - 1, 1, 2 * ratio + 3, 1, 0, margin, 5):
        cache.advance(fresh(n))
        yield cache
    for n in (1, min(ratio // 2, margin), 0):
        cache.rollback_rows([n] * cache.rows)
        yield cache
        cache.advance(fresh(4))
        yield cache
    cache.select([2, 0, 2])
    yield cache
    cache.advance(fresh(ratio + 1))
    yield cache
    cache = XsRolling.assemble([cache.split_row(row) for row in (1, 2, 0)])
    yield cache
    live, width_now = cache.live_blocks(0), cache.width
    cache.reshape(cache.storage()["comp"][:2, :live], cache.tail()[:2, -width_now:])
    yield cache
    cache.advance(fresh(40 * ratio))
    yield cache


@both_payloads
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("geometry", [CSA, (8, 1)])
def test_equal_rows_of_a_real_layer_are_the_same_to_the_byte_with_the_flag_on_and_off(
    retain, dtype, geometry
):
    on, off = (real_rows(dtype, 3, *geometry, retain=retain, per_row_state=flag) for flag in (True, False))
    steps = 0
    for one, other in zip(uniform_steps(on, HIDDEN), uniform_steps(off, HIDDEN), strict=True):
        assert memory(one) == memory(other)
        steps += 1
    assert steps == 18


@both_payloads
@both_plans
@pytest.mark.parametrize("geometry", [CSA, (8, 1), HCA, (1, 1), (1, 2), (5, 2)])
def test_equal_rows_of_tokens_are_the_same_to_the_byte_on_the_forced_ragged_path(retain, plan, geometry):
    scalar, forced, off = (
        token_rows(3, *geometry, retain=retain, plan=plan, always_ragged=ragged, per_row_state=flag)
        for ragged, flag in ((False, True), (True, True), (False, False))
    )
    for one, two, three in zip(
        uniform_steps(scalar, 1), uniform_steps(forced, 1), uniform_steps(off, 1), strict=True
    ):
        assert memory(one) == memory(two) == memory(three)


@both_payloads
@both_plans
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_forced_ragged_path_of_a_real_layer_differs_by_rounding_at_most(retain, plan, dtype):
    """Payloads come from products of other shapes, so this is no comparison of bytes."""
    scalar, forced = (
        real_rows(dtype, 3, retain=retain, plan=plan, always_ragged=ragged) for ragged in (False, True)
    )
    for one, two in zip(uniform_steps(scalar, HIDDEN), uniform_steps(forced, HIDDEN), strict=True):
        assert (one.tokens, one.base) == (two.tokens, two.base)
        tolerance = 1e-12 if dtype == torch.float64 else 1e-3
        for row in range(one.rows):
            assert torch.allclose(one.comp(row), two.comp(row), rtol=0, atol=tolerance)


def test_a_scalar_batch_goes_back_together_and_never_row_by_row():
    cache = at(40, 40, per_row_state=False)
    assert cache.rollback_refusal(0, 0) is None
    assert cache.rollback_refusal(0, 1).kind == "rollback-ragged"
    assert cache.rollback_refusal(0, 21).kind == "rollback-below-base"
    cache.rollback_rows([3, 3])
    assert cache.tokens == [37, 37]
    alone = cache.split_row(1)
    alone.rollback(0, 2)
    assert alone.tokens == [35]


def test_a_scalar_batch_of_unequal_tails_is_assembled_after_reconciling():
    """The state of a longer history, cut short, beside one that got there directly."""
    direct, cut = at(40, per_row_state=False), at(52, per_row_state=False)
    cut.rollback(0, 12)
    assert (direct.base, cut.base) == ([20], [32])
    reconcile_xs_bases([direct, cut])
    assert (direct.base, cut.base) == ([32], [32])
    batch = XsRolling.assemble([direct, cut])
    batch.advance(ids(2, 5, 500))
    assert batch.tokens == [45, 45]


@pytest.mark.parametrize("flags", [(True, True), (True, False), (False, True)])
def test_reconciling_leaves_rows_alone_as_soon_as_one_promises_for_itself(flags):
    caches = [at(n, per_row_state=flag) for n, flag in zip((40, 44), flags, strict=True)]
    before = [memory(cache) for cache in caches]
    reconcile_xs_bases(caches)
    assert [memory(cache) for cache in caches] == before


def test_reconciling_nothing_does_nothing():
    reconcile_xs_bases([])


@both_payloads
@both_plans
@pytest.mark.parametrize("always_ragged", [False, True])
@pytest.mark.parametrize("fails", ["project", "pool"])
def test_a_step_whose_compressor_fails_changes_no_byte(retain, plan, always_ragged, fails, monkeypatch):
    cache = at(39, 39, retain=retain, plan=plan, always_ragged=always_ragged)
    cache.fill_dead(POISON)
    before = memory(cache)

    def fail(*arguments):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(cache.compressor, fails, fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            cache.advance(ids(2, 9))
    assert memory(cache) == before


@both_payloads
def test_what_lies_before_a_run_that_is_adopted_is_never_taken_over(retain):
    donor = at(40, 22, retain=retain)
    tail, comp = donor.tail(), donor.storage()["comp"][:, :10].clone()
    tail[0, :2], comp[1, 5:] = POISON, POISON  # row 0 holds 20 of 22 columns, row 1 has 5 of 10 blocks
    adopted = donor.adopt(comp, tail, [40, 22], [20, 0])
    assert not (adopted.tail() == POISON).any()
    adopted.advance(ids(2, 9, 700))
    assert not any((adopted.comp(row) == POISON).any() for row in range(2))


@both_payloads
def test_no_two_caches_share_memory_however_one_came_from_the_other(retain, tmp_path):
    cache = at(40, 22, 9, retain=retain)
    live = cache.storage()["comp"][:, :10].clone()
    uniform = at(9, 9, retain=retain)
    comp, tail = uniform.storage()["comp"][:, :2], uniform.tail()
    taken = at(9, 9, retain=retain)
    taken.reshape(comp, tail)
    others = [
        cache.split_row(0),
        XsRolling.assemble([cache]),
        XsRolling.assemble([cache, cache]),
        cache.adopt(live, cache.tail(), cache.tokens, cache.base),
    ]
    places = [address(t) for each in (cache, uniform, taken, *others) for t in each.storage().values()]
    places += [address(comp), address(tail), address(live)]
    assert len(set(places)) == len(places) - 1, (
        "comp is a view of uniform's own memory, nothing else is shared"
    )


def test_two_copies_of_one_row_go_on_apart():
    cache = at(40, 22)
    cache.select([1, 1])
    cache.advance(ids(2, 6, 900), [6, 2])
    cache.rollback(1, 1)
    assert cache.tokens == [28, 23]
    assert cache.tail()[0, -6:, 0].tolist() == list(range(900, 906))
    assert cache.tail()[1, -1, 0].item() == 906


@both_payloads
def test_poison_reaches_every_cell_that_no_row_promises_and_no_other(retain):
    cache = wide_beside(30, 22, 3, retain=retain)
    cache.rollback(1, 9)
    live = cache.tail().clone(), [cache.comp(row).clone() for row in range(4)]
    cache.fill_dead(POISON)
    ring, comp = (tensor == POISON for tensor in cache.storage().values())
    for row in range(4):
        promised = cache.tokens[row] - cache.base[row]
        assert ring[row].all(dim=1).sum() == ring[row].any(dim=1).sum() == ring.shape[1] - promised
        assert comp[row, cache.live_blocks(row) :].all()
    assert torch.equal(cache.tail(), live[0])
    assert all(torch.equal(cache.comp(row), live[1][row]) for row in range(4))


def test_the_columns_before_a_shorter_run_are_zero_whatever_lies_in_the_ring():
    cache = at(9, 22, 40)
    cache.fill_dead(POISON)
    tail = cache.tail()
    assert not tail[0, : 22 - 9].any()
    assert not tail[2, : 22 - 20].any()
    assert not (tail == POISON).any()


@both_payloads
@both_plans
@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("always_ragged", [True, False])
def test_settings_go_along_with_every_row(retain, plan, flag, always_ragged):
    given = {"retain": retain, "plan": plan, "per_row_state": flag, "always_ragged": always_ragged}
    cache = at(9, 9, **given)
    others = [
        cache.split_row(0),
        XsRolling.assemble([cache, cache]),
        cache.adopt(cache.storage()["comp"][:, :2], cache.tail(), [9, 9], [0, 0]),
    ]
    for other in others:
        assert {name: getattr(other, name) for name in given} == given
        assert (other.geometry, other.hidden_dtype, other.device) == (
            cache.geometry,
            torch.int64,
            cache.device,
        )


@both_payloads
def test_rows_wider_than_ordinary_stay_so_through_every_change_of_the_batch(retain):
    """A base is carried along; one worked out from the tokens would be 60, and the promise lost."""
    cache = wide_beside(30, retain=retain)
    cache.select([0, 1, 0])
    wide = [cache.split_row(2), cache.split_row(0)]
    cache = XsRolling.assemble(wide)
    live = cache.live_blocks(0)
    for rows in ([1, 0, 1], [2]):
        cache.reshape(cache.storage()["comp"][rows, :live].clone(), cache.tail()[rows].clone())
        assert cache.base == [16] * len(rows)
    assert cache.tail()[0, :, 0].tolist() == list(range(17, 81))
    cache.rollback(0, 60)
    assert cache.tail()[0, :, 0].tolist() == list(range(17, 21))


BROKEN = {
    "tokens has 1 rows": lambda c: c.tokens.pop(),
    "base has|rows, base 3": lambda c: c.base.append(0),
    "base -4 should lie in": lambda c: c.base.__setitem__(1, -4),
    "base 44 should lie in": lambda c: c.base.__setitem__(1, 44),
    "promises tokens 0..39, but the ring has 24 slots": lambda c: c.base.__setitem__(1, 0),
    "base 40 lies above 36": lambda c: c.base.__setitem__(1, 40),
    "base 22 should be a multiple of 4": lambda c: c.base.__setitem__(1, 22),
    "blocks in": lambda c: (c.tokens.__setitem__(1, 4000), c.base.__setitem__(1, 3996)),
}


@pytest.mark.parametrize("told", BROKEN)
def test_a_count_that_contradicts_the_state_is_found_and_told(told):
    cache = at(9, 40)
    cache.check_invariants()
    BROKEN[told](cache)
    with pytest.raises(InvariantBroken, match=told):
        cache.check_invariants()


def test_every_rule_has_a_test_that_breaks_it():
    tree = ast.parse(inspect.getsource(storage_module))
    rules = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "InvariantBroken"
    ]
    told = set()
    for name, spoil in BROKEN.items():
        cache = at(9, 40)
        spoil(cache)
        with pytest.raises(InvariantBroken) as broken:
            cache.check_invariants()
        told.add(broken.traceback[-1].lineno)
        assert name
    assert len(told) == len(rules)


@pytest.mark.parametrize(
    "operation",
    [
        lambda c: c.advance(ids(2, 1), [1, 0]),
        lambda c: c.rollback(0, 0),
        lambda c: c.rollback_rows([0, 0]),
        lambda c: c.select([1]),
        lambda c: c.split_row(1),
        lambda c: XsRolling.assemble([c, at(9)]),
    ],
)
def test_every_operation_ends_in_a_check_of_the_rules(operation):
    cache = at(9, 40)
    cache.base[1] = 22
    with pytest.raises(InvariantBroken, match="multiple of 4"):
        operation(cache)


def test_a_broken_rule_is_no_assertion_and_no_refusal():
    assert InvariantBroken.__mro__[1] is Exception
