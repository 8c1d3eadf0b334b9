"""Four suites whose data cannot see what they exist for. Frozen: do not improve them.

Shapes are right, lines are covered, all is green; and `story.toml` lists the faults that stay alive for it.
"""

from __future__ import annotations

import torch
from played_alone import HIDDEN, alone, cache, same


def test_rows_stay_themselves_when_all_of_them_land_in_one_column() -> None:
    made = torch.Generator().manual_seed(1)
    xs = torch.randn(3, 8, HIDDEN, generator=made, dtype=torch.float64)
    batch = cache(3, always_ragged=True)
    batch.advance(xs[:, :4].contiguous(), [4, 4, 4])
    batch.advance(xs[:, 4:].contiguous(), [4, 4, 4])
    for row in range(3):
        same(batch, row, alone(xs[row]))


def test_rows_stay_themselves_when_their_order_changes_and_all_are_fed_one_stream() -> None:
    ramp = torch.arange(1.0, 13, dtype=torch.float64)[:, None].expand(-1, HIDDEN) / 16
    batch = cache(3)
    batch.advance(ramp[:11].expand(3, -1, -1).contiguous())
    batch.select([2, 0, 1])
    batch.advance(ramp[11:].expand(3, -1, -1).contiguous())
    for row in range(3):
        same(batch, row, alone(ramp))


def test_a_trimmed_tail_of_zeros_holds_the_newest_tokens() -> None:
    zeros = torch.zeros(44, HIDDEN, dtype=torch.float64)
    single, whole = alone(zeros[:40]).split_row(0), alone(zeros)
    single.trim_tail_to(28)
    assert single.tail().shape[1] == 12
    single.advance(zeros[None, 40:])
    torch.testing.assert_close(single.comp(0), whole.comp(0))
    torch.testing.assert_close(single.tail()[0], whole.tail()[0, -single.width :])


def test_a_split_row_of_a_constant_keeps_its_run() -> None:
    constant = torch.full((9, HIDDEN), 0.5, dtype=torch.float64)
    batch = cache(2)
    batch.advance(constant.expand(2, -1, -1).contiguous())
    split = batch.split_row(1)
    same(split, 0, alone(constant))
