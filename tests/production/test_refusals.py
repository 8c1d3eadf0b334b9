"""Every refusal of production: provoked, put into words, and without a trace in the state.

The table below has one entry per (module, kind); the kinds are read from the source, so a new refusal that
nobody provokes here is red.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from small_models import MARGIN, models

import torch_impl
from harness.subjects.token_compressor import TokenCompressor
from torch_impl import masks, refusals
from torch_impl import snapshot as snapshots
from torch_impl.cache import Cache
from torch_impl.compressor import Compressor
from torch_impl.geometry import Geometry
from torch_impl.kv_cache import KVSlot, front_align_batch, front_pad_kv_cache
from torch_impl.kv_ring import KVRing
from torch_impl.layer import LayerSlots, step
from torch_impl.masks import Positions
from torch_impl.model import Model
from torch_impl.mtp import PerSequence, verify
from torch_impl.refusals import Refusal
from torch_impl.rope import Rope
from torch_impl.xs_rolling import XsRolling, reconcile_xs_bases

SOURCE = Path(torch_impl.__file__).parent


@dataclass(frozen=True)
class Provocation:
    """What to do to which caches; the words are parts of the sentence: what is, what should be, what to do."""

    act: Callable[[], object]
    untouched: list[XsRolling | KVSlot | KVRing]
    words: tuple[str, str, str]


TABLE: dict[tuple[str, str], Callable[[Path], Provocation]] = {}


def provokes(module: str, kind: str) -> Callable:
    def enter(make: Callable[[Path], Provocation]) -> Callable[[Path], Provocation]:
        assert (module, kind) not in TABLE
        TABLE[module, kind] = make
        return make

    return enter


def rows_at(*tokens: int, ratio: int = 4, span: int = 2, margin: int = 16, **settings) -> XsRolling:
    """A batch whose rows have consumed `tokens`, with poison wherever nothing is promised."""
    cache = XsRolling(TokenCompressor(ratio, span), Geometry(ratio, span, margin), len(tokens), **settings)
    if any(tokens):
        xs = torch.arange(len(tokens) * max(tokens)).view(len(tokens), max(tokens), 1)
        cache.advance(xs, tokens)
    cache.fill_dead(-2)
    return cache


def rolled_back(advanced: int, back: int) -> XsRolling:
    """A row that promises less than another with as many tokens."""
    cache = rows_at(advanced)
    cache.rollback(0, back)
    return cache


def real_rows(dtype: torch.dtype = torch.float32, **settings) -> XsRolling:
    generator = torch.Generator().manual_seed(3)
    wkv, wgate, bias, norm = (
        torch.randn(*shape, generator=generator) for shape in ((16, 8), (16, 8), (4, 16), (8,))
    )
    rope, invariant = settings.pop("rope", Rope(4)), settings.pop("row_invariant", False)
    compressor = Compressor(wkv.to(dtype), wgate.to(dtype), bias, norm, rope, row_invariant=invariant)
    cache = XsRolling(compressor, Geometry(4, 2), 2, **settings)
    cache.advance(torch.randn(2, 30, 8, generator=generator).to(dtype), [30, 17])
    return cache


def kv_slot(tokens: int, window: int = 5, margin: int = 2) -> KVSlot:
    slot = KVSlot(window, margin, 1, torch.int64)
    slot.append(torch.arange(tokens).view(-1, 1))
    return slot


def kv_ring(*tokens: int, margin: int = 2, **settings) -> KVRing:
    ring = KVRing(5, margin, len(tokens), 1, dtype=torch.int64, **settings)
    ring.advance(torch.arange(len(tokens) * max(tokens)).view(len(tokens), max(tokens), 1), tokens)
    ring.fill_dead(-2)
    return ring


def masked(mask: torch.Tensor) -> Callable[[], torch.Tensor]:
    """A mask for two rows, three queries and seven columns, under the caller's."""
    return lambda: masks.compose(torch.ones(2, 3, 7, dtype=torch.bool), mask)


def new_tokens(rows: int, n: int) -> torch.Tensor:
    return torch.zeros(rows, n, 1, dtype=torch.int64)


@provokes("xs_rolling", "advance-shape")
def _(folder):
    cache = rows_at(9, 22)
    return Provocation(
        lambda: cache.advance(new_tokens(3, 2)),
        [cache],
        ("xs is [3, 2, 1]", "[2, T, 1]", "pad to the longest"),
    )


