"""A batch and its rows alone, on a small real compressor: what the classic suites compare. Frozen."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.testing import assert_close

from torch_impl.compressor import Compressor
from torch_impl.geometry import Geometry
from torch_impl.rope import Rope
from torch_impl.xs_rolling import XsRolling

HIDDEN = 8


def cache(rows: int, always_ragged: bool = False) -> XsRolling:
    """Rows of ratio 4, span 2, on random weights that are always the same."""
    made = torch.Generator().manual_seed(0)
    wkv, wgate = (torch.randn(16, HIDDEN, generator=made, dtype=torch.float64) for _ in range(2))
    bias = torch.randn(4, 16, generator=made, dtype=torch.float64)
    compressor = Compressor(wkv, wgate, bias, torch.ones(8, dtype=torch.float64), Rope(4, 10000))
    return XsRolling(compressor, Geometry(4, 2, 16), rows, always_ragged=always_ragged)


def alone(tokens: Tensor) -> XsRolling:
    """One sequence [T, HIDDEN] in a cache of its own."""
    single = cache(1)
    single.advance(tokens[None])
    return single


def same(batch: XsRolling, row: int, single: XsRolling) -> None:
    """Row `row` holds what the sequence alone holds: blocks, and its run."""
    run = single.tokens[0] - single.base[0]
    assert batch.tokens[row] == single.tokens[0]
    assert_close(batch.comp(row), single.comp(0))
    assert_close(batch.tail([row])[0, batch.width - run :], single.tail()[0])
