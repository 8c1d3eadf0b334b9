"""Two recordings compared: where they first differ, and whether the test came to see it.

What differs between two runs of the original is noise, and is left out by its path; a difference that
stands on noise alone cannot be put down to the mutant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .elements import ARRAYS, array, differing

Event = Sequence[Any]
CHANGES_MAX = 200


@dataclass(frozen=True)
class Change:
    """One leaf that differs; `at` are elements of the original's array, None when all of it or not known."""

    path: str
    kind: str
    before: str
    after: str
    at: tuple[int, ...] | None = None
    shown: str = ""
    # The mutant's shape, where it has elements that the original lacks.
    grown: tuple[int, ...] | None = None

    @property
    def needs_bytes(self) -> bool:
        """Whether the elements that differ can only be known from bytes that were not kept."""
        if self.kind not in ARRAYS or self.at is not None or self.after.count("|") != 4:
            return False
        one, other = array(self.before), array(self.after)
        return one.dtype == other.dtype and len(one.shape) == len(other.shape)


@dataclass(frozen=True)
class Difference:
    """The first border at which two recordings differ."""

    index: int
    kind: str
    where: str
    changes: tuple[Change, ...]

    @property
    def function(self) -> str:
        """The qualified name of the function."""
        return self.where.rpartition("#")[0]

    @property
    def spot(self) -> str:
        """Function and call, for a reader."""
        return f"{self.function} (call {self.call + 1})"

    @property
    def call(self) -> int:
        """Which call of the mutated functions it was, counted from zero."""
        return int(self.where.rpartition("#")[2])


@dataclass
class Noise:
    """What differs between two runs of the original, by place and path; `since` when even the events do."""

    paths: set[tuple[str, str]] = field(default_factory=set)
    since: dict[str, int] = field(default_factory=dict)
    example: str = ""

    def __bool__(self) -> bool:
        return bool(self.paths or self.since)

    def holds(self, place: str, path: str) -> bool:
        """Whether a path is noise, or stands below or above one that is."""
        return any(p == place and _related(path, noisy) for p, noisy in self.paths)


def _related(path: str, noisy: str) -> bool:
    return path == noisy or path.startswith((f"{noisy}.", f"{noisy}["))


@dataclass
class Seen:
    """What of a difference came to the test."""

    handed: Change | None = None
    line: tuple[str, Change] | None = None
    end: Change | None = None
    ended: bool = False

    @property
    def anything(self) -> bool:
        """Whether the test could see it at any time."""
        return bool(self.handed or self.line or self.end)


def place_of(event: Event) -> str:
    """Where an event stands, without its number."""
    kind = "handed" if event[0] == "held" else str(event[0])
    where = str(event[1]).rpartition("#")[0] if "#" in str(event[1]) else str(event[1])
    return f"{kind} {where}"


def leaves(recording: Mapping[str, Any], event: Event) -> dict[str, tuple[str, str]]:
    """{path: (kind, text)} of an event."""
    return {path: (kind, text) for path, kind, text in recording["leaves"][event[2]]}


def noise(one: Mapping[str, Any], other: Mapping[str, Any]) -> Noise:
    """What differs between two recordings of the original."""
    found = Noise()
    for stream in ("borders", "seen"):
        for index, (a, b) in enumerate(zip(one[stream], other[stream], strict=False)):
            if place_of(a) != place_of(b):
                found.since[stream] = index
                break
            if one["leaves"][a[2]] != other["leaves"][b[2]]:
                for change in _changes(leaves(one, a), leaves(other, b)):
                    if change.kind == "state":
                        # The second run was given another seed; that its state differs says nothing yet.
                        continue
                    found.paths.add((place_of(a), _whole_list(change.path, leaves(one, a))))
                    found.example = found.example or change.path
        else:
            if len(one[stream]) != len(other[stream]):
                found.since[stream] = min(len(one[stream]), len(other[stream]))
    return found


def _whole_list(path: str, found: Mapping[str, tuple[str, str]]) -> str:
    """A list of which one element is chance is chance as a whole; the parts of a tuple are told apart."""
    above, bracket, index = path.rpartition("[")
    in_list = bracket and index[:-1].isdigit() and found.get(above, ("",))[0] in ("list", "deque")
    return _whole_list(above, found) if in_list else path


def first_difference(one: Mapping[str, Any], other: Mapping[str, Any], quiet: Noise) -> Difference | None:
    """The first border event that differs beyond noise; None when there is none."""
    stop = quiet.since.get("borders", len(one["borders"]) + len(other["borders"]))
    for index, (a, b) in enumerate(zip(one["borders"][:stop], other["borders"][:stop], strict=False)):
        if a[1] != b[1] or a[0] != b[0]:
            return Difference(index, a[0], a[1], (_parted(one, a, other, b),))
        if one["leaves"][a[2]] == other["leaves"][b[2]]:
            continue
        kept = _beyond(_changes(leaves(one, a), leaves(other, b)), place_of(a), quiet)
        if kept:
            return Difference(index, a[0], a[1], tuple(kept))
    return None