@provokes("xs_rolling", "advance-dtype")
def _(folder):
    cache = rows_at(9, 22)
    return Provocation(
        lambda: cache.advance(new_tokens(2, 1).float()),
        [cache],
        ("xs is torch.float32 on cpu", "takes torch.int64 on cpu", "convert the new tokens"),
    )


@provokes("xs_rolling", "advance-counts")
def _(folder):
    cache = rows_at(9, 22)
    return Provocation(
        lambda: cache.advance(new_tokens(2, 2), [1, 3]),
        [cache],
        ("n_new is [1, 3]", "2 counts in 0..2", "count each row's own new tokens"),
    )


@provokes("xs_rolling", "advance-ragged")
def _(folder):
    cache = rows_at(9, 9, per_row_state=False)
    return Provocation(
        lambda: cache.advance(new_tokens(2, 2), [1, 2]),
        [cache],
        ("tokens [9, 9], base [0, 0] and would take [1, 2]", "all should be equal", "turn it on"),
    )


@provokes("kv_cache", "advance-shape")
def _(folder):
    slot = kv_slot(9)
    return Provocation(
        lambda: slot.append(torch.zeros(2, 3, dtype=torch.int64)),
        [slot],
        ("kv is [2, 3]", "should be [T, 1]", "pass the new tokens of one sequence"),
    )


@provokes("kv_cache", "advance-dtype")
def _(folder):
    slot = kv_slot(9)
    return Provocation(
        lambda: slot.append(torch.zeros(2, 1)),
        [slot],
        ("kv is torch.float32", "holds torch.int64", "convert the new tokens"),
    )


@provokes("xs_rolling", "rollback-below-zero")
def _(folder):
    cache = rows_at(9, 22)
    return Provocation(
        lambda: cache.rollback(0, 10), [cache], ("holds 9 tokens", "should drop 10", "drop 0..9")
    )


@provokes("xs_rolling", "rollback-below-base")
def _(folder):
    cache = rows_at(9, 60)
    return Provocation(
        lambda: cache.rollback(1, 21),
        [cache],
        ("row 1 at 60 tokens", "should go back to 39", "go back less, or prefill the row again"),
    )


@provokes("xs_rolling", "rollback-ragged")
def _(folder):
    cache = rows_at(9, 9, per_row_state=False)
    return Provocation(
        lambda: cache.rollback_rows([1, 2]),
        [cache],
        ("row 0 of 2 should drop 1 tokens alone", "keep equal tokens", "use rollback_rows with equal counts"),
    )


@provokes("xs_rolling", "rollback-counts")
def _(folder):
    cache = rows_at(9, 22)
    return Provocation(
        lambda: cache.rollback_rows([1]),
        [cache],
        ("1 entries", "one per row, 2", "use 0 for a row that stays"),
    )


@provokes("kv_cache", "rollback-below-zero")
def _(folder):
    slot = kv_slot(3)
    return Provocation(lambda: slot.rollback(4), [slot], ("holds 3 tokens", "should drop 4", "drop 0..3"))


@provokes("kv_cache", "rollback-below-window")
def _(folder):
    slot = kv_slot(30)
    return Provocation(
        lambda: slot.rollback(3),
        [slot],
        ("dropping 3 of 30 tokens would leave 3", "sees 4, so as many should stay", "drop 2 at most"),
    )


@provokes("xs_rolling", "select-empty")
def _(folder):
    cache = rows_at(9, 22)
    return Provocation(
        lambda: cache.select([]), [cache], ("no row was chosen", "keep at least one", "drop the whole cache")
    )


@provokes("xs_rolling", "select-out-of-range")
def _(folder):
    cache = rows_at(9, 22)
    return Provocation(
        lambda: cache.select([1, 2]),
        [cache],
        ("rows [1, 2]", "should lie in 0..1", "choose rows of this batch"),
    )


@provokes("xs_rolling", "assemble-empty")
def _(folder):
    return Provocation(
        lambda: XsRolling.assemble([]),
        [],
        ("no cache was given", "should be at least one", "pass the caches of all rows"),
    )


