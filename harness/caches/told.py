"""What a wrong state holds, in words: where it differs, whose entry stands there, and which history explains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from harness.caches.guesses import Guesses
from harness.caches.labels import Labels
from harness.caches.protocol import Axis
from harness.caches.same import by_entry, distances, wrong
from harness.rows.events import ABSENT
from harness.rows.subject import Array

if TYPE_CHECKING:
    from harness.caches.play import CachePlay, Member

_EXPLAINED_MAX = 12


def _held(entry: Array) -> list[int]:
    """The ids that an entry holds, without the places that nothing fills."""
    tokens: list[int] = entry[entry != ABSENT].tolist()
    return tokens


def _in_numbers(sides: Mapping[str, Array]) -> str:
    """Where the first two sides first differ, as the numbers that stand there."""
    got, want = list(sides.values())[:2]
    if got.shape[1:] != want.shape[1:]:
        return "   ".join(f"{name} {list(side.shape)}" for name, side in sides.items())
    apart = [k for k, (a, b) in enumerate(zip_longest(got.tolist(), want.tolist())) if a != b]
    quoted = "   ".join(f"{name} {side[apart[0] : apart[0] + 1].tolist()}" for name, side in sides.items())
    return f"entry {apart[0]} of {len(want)}: {quoted}"


def _in_size(sides: Mapping[str, Array], within: float) -> str:
    """How many numbers of the first two sides differ, and by how much."""
    (name, got), (other, want) = list(sides.items())[:2]
    if got.shape != want.shape:
        return f"{name} {list(got.shape)}   {other} {list(want.shape)}"
    off, most = wrong(got, want, within), float(np.max(distances(got, want), initial=0.0))
    return f"{int(off.sum())} of {off.size} numbers differ, by {most:.3g} at most; {within:.1g} is rounding"


_NOT_EXPLAINED = (
    f"not explained: the first {_EXPLAINED_MAX} differences of a play are, with all that they are compared to"
)


class Told:
    """Puts the differences of one play into words."""

    def __init__(self, play: CachePlay) -> None:
        self.play = play
        self._explained_so_far = 0
        self.labels = Labels(play)
        self.guesses = Guesses(play, self.labels)

    def difference(
        self, member: Member, array: str, sides: Mapping[str, Array], within: float
    ) -> tuple[str, ...]:
        """Sentences about the first two of `sides` (name -> array, e.g. "batch holds"), which differ."""
        (name, got), (other, want) = list(sides.items())[:2]
        if self._explained_so_far >= _EXPLAINED_MAX or self.guesses.spent:
            return (f"{name} {list(got.shape)}   {other} {list(want.shape)}", _NOT_EXPLAINED)
        self._explained_so_far += 1
        axis = self.play.cache.axes.get(array, "state")
        if self.play.cache.stream == "ids" and got.dtype.kind == "i" and got.ndim and want.ndim:
            return (self._in_ids(sides) if axis != "state" else _in_numbers(sides),)
        if not self.play.explain:
            return (_in_size(sides, within),)
        said = [self._where(member, array, axis, sides, within)]
        if got.shape == want.shape and np.isnan(got).any() and not np.isnan(want).any():
            said.append(f"{int(np.isnan(got).sum())} of {got.size} numbers are NaN")
        explained = self.guesses.explained(member, array, got, within)
        side = name.split()[0]
        said.append(
            f"{side} holds what the row would hold {explained}"
            if explained
            else f"no single history that was tried reads like what {side} holds"
        )
        if got.size and not got.any():
            said[-1] = f"{side} holds zeros: memory that was never written"
        return tuple(said)

    def _in_ids(self, sides: Mapping[str, Array]) -> str:
        """Where the first two sides first differ, and which tokens one of them has there and the other has not."""
        (name, got), (other, want) = list(sides.items())[:2]
        mine, theirs = ([_held(entry) for entry in side] for side in (got, want))
        apart = [k for k, (a, b) in enumerate(zip_longest(mine, theirs)) if a != b]
        if not apart:
            return f"{name} {list(got.shape)}   {other} {list(want.shape)}"
        ours, right = (side[apart[0]] if apart[0] < len(side) else [] for side in (mine, theirs))
        more, fewer = (
            [each for each in ours if each not in right],
            [each for each in right if each not in ours],
        )
        said = [
            f"{has.split()[0]} has {self.labels.tokens(found)}, which {lacks.split()[0]} has not"
            for has, lacks, found in ((name, other, more), (other, name, fewer))
            if found
        ]
        what = "; ".join(said) or f"{name} {self.labels.tokens(ours)}, {other} {self.labels.tokens(right)}"
        return f"entry {apart[0]} of {len(want)}: {what}   ({len(apart)} of {len(want)} entries differ)"

    def _where(
        self, member: Member, array: str, axis: Axis, sides: Mapping[str, Array], within: float
    ) -> str:
        (name, got), (other, want) = list(sides.items())[:2]
        if got.shape != want.shape:
            return f"{name} {list(got.shape)}   {other} {list(want.shape)}" + self._counted(axis, got, want)
        if axis == "state" or got.ndim == 0:
            return _in_size(sides, within)
        off = wrong(got, want, within)
        entries = by_entry(off)
        k = int(np.argmax(entries))
        column = "column" if axis == "tokens" else "block"
        quoted = "   ".join(
            f"{side} {self._entry(member, array, axis, values, k, within)}" for side, values in sides.items()
        )
        return f"first wrong cell: {column} {k} of {len(got)}   {quoted}   ({int(entries.sum())} of {len(got)} {column}s differ)"

    def _counted(self, axis: Axis, got: Array, want: Array) -> str:
        if axis == "state" or not got.ndim or not want.ndim:
            return ""
        return f": {len(got)} {axis} where {len(want)} are right"

    def _entry(self, member: Member, array: str, axis: Axis, values: Array, k: int, within: float) -> str:
        """Whose entry stands there, by value."""
        if k >= len(values):
            return "nothing"
        for history, read in self.guesses.pasts(member, array):
            if read.ndim != values.ndim or read.shape[1:] != values.shape[1:]:
                continue
            entries = np.broadcast_to(values[k], read.shape)
            same = ~by_entry(wrong(read, entries, within))
            if same.any():
                return self._label(axis, history, len(read), int(np.argmax(same)))
        if not values[k].any():
            return "zeros, which no token has"
        return "a value that no token of this play has there"

    def _label(self, axis: Axis, history: Sequence[int], entries: int, k: int) -> str:
        if axis == "tokens":
            place = len(history) - entries + k
            return self.labels.token(history[place]) if place >= 0 else "an entry before the first token"
        ratio = self.play.fixture.ratio
        made_of = history[k * ratio : (k + 1) * ratio]
        return f"block {k} of {self.labels.tokens(made_of)}"
