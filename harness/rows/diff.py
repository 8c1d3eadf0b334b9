"""Two arrays of event ids, compared cell by cell and put into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.rows.events import POISON, Ledger, origin
from harness.rows.subject import Array


def first_difference(sides: Mapping[str, Array]) -> tuple[int, ...] | None:
    """The first cell in which the first two sides differ, () if their shapes do, None if they are equal."""
    got, want = list(sides.values())[:2]
    if got.shape != want.shape:
        return ()
    unequal = got != want
    if not unequal.any():
        return None
    return tuple(int(i) for i in np.argwhere(unequal)[0])


def in_tokens(ledger: Ledger, axis: str, sides: Mapping[str, Array], live: Sequence[int]) -> tuple[str, ...]:
    """Sentences about the first two sides, which differ; further sides are quoted beside them.

    sides: name -> ids [n, slots], e.g. "batch holds"; axis names a row of them ("column", "block").
    live: the ids that this sequence holds by right, oldest first.
    """
    cell = first_difference(sides)
    got, want = list(sides.values())[:2]
    names = list(sides)
    if not cell:
        shapes = "   ".join(f"{name} {list(side.shape)}" for name, side in sides.items())
        return (f"shapes differ: {shapes}", *_guess(ledger, got, live))
    n = cell[0]
    quoted = "   ".join(f"{name} {_cell(ledger, side, cell)}" for name, side in sides.items())
    slot = f", slot {cell[1]} of {got.shape[1]}" if got.ndim > 1 and got.shape[1] > 1 else ""
    wrong = int((got != want).reshape(len(got), -1).any(axis=1).sum())
    return (
        f"first wrong cell: {axis} {n} of {len(got)}{slot}   {quoted}",
        f"shape equal {list(got.shape)}; {wrong} of {len(got)} {axis}s differ between {names[0].split()[0]} "
        f"and {names[1].split()[0]}",
        *_guess(ledger, got[(got != want).reshape(len(got), -1).any(axis=1)], live),
    )


def _cell(ledger: Ledger, side: Array, cell: tuple[int, ...]) -> str:
    if any(i >= n for i, n in zip(cell, side.shape, strict=False)):
        return "nothing there"
    return ledger.label(int(side[cell]))


def _guess(ledger: Ledger, wrong: Array, live: Sequence[int]) -> tuple[str, ...]:
    """What the wrong cells have in common, if it is something that is known to go wrong."""
    ids = [int(token) for token in np.unique(wrong)]
    if POISON in ids:
        return ("poison is read: memory that no row promises",)
    tokens = [token for token in ids if token > 0]
    if not tokens or not live:
        return ()
    own, known = origin(live[0])[0], set(live)
    others = sorted({origin(token)[0] for token in tokens} - {own})
    if others:
        return (f"tokens of r{', r'.join(map(str, others))} stand in a row of r{own}",)
    if any(token not in known for token in tokens):
        return ("a draft that was rolled back is read",)
    return ()
