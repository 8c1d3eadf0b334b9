"""Row-invariant arithmetic: a row's bytes are a function of its own tokens, or the mode is refused by name.

Every test that asks for equal bytes first asks the machine itself, in a product of its own, whether it can give
them. Where it cannot, the same test asks for the refusal.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torch_impl import invariance
from torch_impl.compressor import Compressor
from torch_impl.geometry import Geometry
from torch_impl.invariance import ROWS, same_bytes
from torch_impl.refusals import RowInvarianceRefused
from torch_impl.rope import Rope
from torch_impl.xs_rolling import XsRolling

SIZES = [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 127, 128, 129]


@dataclass(frozen=True)
class Layer:
    ratio: int
    span: int
    dtype: torch.dtype
    hidden: int = 512
    head: int = 128

    def random(self, *shape: int, seed: int = 5) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

    def compressor(self, *, row_invariant: bool = True) -> Compressor:
        width, scale = self.span * self.head, self.hidden**-0.5
        wkv, wgate = (self.random(width, self.hidden, seed=seed) * scale for seed in (1, 2))
        bias, norm = self.random(self.ratio, width, seed=3), 1 + 0.25 * self.random(self.head, seed=4)
        return Compressor(
            wkv.to(self.dtype), wgate.to(self.dtype), bias, norm, Rope(32), row_invariant=row_invariant
        )

    def machine_keeps_bytes(self) -> bool:
        """In a product of ROWS rows, equal rows have equal bytes in all places: asked without production.

        All true sums are 0, so that what is left of them is their rounding.
        """
        half = self.hidden // 2
        twice = torch.randperm(2 * half, generator=torch.Generator().manual_seed(9))
        row = torch.zeros(self.hidden, dtype=self.dtype)
        weight = torch.zeros(2 * self.head, self.hidden, dtype=self.dtype)
        row[twice] = self.random(half, seed=7).repeat(2).to(self.dtype)
        weight[:, twice] = (self.random(2 * self.head, half, seed=8).repeat(1, 2)).to(self.dtype)
        weight[:, twice[half:]] *= -1
        found = list(F.linear(row.repeat(ROWS, 1), weight))
        for place in range(ROWS):
            tile = self.random(ROWS, self.hidden).to(self.dtype)
            tile[place] = row
            found.append(F.linear(tile, weight)[place])
        return all(same_bytes(one, found[0]) for one in found)

    def refused(self) -> bool:
        """The machine does not keep bytes, and the mode says so by name."""
        if self.machine_keeps_bytes():
            return False
        with pytest.raises(RowInvarianceRefused, match="leave row_invariant off"):
            self.compressor()
        return True


def layer_id(layer: Layer) -> str:
    return f"{layer.ratio}-{layer.span}-{layer.dtype}-{layer.hidden}".replace("torch.", "")


DTYPES = (torch.float32, torch.bfloat16, torch.float64)
LAYERS = [Layer(ratio, span, dtype) for ratio, span in ((4, 2), (128, 1)) for dtype in DTYPES]
LAYERS += [Layer(3, 2, torch.float32, hidden=99, head=34), Layer(5, 1, torch.bfloat16, hidden=75, head=33)]
every_layer = pytest.mark.parametrize("layer", LAYERS, ids=layer_id)


def places(size: int) -> list[int]:
    return sorted({0, min(1, size - 1), size // 3, size // 2, size - 1})


@every_layer
def test_a_payload_has_the_same_bytes_in_every_place_of_every_batch_size(layer):
    if layer.refused():
        return
    compressor, others = layer.compressor(), layer.random(max(SIZES), layer.hidden).to(layer.dtype)
    row = layer.random(1, layer.hidden, seed=9).to(layer.dtype)
    alone = compressor.project(row)
    for size in SIZES:
        for place in places(size):
            hidden = others[:size].clone()
            hidden[place] = row
            assert same_bytes(compressor.project(hidden)[place], alone[0]), (size, place)
            for series in range(layer.span):
                assert same_bytes(compressor.project(hidden, series)[place], alone[0, series]), (size, place)


@every_layer
def test_a_block_has_the_same_bytes_in_every_place_of_every_call(layer):
    if layer.refused():
        return
    compressor = layer.compressor()
    shape = (layer.span, layer.ratio, 2 * layer.head)
    others = layer.random(40, *shape).to(compressor.payload_dtype)
    window = layer.random(1, *shape, seed=9).to(compressor.payload_dtype)
    alone = compressor.pool(window.clone(), torch.tensor([6]))
    for size in [n for n in SIZES if n <= len(others)]:
        for place in places(size):
            windows, block = others[:size].clone(), torch.arange(size)
            windows[place], block[place] = window, 6
            assert same_bytes(compressor.pool(windows, block)[place], alone[0]), (size, place)


Schedule = list[list[int]]


def schedule_of(layer: Layer, rows: int) -> Schedule:
    """New tokens per step and row: a ragged prefill, then steps in which rows complete blocks at different times."""
    prefill = [2 * layer.ratio + 3 * row + row % 2 for row in range(rows)]
    return [
        prefill,
        *([1 + (step + row) % 3 for row in range(rows)] for step in range(2 * layer.ratio // 3 + 4)),
    ]


def fed(layer: Layer, lengths: list[int]) -> list[Tensor]:
    return [layer.random(n, layer.hidden, seed=100 + row).to(layer.dtype) for row, n in enumerate(lengths)]


def played(
    compressor: Compressor, layer: Layer, histories: list[Tensor], steps: Schedule, **how: Any
) -> XsRolling:
    """Rows that take their own history in these steps. What stands in the padding is NaN."""
    cache = XsRolling(compressor, Geometry(layer.ratio, layer.span), len(histories), **how)
    done = [0] * len(histories)
    for counts in steps:
        xs = torch.full((len(histories), max(counts), layer.hidden), torch.nan, dtype=layer.dtype)
        for row, n in enumerate(counts):
            xs[row, :n] = histories[row][done[row] : done[row] + n]
            done[row] += n
        cache.advance(xs, counts)
    return cache


WAYS = [
    {"retain": retain, "plan": plan} for retain in ("hidden", "projected") for plan in ("grouped", "gathered")
]


@every_layer
def test_a_row_of_a_ragged_batch_has_the_bytes_it_has_alone_whatever_is_stored_and_however_it_is_pooled(
    layer,
):
    if layer.refused():
        return
    compressor, rows = layer.compressor(), 3
    steps = schedule_of(layer, rows)
    histories = fed(layer, [sum(counts[row] for counts in steps) for row in range(rows)])
    for how in WAYS:
        batch = played(compressor, layer, histories, steps, **how)
        for row, history in enumerate(histories):
            alone = played(compressor, layer, [history], [[counts[row]] for counts in steps], **how)
            assert same_bytes(batch.split_row(row).tail(), alone.tail()), (how, row)
            assert same_bytes(batch.comp(row), alone.comp(0)), (how, row)


@every_layer
def test_blocks_have_the_same_bytes_in_one_shot_and_in_chunks_for_both_payloads_plans_and_paths(layer):
    if layer.refused():
        return
    compressor, length = layer.compressor(), 3 * layer.ratio + 1
    (history,) = fed(layer, [length])
    edges = [[length], [1] * length, [b - a for a, b in pairwise([0, 5, 6, 2 * layer.ratio + 1, length])]]
    seen = [
        played(compressor, layer, [history], [[n] for n in chunks], always_ragged=ragged, **how).comp(0)
        for how in WAYS
        for ragged in (False, True)
        for chunks in edges
    ]
    assert len(seen[0]) == 3
    assert all(same_bytes(comp, seen[0]) for comp in seen)


class Shapes(TorchDispatchMode):
    """What is handed to matrix products, and to the softmax's exponential, while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.products: set[tuple[tuple[int, ...], ...]] = set()
        self.exponentials: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if name in ("aten::mm", "aten::addmm", "aten::bmm", "aten::linear", "aten::matmul"):
            self.products.add(tuple(tuple(each.shape) for each in args))
        if name in ("aten::exp", "aten::exp_"):
            self.exponentials.add(tuple(args[0].shape))
        return func(*args, **(kwargs or {}))