@provokes("xs_rolling", "assemble-kind")
def _(folder):
    parts = [rows_at(9), rows_at(22, margin=8)]
    return Provocation(
        lambda: XsRolling.assemble(parts),
        parts,
        ("margin=8", "should equal cache 0", "build all from one layer"),
    )


@provokes("xs_rolling", "assemble-ragged")
def _(folder):
    parts = [rows_at(9, per_row_state=False), rows_at(22, per_row_state=False)]
    return Provocation(
        lambda: XsRolling.assemble(parts),
        parts,
        ("tokens [9, 22] with tails [9, 22] wide", "both should be equal", "reconcile_xs_bases first"),
    )


@provokes("xs_rolling", "reshape-ragged")
def _(folder):
    cache = XsRolling.assemble([rolled_back(54, 14), rows_at(40)])
    comp, tail = cache.storage()["comp"][:1, :10], cache.tail()[:1]
    return Provocation(
        lambda: cache.reshape(comp, tail),
        [cache],
        ("tokens [40, 40], base [32, 20]", "should be equal", "choose the rows with select"),
    )


@provokes("xs_rolling", "reshape-shape")
def _(folder):
    cache = rows_at(9, 9)
    comp, tail = cache.storage()["comp"][:1, :2], cache.tail()
    return Provocation(
        lambda: cache.reshape(comp, tail),
        [cache],
        ("comp is [1, 2, 9], tail [2, 9, 2]", "[B, 2, 9] and [B, 9, 2]", "build both from the same rows"),
    )


@provokes("xs_rolling", "reshape-dtype")
def _(folder):
    cache = rows_at(9, 9)
    comp, tail = cache.storage()["comp"][:, :2].float(), cache.tail()
    return Provocation(
        lambda: cache.reshape(comp, tail),
        [cache],
        ("comp is torch.float32", "should be torch.int64", "convert them"),
    )


@provokes("xs_rolling", "trim-multi-row")
def _(folder):
    cache = rows_at(40, 40)
    return Provocation(
        lambda: cache.trim_tail_to(32), [cache], ("has 2 rows", "should have 1", "split them first")
    )


@provokes("xs_rolling", "trim-not-a-multiple")
def _(folder):
    cache = rows_at(40)
    return Provocation(
        lambda: cache.trim_tail_to(30), [cache], ("is 30", "should be a multiple of 4", "trim to 28")
    )


@provokes("xs_rolling", "trim-above-need")
def _(folder):
    wide, narrow = rows_at(22, per_row_state=False), rows_at(44, per_row_state=False)
    return Provocation(
        lambda: reconcile_xs_bases([wide, narrow]),
        [wide, narrow],
        ("new base is 24", "should not lie above 16", "trim to 16 at most"),
    )


@provokes("xs_rolling", "trim-below-base")
def _(folder):
    cache = rows_at(40)
    return Provocation(
        lambda: cache.trim_tail_to(16), [cache], ("is 16", "should not lie below 20", "trim to 20 or later")
    )


