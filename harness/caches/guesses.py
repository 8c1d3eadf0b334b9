"""Other histories that explain a wrong state: each is replayed from a fresh start until one reads the same.

A recurrent state has no columns to point at. What it can be compared with are histories that could have gone wrong:
a neighbour's, one with a stale draft, one that lost its oldest token, one with padding in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.caches.labels import Labels, pad_ids
from harness.caches.protocol import Cache
from harness.caches.same import alike
from harness.rows.subject import Array

if TYPE_CHECKING:
    from harness.caches.play import CachePlay, Member

_LOST_MAX = 8
_PAST_MAX = 64
_OTHERS_MAX = 16
_REPLAYS_MAX = 300


def _tokens(n: int) -> str:
    return "token" if n == 1 else f"{n} tokens"


class Guesses:
    """Histories of one play, its own and those that could have gone wrong, with what they read."""

    def __init__(self, play: CachePlay, labels: Labels) -> None:
        self.play, self.labels = play, labels
        self._replays = 0  # calls of a fresh cache that were spent, of _REPLAYS_MAX
        self._walked: dict[tuple[int, ...], list[tuple[int, Mapping[str, Array]]]] = {}

    @property
    def spent(self) -> bool:
        """Whether no further history can be replayed."""
        return self._replays > _REPLAYS_MAX

    def explained(self, member: Member, array: str, got: Array, within: float) -> str | None:
        """How the history came about that reads like `got`, or None if none was found."""
        tried: set[tuple[int, ...]] = {tuple(member.history)}
        for sentence, history in self._guesses(member):
            if tuple(history) in tried:
                continue
            tried.add(tuple(history))
            read = self._read(history, array)
            if read is not None and alike(got, read, within):
                return sentence
        for history, read in self.pasts(member, array):
            if history and tuple(history) not in tried and alike(got, read, within):
                return f"if it stood where {self.labels.token(history[-1])} was the newest token"
        return None

    def _guesses(self, member: Member) -> Iterator[tuple[str, list[int]]]:
        """Other histories, each with how it would have come about; the likeliest first."""
        has, had, most = member.history, member.before, member.longest
        new = most[len(had) :] if most[: len(had)] == had else []
        others = self._others(member)
        dropped = most[len(has) :] if most[: len(has)] == has else []
        if dropped:
            yield f"if {self.labels.fed(dropped)}, rolled back, were still there", most
            for n in range(1, len(dropped)):
                left = self.labels.fed(dropped[:n])
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
                yield f"with {columns} in front of {self.labels.token(has[0])}", pad_ids(k) + has
                yield f"with {columns} behind {self.labels.token(has[-1])}", has + pad_ids(k)
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
            yield f"if {self.labels.token(has[-1])} had been taken twice", [*has, has[-1]]

    def _others(self, member: Member) -> list[Member]:
        """Neighbours that something may come from: those in the batch first, so many that a play of 128 rows ends."""
        play = self.play
        near = [each for each in play.order if each is not member]
        far = [each for each in play.members if each is not member and each not in near]
        return (near + far)[:_OTHERS_MAX]

    def pasts(self, member: Member, array: str) -> Iterator[tuple[list[int], Array]]:
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

    def _may_replay(self) -> bool:
        """Guesses cost calls of the cache: a play that goes wrong in every row and array must still end soon."""
        self._replays += 1
        return not self.spent

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
