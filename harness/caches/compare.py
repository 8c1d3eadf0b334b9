"""The comparisons of a play on somebody's cache: batch with alone, alone with a fresh start and with a reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harness.caches.labels import pad_ids
from harness.caches.protocol import Cache
from harness.caches.same import alike, tolerance, wrong
from harness.caches.told import Told
from harness.rows.subject import Array
from harness.rows.trace import Mismatch

if TYPE_CHECKING:
    from harness.caches.play import CachePlay, Member

FRESH, REFERENCE = "@fresh", "@reference"
MARGIN_MIN = 100.0
_KEPT = 512


class Held(NamedTuple):
    """What one sequence reads after a step; row: its row of the batch, or None if it is parked.

    fresh, right: None where they are not asked for, right also without a reference.
    """

    row: int | None
    member: Member
    batch: Mapping[str, Array] | Exception
    alone: Mapping[str, Array]
    fresh: Mapping[str, Array] | None
    right: Mapping[str, Array] | None


class Comparison:
    """Reads rows and compares them; records the first difference of each sequence in each check."""

    def __init__(self, play: CachePlay) -> None:
        self.play = play
        self.told = Told(play)
        self.margin = np.inf
        self._seen: set[tuple[str, int | None]] = set()
        self.names: set[str] = set()
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

    def collect(self, from_the_start: bool = True) -> list[Held]:
        """What every sequence reads now, in the batch or parked, alone, and, from the start, fresh and by right.

        Only the cache is asked.
        """
        play = self.play
        standing: list[tuple[int | None, Member, Cache, int]] = [
            (row, member, play.present(), row) for row, member in enumerate(play.order)
        ]
        standing += [(None, member, park, 0) for member, park in play.parked.values()]
        return [
            self._held(row, member, self._read(cache, at), from_the_start)
            for row, member, cache, at in standing
        ]

    def _read(self, cache: Cache, row: int) -> Mapping[str, Array] | Exception:
        """What a row of the batch reads, or what reading it raises: rows of unequal memory often raise."""
        try:
            return _copied(cache.read(row))
        except Exception as error:  # noqa: BLE001 (the cache's own fault, whatever it is)
            return error

    def _held(
        self, row: int | None, member: Member, batch: Mapping[str, Array] | Exception, from_the_start: bool
    ) -> Held:
        alone = _copied(member.alone.read(0))
        if not from_the_start:
            return Held(row, member, batch, alone, None, None)
        right = None
        if "reference" in self.play.cache.supports:
            right = _copied(member.alone.reference(self.play.fed([member.history])[0]))
        return Held(row, member, batch, alone, self.fresh_read(member.history), right)

    def compare(self, step: Sequence[Held]) -> None:
        for held in step:
            row, member = held.row, held.member
            alone = {"alone holds": held.alone}
            fresh = {} if held.fresh is None else {"fresh holds": held.fresh}
            if isinstance(held.batch, Exception):
                self.play.trace.compared["read"] += 1
                said = f"batch raises {type(held.batch).__name__} where this row is read: {held.batch}"
                self._first("read", row, member, (said, f"alone holds {', '.join(sorted(held.alone))}"))
            else:
                self._sides("", row, member, {"batch holds": held.batch, **alone, **fresh})
            if fresh:
                self._sides(FRESH, row, member, {**alone, **fresh})
            if held.right is not None:
                self._sides(REFERENCE, row, member, {**alone, "reference says": held.right})

    def _sides(
        self, against: str, row: int | None, member: Member, sides: Mapping[str, Mapping[str, Array]]
    ) -> None:
        got, want = list(sides.values())[:2]
        self.names |= got.keys()
        if got.keys() != want.keys():
            self._first("read" + against, row, member, _named(sides))
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
        """Would a wrong newest token have been seen? Its distance in tolerances, at the end of the play.

        In some array by far; and none that shows it at all may lose it in its tolerance.
        """
        for row, member in enumerate(self.play.order):
            if not member.history:
                continue
            right = self.fresh_read(member.history)
            other = self.fresh_read([*member.history[:-1], *pad_ids(1)])
            distances = {k: self._distance(right[k], other[k]) for k in right if k in other}
            margin = max(distances.values(), default=0.0)
            self.margin = min(self.margin, margin)
            self.play.trace.compared["data"] += 1
            if margin < MARGIN_MIN:
                said = f"another newest token changes what is read by {margin:.3g} tolerances; {MARGIN_MIN:.0f} should be the least"
                self.record("data", row, (said, self._advice(right)))
            for name in [name for name, distance in distances.items() if 0 < distance < 1]:
                said = f"another newest token changes {name} by {distances[name]:.3g} tolerances: a wrong one would not be seen there"
                self.record("data", row, (said, self._advice({name: right[name]})))

    def _advice(self, read: Mapping[str, Array]) -> str:
        if any(array.dtype == np.float16 for array in read.values()):
            return "float16 is too coarse for arithmetic to be judged in; declare `exact` if the cache only moves what it is given"
        return "let `read` show what the next step can see, each array in its own size: a large channel hides small ones"

    def _distance(self, right: Array, other: Array) -> float:
        if right.shape != other.shape:
            return np.inf
        within = tolerance(right, self.play.cache.exact)
        if within == 0:
            return np.inf if wrong(right, other, 0.0).any() else 0.0
        with np.errstate(invalid="ignore"):
            return float(np.nanmax(np.abs(right - other), initial=0.0)) / within if within else 0.0


def _copied(read: Any) -> Mapping[str, Array]:
    """Arrays of the reader's own: a cache may hand out views of what it will overwrite.

    Raises TypeError for what is no mapping of names to arrays.
    """
    if not isinstance(read, Mapping):
        raise TypeError(f"`read` returned {type(read).__name__}; it should be a dict of names and arrays")
    copied = {}
    for name, array in read.items():
        if not isinstance(name, str):
            raise TypeError(f"read(...) names an array {name!r}; it should be named by a text")
        try:
            copied[name] = np.array(array)
        except Exception as error:
            raise TypeError(
                f"read(...)[{name!r}] is {type(array).__name__} and no array for NumPy ({error}); a tensor in bfloat16 needs "
                "`.float()`, one on a device `.cpu()`"
            ) from error
        if copied[name].dtype.kind not in "biufc":
            raise TypeError(
                f"read(...)[{name!r}] holds {copied[name].dtype}; it should hold numbers or truth values"
            )
    return copied


def _named(sides: Mapping[str, Mapping[str, Array]]) -> tuple[str, ...]:
    """Which arrays only one of the first two sides has."""
    (name, got), (other, want) = list(sides.items())[:2]
    pairs = ((name, other, got.keys() - want.keys()), (other, name, want.keys() - got.keys()))
    return tuple(
        f"{has} {', '.join(sorted(more))}, which {lacks.split()[0]} does not"
        for has, lacks, more in pairs
        if more
    )