def adopting(
    tokens: list[int], base: list[int], words: tuple[str, str, str], cache=None, **change
) -> Provocation:
    """A stored state of these counts, with tensors that fit the counts unless `change` replaces them."""
    cache = cache or rows_at(9, 22)
    width = max((t - b for t, b in zip(tokens, base, strict=False)), default=0)
    live = max((t // 4 for t in tokens), default=0)
    tensors = {
        "comp": torch.zeros(len(tokens), max(live, 0), 9, dtype=torch.int64),
        "tail": torch.zeros(len(tokens), max(width, 0), 2, dtype=torch.int64),
    } | change
    return Provocation(lambda: cache.adopt(**tensors, tokens=tokens, base=base), [cache], words)


@provokes("xs_rolling", "restore-rows")
def _(folder):
    return adopting(
        [], [], ("0 counts of tokens and 0 bases", "one of each per row", "take the snapshot again")
    )


@provokes("xs_rolling", "restore-base-above-tokens")
def _(folder):
    return adopting(
        [40, 3], [20, 4], ("row 1 has tokens 3 and base 4", "lie in 0..tokens", "take the snapshot")
    )


@provokes("xs_rolling", "restore-not-a-multiple")
def _(folder):
    return adopting(
        [40, 40], [20, 19], ("row 1 has base 19", "should be a multiple of 4", "take the snapshot")
    )


@provokes("xs_rolling", "restore-above-need")
def _(folder):
    return adopting(
        [40, 40], [40, 20], ("row 0 has tokens 40 and base 40", "should be 36 at most", "take the")
    )


@provokes("xs_rolling", "restore-shape")
def _(folder):
    tail = torch.zeros(1, 21, 2, dtype=torch.int64)
    return adopting(
        [40], [20], ("tail is [1, 21, 2]", "should be [1, 20, 2]", "take the snapshot"), tail=tail
    )


@provokes("xs_rolling", "restore-ragged")
def _(folder):
    cache = rows_at(40, per_row_state=False)
    words = ("tokens [40, 41], base [20, 20]", "all rows should be equal", "turn it on")
    return adopting([40, 41], [20, 20], words, cache)


def restoring(folder: Path, like: XsRolling, words: tuple[str, str, str], **written) -> Provocation:
    snapshots.snapshot(real_rows(**written), folder / "rows")
    return Provocation(lambda: snapshots.restore(like, folder / "rows"), [like], words)


def rewriting(folder: Path, words: tuple[str, str, str], **metadata: str) -> Provocation:
    """A file whose metadata somebody has edited."""
    like = real_rows()
    snapshots.snapshot(like, folder / "rows")
    with safe_open(folder / "rows", framework="pt") as file:
        stored, tensors = file.metadata(), {name: file.get_tensor(name) for name in ("comp", "tail")}
    save_file(tensors, folder / "rows", metadata=stored | metadata)
    return Provocation(lambda: snapshots.restore(like, folder / "rows"), [like], words)


@provokes("snapshot", "restore-unreadable")
def _(folder):
    like = real_rows()
    (folder / "rows").write_text("tokens = 40")
    return Provocation(
        lambda: snapshots.restore(like, folder / "rows"),
        [like],
        ("cannot be read", "should be a safetensors file", "take the snapshot again"),
    )


@provokes("snapshot", "restore-incomplete")
def _(folder):
    words = (
        "lacks a part of the state",
        "should hold comp, tail, tokens and base",
        "take the snapshot again",
    )
    return rewriting(folder, words, tokens="[30, 17.5]")


@provokes("snapshot", "restore-format")
def _(folder):
    words = ("has format 'something-else'", "should have 'rowproof-xs-rolling-1'", "restore into a cache of")
    return rewriting(folder, words, format="something-else")


@provokes("snapshot", "restore-ratio")
def _(folder):
    return restoring(
        folder, rows_at(9, ratio=8, span=1), ("has ratio '4'", "should have '8'", "restore into")
    )


@provokes("snapshot", "restore-span")
def _(folder):
    return restoring(folder, rows_at(9, span=1), ("has span '2'", "should have '1'", "restore into"))


@provokes("snapshot", "restore-margin")
def _(folder):
    return restoring(folder, rows_at(9, margin=8), ("has margin '16'", "should have '8'", "restore into"))


@provokes("snapshot", "restore-retain")
def _(folder):
    words = ("has retain 'hidden'", "should have 'projected'", "restore into")
    return restoring(folder, real_rows(), words, retain="hidden")


@provokes("snapshot", "restore-payload-dtype")
def _(folder):
    words = ("has payload_dtype 'torch.float32'", "should have 'torch.float64'", "restore into")
    return restoring(folder, real_rows(torch.float64), words)


@provokes("snapshot", "restore-block-dtype")
def _(folder):
    words = ("has block_dtype 'torch.bfloat16'", "should have 'torch.float32'", "restore into")
    return restoring(folder, real_rows(), words, dtype=torch.bfloat16)


@provokes("snapshot", "restore-rope")
def _(folder):
    words = ("theta=10000.0", "theta=160000.0", "restore into")
    return restoring(folder, real_rows(), words, rope=Rope(4, 10000.0))


@provokes("snapshot", "restore-row-invariant")
def _(folder):
    words = ("has row_invariant 'False'", "should have 'True'", "restore into")
    return restoring(folder, real_rows(row_invariant=True), words)


@provokes("compressor", "invariance-machine")
def _(folder):
    def act():
        with machine_that_rounds_by_place():
            real_rows(row_invariant=True)

    return Provocation(act, [], ("in place 1", "should have the same bytes", "leave row_invariant off"))


@provokes("compressor", "invariance-threads")
def _(folder):
    cache, threads = real_rows(row_invariant=True), torch.get_num_threads()

    def act():
        torch.set_num_threads(threads + 1)
        try:
            cache.advance(torch.ones(2, 5, 8))
        finally:
            torch.set_num_threads(threads)

    words = (f"runs on {threads + 1} threads", "both should be equal", "before the compressor is built")
    return Provocation(act, [cache], words)


@contextmanager
def machine_that_rounds_by_place() -> Iterator[None]:
    """Products whose second row is rounded the other way."""
    product = Compressor.product

    def rounds_by_place(self: Compressor, tile: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        right = product(self, tile, weight)
        right[1] = right[1].nextafter(right[1] + 1)
        return right

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compressor, "product", rounds_by_place)
        yield


@provokes("kv_cache", "align-too-short")
def _(folder):
    slot = kv_slot(4)
    return Provocation(
        lambda: front_pad_kv_cache(slot, 3),
        [slot],
        ("is 4 long", "should end in column 3", "align to the longest run"),
    )


@provokes("kv_cache", "align-uneven-layers")
def _(folder):
    even, uneven = [kv_slot(3), kv_slot(3)], [kv_slot(2), kv_slot(1), rows_at(3)]
    return Provocation(
        lambda: front_align_batch([even, uneven]),
        [*even, *uneven],
        ("sequence 1's K/V slots are [2, 1] long", "should be equal", "align slots of one window"),
    )


@provokes("kv_ring", "advance-shape")
def _(folder):
    ring = kv_ring(9, 22)
    return Provocation(
        lambda: ring.advance(new_tokens(3, 2)),
        [ring],
        ("kv is [3, 2, 1]", "should be [2, T, 1]", "pad to the longest"),
    )


@provokes("kv_ring", "advance-dtype")
def _(folder):
    ring = kv_ring(9, 22)
    return Provocation(
        lambda: ring.advance(new_tokens(2, 1).float()),
        [ring],
        ("kv is torch.float32 on cpu", "holds torch.int64 on cpu", "convert the new tokens"),
    )


@provokes("kv_ring", "advance-counts")
def _(folder):
    ring = kv_ring(9, 22)
    return Provocation(
        lambda: ring.advance(new_tokens(2, 2), [1, 3]),
        [ring],
        ("n_new is [1, 3]", "2 counts in 0..2", "count each row's own new tokens"),
    )


@provokes("kv_ring", "advance-ragged")
def _(folder):
    ring = kv_ring(9, 9, per_row_state=False)
    return Provocation(
        lambda: ring.advance(new_tokens(2, 2), [1, 2]),
        [ring],
        ("tokens [9, 9], base [3, 3] and would take [1, 2]", "all should be equal", "turn it on"),
    )


@provokes("kv_ring", "rollback-below-zero")
def _(folder):
    ring = kv_ring(9, 22)
    return Provocation(
        lambda: ring.rollback(0, 10), [ring], ("holds 9 tokens", "should drop 10", "drop 0..9")
    )


@provokes("kv_ring", "rollback-below-window")
def _(folder):
    ring = kv_ring(9, 30)
    return Provocation(
        lambda: ring.rollback_rows([1, 3]),
        [ring],
        ("row 1 at 30 tokens", "should go back to 27", "go back less, or prefill the row again"),
    )


@provokes("kv_ring", "rollback-ragged")
def _(folder):
    ring = kv_ring(9, 9, per_row_state=False)
    return Provocation(
        lambda: ring.rollback_rows([1, 2]),
        [ring],
        ("row 0 of 2 should drop 1 tokens alone", "keep equal tokens", "use rollback_rows with equal counts"),
    )


@provokes("kv_ring", "rollback-counts")
def _(folder):
    ring = kv_ring(9, 22)
    return Provocation(
        lambda: ring.rollback_rows([1]),
        [ring],
        ("1 entries", "one per row, 2", "use 0 for a row that stays"),
    )


@provokes("kv_ring", "select-empty")
def _(folder):
    ring = kv_ring(9, 22)
    return Provocation(
        lambda: ring.select([]), [ring], ("no row was chosen", "keep at least one", "drop the whole cache")
    )


@provokes("kv_ring", "select-out-of-range")
def _(folder):
    ring = kv_ring(9, 22)
    return Provocation(
        lambda: ring.select([1, 2]),
        [ring],
        ("rows [1, 2]", "should lie in 0..1", "choose rows of this batch"),
    )


@provokes("kv_ring", "assemble-empty")
def _(folder):
    return Provocation(
        lambda: KVRing.assemble([]),
        [],
        ("no ring was given", "should be at least one", "pass the rings of all rows"),
    )


@provokes("kv_ring", "assemble-kind")
def _(folder):
    parts = [kv_ring(9), kv_ring(22, margin=8)]
    return Provocation(
        lambda: KVRing.assemble(parts),
        parts,
        ("ring 1 is (5, 8", "should equal ring 0", "build all from one layer"),
    )


@provokes("kv_ring", "assemble-ragged")
def _(folder):
    parts = [kv_ring(9, per_row_state=False), kv_ring(22, per_row_state=False)]
    return Provocation(
        lambda: KVRing.assemble(parts),
        parts,
        ("tokens [9, 22], base [3, 16]", "all should be equal", "keep the rows in separate caches"),
    )


@provokes("layer", "advance-shape")
def _(folder):
    state = real_rows()
    slots = LayerSlots(KVRing(5, 16, 2, 8, dtype=torch.float32), state)
    return Provocation(
        lambda: step(None, slots, torch.zeros(3, 1, 8)),
        [state, slots.kv],
        ("hidden is [3, 1, 8]", "should be [2, T, H]", "pad to the longest"),
    )


def small(rows: int = 2, **sizes) -> tuple[Model, Cache, list[XsRolling | KVRing]]:
    """A small model, a cache in which every row has consumed 9 tokens, and all its slots."""
    settings = {key: sizes.pop(key) for key in ("per_row_state",) if key in sizes}
    model, _ = models(0, **sizes)
    cache = model.cache(rows, MARGIN, **settings)
    model.forward(torch.ones(rows, 9, dtype=torch.int64), cache)
    return model, cache, [slot for _, slot in cache.slots()]


@provokes("cache", "advance-counts")
def _(folder):
    model, cache, slots = small()
    return Provocation(
        lambda: model.forward(torch.ones(2, 2, dtype=torch.int64), cache, [1, 3]),
        slots,
        ("n_new is [1, 3]", "2 counts in 0..2", "count each row's own new tokens"),
    )


@provokes("cache", "advance-ragged")
def _(folder):
    model, cache, slots = small(per_row_state=False)
    return Provocation(
        lambda: model.forward(torch.ones(2, 2, dtype=torch.int64), cache, [1, 2]),
        slots,
        ("in layers.0.kv rows stand at tokens [9, 9]", "all should be equal", "turn it on"),
    )


@provokes("cache", "assemble-empty")
def _(folder):
    return Provocation(
        lambda: Cache.assemble([]),
        [],
        ("no cache was given", "should be at least one", "pass the caches of all rows"),
    )


@provokes("cache", "assemble-slots")
def _(folder):
    _, cache, slots = small()
    _, other, others = small(schedule=("csa", "hca"))
    return Provocation(
        lambda: Cache.assemble([cache, other]),
        slots + others,
        ("cache 1 has 5 slots, the last layers.0.indexer", "should have those of cache 0, 9", "one model"),
    )


@provokes("model", "advance-shape")
def _(folder):
    model, cache, slots = small()
    return Provocation(
        lambda: model.forward(torch.ones(3, 1, dtype=torch.int64), cache),
        slots,
        ("tokens are torch.int64 [3, 1]", "should be int64 [2, T]", "pad to the longest"),
    )


@provokes("model", "advance-vocabulary")
def _(folder):
    model, cache, slots = small()
    return Provocation(
        lambda: model.forward(torch.tensor([[3], [11]]), cache),
        slots,
        ("tokens hold [11]", "should lie in 0..10", "encode them with the model's own vocabulary"),
    )


@provokes("mtp", "advance-beyond-margin")
def _(folder):
    model, cache, slots = small()
    drafts = torch.ones(2, MARGIN + 1, dtype=torch.int64)
    return Provocation(
        lambda: verify(model, cache, torch.ones(2, dtype=torch.int64), drafts, PerSequence()),
        slots,
        ("6 drafts are to be verified", "should be 5 at most", "open the cache with a larger margin"),
    )


@provokes("masks", "mask-positions")
def _(folder):
    return Provocation(
        lambda: Positions.of([4, 9], [1, 3], 2),
        [],
        ("take [1, 3] of 2 columns", "one count in 0..2 per row", "count each row's own tokens"),
    )


@provokes("masks", "mask-lead")
def _(folder):
    ring = kv_ring(2, 9)
    lead = ring.history()[1]
    return Provocation(
        lambda: masks.raw(Positions.of([2, 9, 9], None, 1), lead, 4, 5),
        [ring],
        ("lead is [2, 0]", "should have 3 counts in 0..4", "take it from the K/V slots"),
    )


@provokes("masks", "mask-dtype")
def _(folder):
    return Provocation(
        masked(torch.zeros(3, 7)),
        [],
        ("the mask is torch.float32", "should be torch.bool", "turn an additive mask into one"),
    )


@provokes("masks", "mask-rank")
def _(folder):
    return Provocation(
        masked(torch.ones(2, 4, 3, 7, dtype=torch.bool)),
        [],
        ("the mask is [2, 4, 3, 7]", "should be [T, N], [B, T, N] or [B, 1, T, N]", "drop the other axes"),
    )


@provokes("masks", "mask-batch")
def _(folder):
    return Provocation(
        masked(torch.ones(1, 3, 7, dtype=torch.bool)),
        [],
        ("for 1 rows", "should be for 2", "make it again for the rows that are here now"),
    )


@provokes("masks", "mask-queries")
def _(folder):
    return Provocation(
        masked(torch.ones(2, 1, 7, dtype=torch.bool)),
        [],
        ("for 1 queries", "should be for 3", "make it for the padded step"),
    )


@provokes("masks", "mask-width")
def _(folder):
    return Provocation(
        masked(torch.ones(3, 6, dtype=torch.bool)),
        [],
        ("6 columns wide", "should be 7", "make it from the aligned batch"),
    )


def memory(cache: XsRolling | KVSlot | KVRing) -> list[object]:
    """Everything that is stored, dead memory included, as bytes and counts; and which objects hold it."""
    if isinstance(cache, KVSlot):
        tensors, counts = [cache.columns], [cache.tokens, cache.lead]
    else:
        tensors, counts = list(cache.storage().values()), [list(cache.tokens), list(cache.base)]
    stored = [
        (t.data_ptr(), t.dtype, tuple(t.shape), bytes(t.reshape(-1).view(torch.uint8).tolist()))
        for t in tensors
    ]
    return [*stored, *counts]


def kinds_in_source() -> set[tuple[str, str]]:
    """(module, kind) of every refusal that production can make; each must name its kind where it is made."""
    found = set()
    for path in SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Refused"):
                kind = node.args[1]
                if isinstance(kind, ast.Constant):
                    found.add((path.stem, kind.value))
                else:
                    assert (path.stem, ast.unparse(kind)) == (
                        "snapshot",
                        "f\"restore-{key.replace('_', '-')}\"",
                    )
                    keys = snapshots._kind(real_rows())
                    found |= {("snapshot", f"restore-{key.replace('_', '-')}") for key in keys}
    return found


# A layer of another hidden width has other shapes with it; test_snapshot.py refuses that file.
ELSEWHERE = {("snapshot", "restore-hidden-width")}


def test_every_refusal_in_the_source_is_provoked_here():
    assert kinds_in_source() - ELSEWHERE == set(TABLE)


@pytest.mark.parametrize(("module", "kind"), TABLE, ids=[" ".join(key) for key in TABLE])
def test_a_refusal_has_its_kind_says_what_to_do_and_changes_no_bit(module, kind, tmp_path):
    provocation = TABLE[module, kind](tmp_path)
    before = [memory(cache) for cache in provocation.untouched]
    with pytest.raises(Refusal) as refused:
        provocation.act()
    assert refused.value.kind == kind
    assert refused.type.kind == kind.split("-")[0]
    assert [memory(cache) for cache in provocation.untouched] == before
    sentence, (what_is, should, do) = str(refused.value), provocation.words
    assert what_is in sentence
    assert should in sentence
    assert "should" in sentence
    assert do in sentence.rpartition(";")[2]


def test_every_typed_refusal_is_used():
    types = {
        name for name, value in vars(refusals).items() if isinstance(value, type) and name.endswith("Refused")
    }
    made = {
        node.func.id
        for path in SOURCE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in types
    }
    assert made == types


def test_asking_whether_a_rollback_is_refused_changes_no_bit():
    for cache in (rows_at(9, 60), rows_at(9, 60, retain="hidden"), rows_at(9, 9, per_row_state=False)):
        before = memory(cache)
        for row in range(2):
            for n in range(-1, 70):
                cache.rollback_refusal(row, n)
        assert memory(cache) == before


@pytest.mark.parametrize("n", [-1, -100])
def test_a_rollback_by_less_than_nothing_is_refused(n):
    cache, slot = rows_at(9), kv_slot(9)
    for refusal in (cache.rollback_refusal(0, n), slot.rollback_refusal(n)):
        assert refusal is not None
        assert refusal.kind == "rollback-below-zero"


@pytest.mark.parametrize("rows", [[-1], [0, -1], [2]])
def test_a_row_is_never_counted_from_the_end(rows):
    cache = rows_at(9, 22)
    for act in (
        lambda: cache.select(rows),
        lambda: cache.split_row(rows[-1]),
        lambda: cache.rollback(rows[-1], 0),
    ):
        with pytest.raises(Refusal) as refused:
            act()
        assert refused.value.kind == "select-out-of-range"


def test_one_bad_row_refuses_the_whole_rollback():
    cache = rows_at(60, 60, 60)
    before = memory(cache)
    with pytest.raises(Refusal):
        cache.rollback_rows([1, 2, 21])
    assert memory(cache) == before


def test_one_bad_cache_refuses_the_whole_reconciliation():
    """The first cache could be trimmed; it stays as it is, because the second cannot."""
    caches = [
        rows_at(28, per_row_state=False),
        rows_at(22, per_row_state=False),
        rows_at(44, per_row_state=False),
    ]
    before = [memory(cache) for cache in caches]
    with pytest.raises(Refusal) as refused:
        reconcile_xs_bases(caches)
    assert refused.value.kind == "trim-above-need"
    assert [memory(cache) for cache in caches] == before


@pytest.mark.parametrize("n", range(3, 31))
def test_the_depth_that_a_refused_slot_advises_is_accepted(n):
    slot = kv_slot(30)
    refusal = slot.rollback_refusal(n)
    assert "drop 2 at most" in str(refusal)
    assert slot.rollback_refusal(2) is None


@pytest.mark.parametrize("rows", [0, -1])
def test_a_batch_of_no_rows_cannot_be_opened(rows):
    with pytest.raises(ValueError, match="at least one row"):
        XsRolling(TokenCompressor(4, 2), Geometry(4, 2), rows)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Geometry(0, 2),
        lambda: Geometry(4, 3),
        lambda: Geometry(4, 2, -1),
        lambda: KVSlot(0, 2, 1, torch.int64),
        lambda: KVSlot(4, -1, 1, torch.int64),
        lambda: Rope(3),
        lambda: Rope(-2),
        lambda: Rope(4, 1.0),
        lambda: XsRolling(TokenCompressor(4, 2), Geometry(8, 2), 1),
        lambda: XsRolling(TokenCompressor(4, 2), Geometry(4, 1), 1),
        lambda: XsRolling(TokenCompressor(4, 2), Geometry(4, 2), 1, plan="none"),
        lambda: XsRolling(TokenCompressor(4, 2), Geometry(4, 2), 1, retain="none"),
        lambda: Compressor(
            torch.zeros(16, 8), torch.zeros(16, 8), torch.zeros(4, 8), torch.zeros(8), Rope(4)
        ),
        lambda: Compressor(
            torch.zeros(16, 8), torch.zeros(8, 8), torch.zeros(4, 16), torch.zeros(8), Rope(4)
        ),
        lambda: Compressor(
            torch.zeros(24, 8), torch.zeros(24, 8), torch.zeros(4, 24), torch.zeros(8), Rope(4)
        ),
    ],
)
def test_settings_that_describe_no_layer_are_value_errors_that_say_what_should_be(make):
    with pytest.raises(ValueError, match="should"):
        make()
