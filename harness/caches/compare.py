"""The comparisons of a play on somebody's cache: batch with alone, alone with a fresh start and with a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.caches.told import Told, alike, pad_ids, tolerance, wrong
from harness.rows.subject import Array
from harness.rows.trace import Mismatch

if TYPE_CHECKING:
    from harness.caches.play import CachePlay, Member

FRESH, REFERENCE = "@fresh", "@reference"
MARGIN_MIN = 100.0
_KEPT = 64


class Comparison:
    """Reads rows and compares them; records the first difference of each sequence in each check."""

    def __init__(self, play: CachePlay) -> None:
        self.play = play
        self.told = Told(play)
        self.margin = np.inf
        self._seen: set[tuple[str, int | None]] = set()
        self._fresh: dict[tuple[int, ...], Mapping[str, Array]] = {}

    def record(self, check: str, row: int | None, said: tuple[str, ...]) -> None:
        self.play.trace.mismatches.append(Mismatch(check, self.play.at, row, said))

    def reads(self) -> list[Mapping[str, Array]]:
        """What every row of the batch reads."""
        return [_copied(self.play.present().read(row)) for row in range(len(self.play.order))]

    def same(self, before: Sequence[Mapping[str, Array]], after: Sequence[Mapping[str, Array]]) -> bool:
        return len(before) == len(after) and all(
            old.keys() == new.keys() and all(np.array_equal(old[k], new[k], equal_nan=True) for k in old)
            for old, new in zip(before, after, strict=True)
        )

    def fresh_read(self, history: Sequence[int]) -> Mapping[str, Array]:
        """What a fresh start with this history reads."""
        key = tuple(history)
        if key not in self._fresh:
            if len(self._fresh) >= _KEPT:
                self._fresh.pop(next(iter(self._fresh)))
            self._fresh[key] = _copied(self.play.fresh(history).read(0))
        return self._fresh[key]

    def after_step(self) -> None:
        play = self.play
        for row, member in enumerate(play.order):
            self._member(row, member, _copied(play.present().read(row)))
        for member, park in play.parked.values():
            self._member(None, member, _copied(park.read(0)))

    def _member(self, row: int | None, member: Member, batch: Mapping[str, Array]) -> None:
        alone, fresh = _copied(member.alone.read(0)), self.fresh_read(member.history)
        self._sides("", row, member, {"batch holds": batch, "alone holds": alone, "fresh holds": fresh})
        self._sides(FRESH, row, member, {"alone holds": alone, "fresh holds": fresh})
        if "reference" in self.play.cache.supports:
            inputs = self.play.fed([member.history])[0]
            right = _copied(member.alone.reference(inputs))
            self._sides(REFERENCE, row, member, {"alone holds": alone, "reference says": right})

    def _sides(
        self, against: str, row: int | None, member: Member, sides: Mapping[str, Mapping[str, Array]]
    ) -> None:
        got, want = list(sides.values())[:2]
        if got.keys() != want.keys():
            said = "   ".join(
                f"{name} {', '.join(sorted(side)) or 'nothing'}" for name, side in sides.items()
            )
            self._first("read" + against, row, member, (said,))
        for array in sorted(got.keys() & want.keys()):
            check = array + against
            self.play.trace.compared[check] += 1
            within = tolerance(want[array], self.play.cache.exact)
            if got[array].dtype != want[array].dtype:
                said = f"dtypes differ: {got[array].dtype} and {want[array].dtype}"
                self._first(check, row, member, (said,))
            elif not alike(got[array], want[array], within) and (check, member.number) not in self._seen:
                held = {name: side[array] for name, side in sides.items() if array in side}
                self._first(check, row, member, self.told.difference(member, array, held, within))

    def _first(self, check: str, row: int | None, member: Member, said: tuple[str, ...]) -> None:
        """A state that went wrong stays wrong: its first step is worth a message, the others are not."""
        if (check, member.number) in self._seen:
            return
        self._seen.add((check, member.number))
        self.record(check, row, said if row is not None else (f"r{member.number}, alone in its cache", *said))

    def calibrate(self) -> None:
        """Would a wrong newest token have been seen? Its distance in tolerances, at the end of the play."""
        for row, member in enumerate(self.play.order):
            if not member.history:
                continue
            right = self.fresh_read(member.history)
            other = self.fresh_read([*member.history[:-1], *pad_ids(1)])
            margin = max((self._distance(right[k], other[k]) for k in right if k in other), default=0.0)
            self.margin = min(self.margin, margin)
            self.play.trace.compared["data"] += 1
            if margin < MARGIN_MIN:
                said = f"another newest token changes what is read by {margin:.3g} tolerances; {MARGIN_MIN:.0f} should be the least"
                self.record("data", row, (said, "let `read` show what the next step can see"))

    def _distance(self, right: Array, other: Array) -> float:
        if right.shape != other.shape:
            return np.inf
        within = tolerance(right, self.play.cache.exact)
        if within == 0:
            return np.inf if wrong(right, other, 0.0).any() else 0.0
        with np.errstate(invalid="ignore"):
            return float(np.nanmax(np.abs(right - other), initial=0.0)) / within


def _copied(read: Mapping[str, Array]) -> Mapping[str, Array]:
    """Arrays of the reader's own: a cache may hand out views of what it will overwrite."""
    return {name: np.array(array) for name, array in read.items()}