def _parted(one: Mapping[str, Any], a: Event, other: Mapping[str, Any], b: Event) -> Change:
    """Two runs that take different ways: a return beside an exception, one call more or less."""
    if a[1] == b[1] and {a[0], b[0]} == {"exit", "raise"}:
        return Change(
            "result" if a[0] == "exit" else "exception", "outcome", _outcome(one, a), _outcome(other, b)
        )
    return Change("calls", "outcome", f"{a[0]} {a[1]}", f"{b[0]} {b[1]}")


def _outcome(recording: Mapping[str, Any], event: Event) -> str:
    found = leaves(recording, event)
    if event[0] == "raise":
        _, text = found.get("exception", ("", "an exception"))
        return f"raises {text}"
    return f"returns {shown(*found.get('result', ('', '')))}"


def seen(one: Mapping[str, Any], other: Mapping[str, Any], quiet: Noise) -> Seen:
    """Whether the test was handed a difference, held one at one of its lines, or was left with one."""
    result = Seen()
    stop = quiet.since.get("seen", len(one["seen"]) + len(other["seen"]))
    for a, b in zip(one["seen"][:stop], other["seen"][:stop], strict=False):
        if place_of(a) != place_of(b):
            result.line = result.line or (str(a[1]), Change("its lines", "outcome", str(a[1]), str(b[1])))
            break
        if one["leaves"][a[2]] == other["leaves"][b[2]]:
            continue
        kept = list(_beyond(_changes(leaves(one, a), leaves(other, b)), place_of(a), quiet))
        if kept and a[0] == "handed":
            result.handed = result.handed or kept[0]
        elif kept and a[0] in ("line", "held"):
            result.line = result.line or (str(a[1]), kept[0])
    ends = [next((e for e in reversed(r["seen"]) if e[0] == "end"), None) for r in (one, other)]
    if ends[0] is not None and ends[1] is not None:
        result.ended = True
        kept = list(_beyond(_changes(leaves(one, ends[0]), leaves(other, ends[1])), place_of(ends[0]), quiet))
        result.end = kept[0] if kept else None
    return result


def _beyond(changes: Iterable[Change], place: str, quiet: Noise) -> list[Change]:
    return [change for change in changes if not quiet.holds(place, change.path)]


def _changes(one: Mapping[str, tuple[str, str]], other: Mapping[str, tuple[str, str]]) -> Iterator[Change]:
    number = 0
    for path in [*one, *(path for path in other if path not in one)]:
        a, b = one.get(path), other.get(path)
        if a == b or (None in (a, b) and (a or b or "")[0] == "state"):
            # A library of random numbers that only one of the two runs had imported yet says nothing.
            continue
        arrays = a is not None and b is not None and a[0] == b[0] and a[0] in ARRAYS
        if arrays and a is not None and b is not None and a[1].rpartition("|")[0] == b[1].rpartition("|")[0]:
            # One of the two runs was asked to keep the bytes; that is no difference.
            continue
        number += 1
        if number > CHANGES_MAX:
            return
        if a is not None and b is not None and a[0] == b[0] and a[0] in ARRAYS:
            yield _array_change(path, a[0], a[1], b[1])
        else:
            kind = a[0] if a is not None else "absent"
            yield Change(path, kind, shown(*a) if a else "nothing", shown(*b) if b else "nothing")


def _array_change(path: str, kind: str, before: str, after: str) -> Change:
    one, other = array(before), array(after)
    if one.digest == other.digest and one.shape == other.shape and one.dtype == other.dtype:
        return Change(path, kind, f"memory {one.storage}", f"memory {other.storage}", (), path)
    at = differing(one, other)
    if at is None:
        return Change(path, kind, before, after, None, path)
    if one.shape != other.shape:
        grown = any(b > a for a, b in zip(one.shape, other.shape, strict=True))
        return Change(path, kind, one.whole(), other.whole(), tuple(at), path, other.shape if grown else None)
    more = f" and {len(at) - 1} more of {one.count}" if len(at) > 1 else ""
    told = one.shown(at[0]), other.shown(at[0])
    if told[0] == told[1]:
        told = one.shown(at[0], ".17g"), other.shown(at[0], ".17g")
    return Change(path, kind, *told, tuple(at), f"{path}{one.index(at[0])}{more}")


def shown(kind: str, text: str) -> str:
    """A leaf for a reader."""
    if kind in ARRAYS and text.count("|") == 4:
        one = array(text)
        return f"{one.whole()} of {one.shown(0)}" if one.raw and one.count == 1 else one.whole()
    if kind == "same":
        return f"the same object as {text}"
    if kind in ("of", "list", "tuple", "dict", "set") or text.startswith("of "):
        return f"{kind} {text}"
    return text or kind


def told(change: Change) -> tuple[str, str, str]:
    """(path, before, after) of a change for a reader."""
    before, after = change.before, change.after
    if change.kind in ARRAYS and change.at is None:
        before, after = shown(change.kind, before), shown(change.kind, after)
        if before == after:
            before, after = f"{before} of some values", f"{after} of others"
    return change.shown or change.path, before, after
