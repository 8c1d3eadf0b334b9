"""Where tokens, blocks and windows lie: pure integers, no tensors.

Words: `ratio` r tokens become one block; a block's window spans `span` groups of r tokens (CSA 2, HCA 1);
`margin` m is how many tokens a row may always roll back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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

    def blocks(self, tokens: int) -> int:
        """How many blocks `tokens` tokens have completed."""
        return tokens // self.ratio

    def first_token(self, block: int) -> int:
        """The earliest token that block `block` pools."""
        return max(block + 1 - self.span, 0) * self.ratio

    def need(self, tokens: int) -> int:
        """The earliest token that the next block after `tokens` tokens will pool."""
        return self.first_token(self.blocks(tokens))

    def base_after(self, tokens: int, base: int) -> int:
        """The base of a row that has just advanced to `tokens` tokens.

        It keeps what a rollback of `margin` tokens would need, and never promises again what it has
        given up: without the floor `base`, a rollback that must be refused is accepted later.
        """
        return max(self.need(max(tokens - self.margin, 0)), base)

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


def completed(geometry: Geometry, tokens: Sequence[int], n_new: Sequence[int]) -> list[tuple[int, int]]:
    """The (row, block) pairs that complete when row i takes n_new[i] more tokens, in row order."""
    return [
        (row, block)
        for row, (t, n) in enumerate(zip(tokens, n_new, strict=True))
        for block in range(geometry.blocks(t), geometry.blocks(t + n))
    ]


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
