"""A suite whose rows complete one block each, row i in column i. Frozen: do not improve it."""

from __future__ import annotations

import torch
from played_alone import HIDDEN, alone, same

from torch_impl.xs_rolling import XsRolling


def test_rows_stay_themselves_on_a_diagonal() -> None:
    made = torch.Generator().manual_seed(2)
    xs = torch.randn(3, 12, HIDDEN, generator=made, dtype=torch.float64)
    lengths = (3, 7, 11)
    batch = XsRolling.assemble([alone(row[:n]) for row, n in zip(xs, lengths, strict=True)])
    batch.advance(torch.stack([row[n : n + 1] for row, n in zip(xs, lengths, strict=True)]))
    for row, n in enumerate(lengths):
        same(batch, row, alone(xs[row, : n + 1]))
