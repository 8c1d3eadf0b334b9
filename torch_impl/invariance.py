"""Can a row be promised the same bytes in every batch? The machine is asked, before anybody relies on it.

Row-invariant arithmetic is made of two calls whose shapes never change: a product of ROWS rows, and the pool of one
window. The batch decides only where a row stands in the first and where a window lies in memory in the second,
so these are what is tried. The answer is fixed for a machine, its libraries and a number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

# Rows of every product. More make a batch cheaper and a single row dearer: in float32 16 cost both some 2.5 times.
ROWS = 16
_PLACES = 5  # where a window is tried; coprime to the alignments of vector code


class RowArithmetic(Protocol):
    """What is asked of a compressor; `torch_impl.compressor.Compressor` is the real one."""

    ratio: int
    span: int
    hidden_width: int
    series_width: int
    weight: Tensor
    payload_dtype: torch.dtype

    def product(self, tile: Tensor, weight: Tensor) -> Tensor: ...

    def pool(self, windows: Tensor, block: Tensor) -> Tensor: ...


def probe(compressor: RowArithmetic, threads: Sequence[int] | None = None) -> str | None:
    """Where one row's bytes were others than at first, as a clause; None where all agree.

    threads: numbers of threads to compare with each other. None: only the number in force, which is what a promise
    within one process needs. The number in force is set again afterwards.
    """
    in_force = torch.get_num_threads()
    first: dict[str, Tensor] = {}
    try:
        for count in threads or [in_force]:
            torch.set_num_threads(count)
            for what, where, got in [*_products(compressor), *_blocks(compressor)]:
                if not same_bytes(got, first.setdefault(what, got)):
                    return f"{what} has other bytes {where} on {count} threads than where it was tried first"
    finally:
        torch.set_num_threads(in_force)
    return None


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Equal to the bit: a NaN equals itself, and -0.0 is not 0.0."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def _products(compressor: RowArithmetic) -> Iterator[tuple[str, str, Tensor]]:
    """One row as every row of a product, alone in it and among others: (what, where, its result)."""
    like = compressor.weight
    row, weight = (part.to(like.device, like.dtype) for part in _cancelling(*like.shape[1:]))
    others = _drawn(ROWS, len(row)).to(like.device, like.dtype)
    what = f"a row of a product [{ROWS}, {len(row)}] x [{len(row)}, {len(weight)}] in {like.dtype}"
    for place in range(ROWS):
        for company, neighbours in (("alone", torch.zeros_like(others)), ("among others", others)):
            tile = neighbours.clone()
            tile[place] = row
            yield what, f"in place {place} {company}", compressor.product(tile, weight)[place]


def _cancelling(width: int, hidden: int) -> tuple[Tensor, Tensor]:
    """A row [hidden] and a weight [width, hidden] whose every product is 0, but for the rounding of its sum.

    Of ordinary sums in bfloat16, one in some thousands tells in which order it was formed; of these, each does.
    """
    half = hidden // 2
    drawn = _drawn(1 + width, half)
    pairs = torch.cat([drawn, drawn], dim=1)
    pairs[1:, half:] *= -1
    order = torch.randperm(2 * half, generator=torch.Generator().manual_seed(12))
    pairs = torch.nn.functional.pad(pairs[:, order], (0, hidden - 2 * half))
    return pairs[0], pairs[1:]


def _blocks(compressor: RowArithmetic) -> Iterator[tuple[str, str, Tensor]]:
    """One window pooled from every place of a batch's memory: (what, where, its block)."""
    shape = (compressor.span, compressor.ratio, compressor.series_width)
    drawn = _drawn(_PLACES + 1, *shape).to(compressor.weight.device, compressor.payload_dtype)
    for place in range(_PLACES):
        windows = drawn[1:].clone()
        windows[place] = drawn[0]
        block = compressor.pool(windows[place : place + 1], torch.tensor([7]))
        yield f"the block of a window {list(shape)} in {windows.dtype}", f"in place {place}", block


def _drawn(*shape: int) -> Tensor:
    """Standard normal float64, the same on every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