@every_layer
def test_every_product_and_every_softmax_has_one_shape_in_batches_of_all_sizes(layer):
    """This holds on every machine, also where other shapes happen to give the same bytes."""
    if layer.refused():
        return
    compressor = layer.compressor()
    with Shapes() as shapes:
        for rows in (1, 2, 17):
            first = [layer.ratio + row % 5 for row in range(rows)]
            histories = fed(layer, [n + layer.ratio for n in first])
            for how in WAYS:
                played(compressor, layer, histories, [first, [layer.ratio] * rows], **how)
    width = 2 * layer.head
    assert shapes.products == {((ROWS, layer.hidden), (layer.hidden, width))}
    assert shapes.exponentials == {(1, layer.span * layer.ratio, layer.head)}


@every_layer
def test_with_the_mode_off_nothing_is_padded(layer):
    with Shapes() as shapes:
        layer.compressor(row_invariant=False).project(layer.random(3, layer.hidden).to(layer.dtype))
    assert shapes.products == {((3, layer.hidden), (layer.hidden, 2 * layer.span * layer.head))}


@every_layer
def test_the_mode_is_within_rounding_of_plain_arithmetic(layer):
    if layer.refused():
        return
    hidden = layer.random(37, layer.hidden).to(layer.dtype)
    one, other = (layer.compressor(row_invariant=on).project(hidden).double() for on in (True, False))
    unit = torch.finfo(layer.dtype).eps
    assert (one - other).abs().max() <= 64 * unit * other.abs().max()


