"""Where tokens, blocks and windows lie: pure integers, no payloads.

A count is an int, or an int64 array [B] with one count per row: the formulas are the same. Arrays are NumPy's and
stay on the host: a hundred integers cost it a third of what a tensor operation costs.
Words: `ratio` r tokens become one block; a block's window spans `span` groups of r tokens (CSA 2, HCA 1);
`margin` m is how many tokens a row may always roll back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Count = TypeVar("Count", int, Integers)


def at_least_zero(n: Count) -> Count:
    """max(n, 0), also for one count per row."""
    return n * (n > 0)


@dataclass(frozen=True)
class Geometry:
    """The three numbers that decide everything about one compressor's state."""

    ratio: int
    span: int
    margin: int = 16

    def __post_init__(self) -> None:
        if self.ratio < 1 or self.span not in (1, 2) or self.margin < 0:
            raise ValueError(
                f"geometry is ratio={self.ratio}, span={self.span}, margin={self.margin}; it should have "
                "ratio >= 1, span 1 (HCA) or 2 (CSA), margin >= 0; correct the layer's configuration"
            )

    def blocks(self, tokens: Count) -> Count:
        """How many blocks `tokens` tokens have completed."""
        return tokens // self.ratio

    def first_token(self, block: Count) -> Count:
        """The earliest token that block `block` pools."""
        return at_least_zero(block + 1 - self.span) * self.ratio

    def need(self, tokens: Count) -> Count:
        """The earliest token that the next block after `tokens` tokens will pool."""
        return self.first_token(self.blocks(tokens))

    def base_after(self, tokens: Count, base: Count) -> Count:
        """The base of a row that has just advanced to `tokens` tokens.

        It keeps what a rollback of `margin` tokens would need, and never promises again what it has
        given up: without the floor `base`, a rollback that must be refused is accepted later.
        """
        kept = self.need(at_least_zero(tokens - self.margin))
        return base + at_least_zero(kept - base)

    @property
    def width_max(self) -> int:
        """The widest run of a row that was not restored: span * ratio + margin - 1 tokens."""
        return self.span * self.ratio + self.margin - 1

    def ring_slots(self, width: int) -> int:
        """Slots of a ring that holds every ordinary run, and one of `width` tokens; a multiple of 8, at least 8."""
        return -(-max(self.width_max, width, 1) // 8) * 8


@dataclass(frozen=True)
class Group:
    """Rows whose blocks complete in one call: their windows start equally far back and hold as many blocks.

    rows   : batch rows
    behind : tokens of the window that had arrived before this step, `tokens - need(tokens)`
    take   : completed blocks per row
    opens  : the first block is block 0 of a layer with overlap: it has no predecessor
    """

    rows: tuple[int, ...]
    behind: int
    take: int
    opens: bool


def runs(first: Integers, length: Integers) -> tuple[Integers, Integers]:
    """Row i's integers first[i] .. first[i] + length[i] - 1, all rows in order: (rows [N], integers [N])."""
    rows = np.arange(len(length)).repeat(length)
    before = length.cumsum() - length  # integers of the rows before
    return rows, np.arange(len(rows)) + (first - before)[rows]


def groups(geometry: Geometry, tokens: Sequence[int], n_new: Sequence[int]) -> list[Group]:
    """Completing rows, grouped by equal windows.

    The key is the window itself. The residue alone decides it only past the first block: a CSA row that
    has not completed one has the same residue as a later row, and a window without a predecessor.
    """
    rows_of: dict[tuple[int, int], list[int]] = {}
    for row, (t, n) in enumerate(zip(tokens, n_new, strict=True)):
        take = geometry.blocks(t + n) - geometry.blocks(t)
        if take:
            rows_of.setdefault((t - geometry.need(t), take), []).append(row)
    return [
        Group(tuple(rows), behind, take, opens=geometry.span == 2 and behind < geometry.ratio)
        for (behind, take), rows in rows_of.items()
    ]
