"""What a wrong state holds, in tokens: whose entry it is, and which other history explains it.

A recurrent state has no columns to point at. So histories that could have gone wrong are replayed from a fresh
start (a neighbour's, one with a stale draft, one that lost its oldest token) until one reads like the wrong state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from harness.caches.protocol import Axis, Cache
from harness.rows.events import ABSENT, STRIDE, origin
from harness.rows.subject import Array

if TYPE_CHECKING:
    from harness.caches.play import CachePlay, Member

PADDING = (1 << 20) - 1
_LOST_MAX = 8
_PAST_MAX = 64
_OTHERS_MAX = 16
_EXPLAINED_MAX = 12
_REPLAYS_MAX = 300


def pad_ids(n: int) -> list[int]:
    """The ids of n columns of padding: events of a sequence that nobody opens."""
    return [PADDING * STRIDE + event + 1 for event in range(n)]


def tolerance(want: Array, exact: bool) -> float:
    """How far apart two equal numbers may lie: 4096 roundings of the array's largest value; 0 where nothing is computed."""
    if exact or want.dtype.kind not in "fc" or not want.size:
        return 0.0
    scale = float(np.max(np.abs(want), initial=0.0, where=np.isfinite(want)))
    return 4096 * float(np.finfo(want.dtype).eps) / 2 * scale


def _apart(got: Array, want: Array) -> Array:
    """The distances of two arrays of one shape, of complex numbers in their plane."""
    wide = np.complex128 if "c" in (got.dtype.kind, want.dtype.kind) else np.float64
    with np.errstate(invalid="ignore"):
        distances: Array = np.abs(got.astype(wide) - want.astype(wide))
    return distances


def wrong(got: Array, want: Array, within: float) -> Array:
    """Where two arrays of one shape differ; infinity equals itself, NaN is never right."""
    off: Array = ~((_apart(got, want) <= within) | (got == want))
    return off


def by_entry(off: Array) -> Array:
    """Which entries of the first axis are true anywhere."""
    result: Array = np.asarray(off.any(axis=tuple(range(1, off.ndim))))
    return result


def alike(got: Array, want: Array, within: float) -> bool:
    """Equal in shape and, within a tolerance, in every element."""
    if got.dtype == want.dtype and got.dtype.kind in "iu":
        return np.array_equal(got, want)
    return got.shape == want.shape and not wrong(got, want, within).any()


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


def _tokens(n: int) -> str:
    return "token" if n == 1 else f"{n} tokens"


_NOT_EXPLAINED = (
    f"not explained: the first {_EXPLAINED_MAX} differences of a play are, with all that they are compared to"
)