@pytest.mark.parametrize("place", [1, 7, ROWS - 1])
def test_a_machine_whose_products_depend_on_the_place_is_found_out(place, monkeypatch):
    product = Compressor.product

    def rounds_by_place(self: Compressor, tile: Tensor, weight: Tensor) -> Tensor:
        right = product(self, tile, weight)
        right[place, 0] = right[place, 0].nextafter(right[place, 0] + 1)
        return right

    monkeypatch.setattr(Compressor, "product", rounds_by_place)
    plain = Layer(4, 2, torch.float32).compressor(row_invariant=False)
    assert f"in place {place} alone" in (invariance.probe(plain) or "")


def test_a_machine_whose_products_depend_on_the_neighbours_is_found_out(monkeypatch):
    product = Compressor.product

    def rounds_by_company(self: Compressor, tile: Tensor, weight: Tensor) -> Tensor:
        right = product(self, tile, weight)
        return right + torch.finfo(right.dtype).eps * tile.abs().sum().sign() * (tile.abs().sum() > 1000)

    monkeypatch.setattr(Compressor, "product", rounds_by_company)
    plain = Layer(4, 2, torch.float32).compressor(row_invariant=False)
    assert "in place 0 among others" in (invariance.probe(plain) or "")


def test_a_machine_whose_pool_depends_on_where_a_window_lies_is_found_out(monkeypatch):
    pool = Compressor.pool

    def rounds_by_address(self: Compressor, windows: Tensor, block: Tensor) -> Tensor:
        return pool(self, windows, block) * (1 + 1e-6 * (windows.storage_offset() > 0))

    monkeypatch.setattr(Compressor, "pool", rounds_by_address)
    plain = Layer(4, 2, torch.float32).compressor(row_invariant=False)
    assert "window" in (invariance.probe(plain) or "")


def test_a_machine_whose_products_depend_on_the_number_of_threads_is_found_out_and_the_number_is_set_again(
    monkeypatch,
):
    product, in_force = Compressor.product, torch.get_num_threads()

    def rounds_by_threads(self: Compressor, tile: Tensor, weight: Tensor) -> Tensor:
        return product(self, tile, weight) * (1 + 1e-6 * (torch.get_num_threads() == in_force + 2))

    monkeypatch.setattr(Compressor, "product", rounds_by_threads)
    layer = Layer(4, 2, torch.float32)
    plain = layer.compressor(row_invariant=False)
    differs = invariance.probe(plain, threads=[in_force, in_force + 2])
    assert f"on {in_force + 2} threads" in (differs or "")
    assert torch.get_num_threads() == in_force
    if not layer.refused():
        assert invariance.probe(plain) is None  # at one number of threads it agrees with itself


def test_the_machine_gives_the_same_answer_twice():
    for layer in LAYERS:
        plain = layer.compressor(row_invariant=False)
        assert invariance.probe(plain) == invariance.probe(plain)