class Told:
    """Puts the differences of one play into words."""

    def __init__(self, play: CachePlay) -> None:
        self.play = play
        self._explained_so_far = 0
        self._replays = 0  # calls of a fresh cache that were spent on guesses, of _REPLAYS_MAX
        self._walked: dict[tuple[int, ...], list[tuple[int, Mapping[str, Array]]]] = {}

    def difference(
        self, member: Member, array: str, sides: Mapping[str, Array], within: float
    ) -> tuple[str, ...]:
        """Sentences about the first two of `sides` (name -> array, e.g. "batch holds"), which differ."""
        (name, got), (other, want) = list(sides.items())[:2]
        if self._explained_so_far >= _EXPLAINED_MAX or self._replays > _REPLAYS_MAX:
            return (f"{name} {list(got.shape)}   {other} {list(want.shape)}", _NOT_EXPLAINED)
        self._explained_so_far += 1
        axis = self.play.cache.axes.get(array, "state")
        if self.play.cache.stream == "ids" and got.dtype.kind == "i":
            return (self._in_ids(sides) if axis != "state" else _in_numbers(sides),)
        said = [self._where(member, array, axis, sides, within)]
        if got.shape == want.shape and np.isnan(got).any() and not np.isnan(want).any():
            said.append(f"{int(np.isnan(got).sum())} of {got.size} numbers are NaN")
        explained = self._explained(member, array, got, within)
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
            f"{has.split()[0]} has {self.tokens(found)}, which {lacks.split()[0]} has not"
            for has, lacks, found in ((name, other, more), (other, name, fewer))
            if found
        ]
        what = "; ".join(said) or f"{name} {self.tokens(ours)}, {other} {self.tokens(right)}"
        return f"entry {apart[0]} of {len(want)}: {what}   ({len(apart)} of {len(want)} entries differ)"

    def _where(
        self, member: Member, array: str, axis: Axis, sides: Mapping[str, Array], within: float
    ) -> str:
        (name, got), (other, want) = list(sides.items())[:2]
        if got.shape != want.shape:
            return f"{name} {list(got.shape)}   {other} {list(want.shape)}" + self._counted(axis, got, want)
        off = wrong(got, want, within)
        if axis == "state" or got.ndim == 0:
            apart = _apart(got, want)
            most = float(np.max(apart, initial=0.0))
            return f"{int(off.sum())} of {off.size} numbers differ, by {most:.3g} at most; {within:.1g} is rounding"
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
        for history, read in self._pasts(member, array):
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
            return self.token(history[place]) if place >= 0 else "an entry before the first token"
        ratio = self.play.fixture.ratio
        made_of = history[k * ratio : (k + 1) * ratio]
        return f"block {k} of {self.tokens(made_of)}"

    def token(self, token: int) -> str:
        """r1:t37, or padding; and whether its sequence no longer holds it."""
        sequence = origin(token)[0]
        if sequence == PADDING:
            return "padding"
        label = self.play.ledger.label(token)
        held = any(
            token in member.history for member in self.play.members
        )  # a fork holds what its origin dropped
        return label if held else f"{label}, rolled back"

    def tokens(self, ids: Sequence[int]) -> str:
        """A few tokens as they are, many by the first and the last."""
        return self._joined([self.token(token) for token in ids])

    def _labels(self, ids: Sequence[int]) -> str:
        return self._joined([self.play.ledger.label(token) for token in ids])

    def _joined(self, labels: Sequence[str]) -> str:
        return ", ".join(labels) if len(labels) <= 3 else f"{labels[0]} .. {labels[-1]}"

    def _others(self, member: Member) -> list[Member]:
        """Neighbours that something may come from: those in the batch first, so many that a play of 128 rows ends."""
        play = self.play
        near = [each for each in play.order if each is not member]
        far = [each for each in play.members if each is not member and each not in near]
        return (near + far)[:_OTHERS_MAX]

    def _pasts(self, member: Member, array: str) -> Iterator[tuple[list[int], Array]]:
        """Every history that any sequence went through, its own and the newest first, with what it reads."""
        others = self._others(member)
        for each in [member, *others]:
            for history in (each.longest, each.history):
                for n, read in self._past(tuple(history)):
                    if array in read:
                        yield history[:n], read[array]
        padded = pad_ids(self.play.padding) + member.history
        yield from ((padded[:n], read[array]) for n, read in self._past(tuple(padded)) if array in read)

    def _past(self, history: tuple[int, ...]) -> list[tuple[int, Mapping[str, Array]]]:
        """What the prefixes of a history read, the longest first: one fresh start, fed token by token."""
        if history not in self._walked:
            first = max(len(history) - _PAST_MAX, 0)
            self._walked[history] = list(self._walk(history, first))[::-1]
        return self._walked[history]

    def _walk(self, history: Sequence[int], first: int) -> Iterator[tuple[int, Mapping[str, Array]]]:
        try:
            cache = self.play.fresh(history[:first])
            yield first, self._copied(cache)
            for n in range(first, len(history)):
                if not self._may_replay():
                    return
                self.play.give(cache, [[history[n]]], [1])
                yield n + 1, self._copied(cache)
        except Exception:  # noqa: BLE001 (a history that was only guessed)
            return

    def _copied(self, cache: Cache) -> Mapping[str, Array]:
        return {name: np.array(array) for name, array in cache.read(0).items()}

    def _explained(self, member: Member, array: str, got: Array, within: float) -> str | None:
        tried: set[tuple[int, ...]] = {tuple(member.history)}
        for sentence, history in self._guesses(member):
            if tuple(history) in tried:
                continue
            tried.add(tuple(history))
            read = self._read(history, array)
            if read is not None and alike(got, read, within):
                return sentence
        for history, read in self._pasts(member, array):
            if history and tuple(history) not in tried and alike(got, read, within):
                return f"if it stood where {self.token(history[-1])} was the newest token"
        return None

    def _guesses(self, member: Member) -> Iterator[tuple[str, list[int]]]:
        """Other histories, each with how it would have come about; the likeliest first."""
        has, had, most = member.history, member.before, member.longest
        new = most[len(had) :] if most[: len(had)] == had else []
        others = self._others(member)
        dropped = most[len(has) :] if most[: len(has)] == has else []
        if dropped:
            yield f"if {self._labels(dropped)}, rolled back, were still there", most
            for n in range(1, len(dropped)):
                left = self._labels(dropped[:n])
                yield f"if {left}, rolled back, were still there", most[: len(has) + n]
            yield (
                f"if its oldest {_tokens(len(dropped))} had been dropped instead of its newest",
                most[len(dropped) :],
            )
        yield "if nothing had ever been dropped", member.ever
        if self.play.rolling_back:
            for n in range(1, min(_LOST_MAX, len(most)) + 1):
                yield (
                    f"if its newest {_tokens(n)} had been dropped, not {len(dropped)}",
                    most[: len(most) - n],
                )
        yield "before this step", had
        for each in others:
            yield f"if it were r{each.number}{self._in_common(member, each)}", each.history
            yield f"if it were r{each.number} before this step", each.before
            if each.longest != each.history:
                yield f"if it were r{each.number} with its rolled-back drafts", each.longest
        if self.play.padding and has:
            for k in dict.fromkeys([member.padded, *range(1, self.play.padding + 1)]):
                columns = f"{k} column{'' if k == 1 else 's'} of padding"
                yield f"with {columns} in front of {self.token(has[0])}", pad_ids(k) + has
                yield f"with {columns} behind {self.token(has[-1])}", has + pad_ids(k)
                yield f"if it had taken {columns} for tokens", had + pad_ids(k) + new
        for n in range(len(new)):
            yield f"if it had taken {n} of its {len(new)} new tokens", had + new[:n]
        for n in range(1, min(_LOST_MAX, len(has))):
            yield f"without its oldest {_tokens(n)}", has[n:]
        for each in others:
            theirs = each.longest[len(each.before) :]
            yield f"if it had taken r{each.number}'s new tokens", had + theirs
            yield f"if r{each.number}'s state had gone on with its tokens", each.before + new
            yield f"if it went on from r{each.number}", each.history + new
        if has:
            yield f"if {self.token(has[-1])} had been taken twice", [*has, has[-1]]

    def _may_replay(self) -> bool:
        """Guesses cost calls of the cache: a play that goes wrong in every row and array must still end soon."""
        self._replays += 1
        return self._replays <= _REPLAYS_MAX

    def _in_common(self, member: Member, other: Member) -> str:
        """Two rows with one past often share its memory."""
        for one, origin_ in ((member, other), (other, member)):
            if one.fork and one.fork[0] == origin_.number:
                return f", with which it has {one.fork[1]} tokens in common (is their memory shared?)"
        return ""

    def _read(self, history: Sequence[int], array: str) -> Array | None:
        """What a fresh start with this history reads; None if the cache cannot be given it."""
        if not self._may_replay():
            return None
        try:
            return self.play.comparison.fresh_read(history).get(array)
        except Exception:  # noqa: BLE001 (a history that was only guessed)
            return None
