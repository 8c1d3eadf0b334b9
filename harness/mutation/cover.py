"""Smallest sets of tests: that still kill every entry, and that still tell all entries apart.

Both are set covers. Tests that see less than another one does are dropped, then a search with bounds looks for the
smallest set, from a greedy one on; where its budget ends, the best one found is given, with a bound from below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

# Nodes of the search; a few seconds at most.
BUDGET = 20_000


@dataclass(frozen=True)
class Cover:
    """A set of tests, sorted, and a bound that no smaller set can beat."""

    tests: tuple[str, ...]
    at_least: int

    @property
    def exact(self) -> bool:
        """Whether no smaller set exists."""
        return len(self.tests) == self.at_least

    @property
    def told(self) -> str:
        """The size in words."""
        return (
            f"{len(self.tests)}"
            if self.exact
            else f"{len(self.tests)} (the best found; at least {self.at_least})"
        )


def killing(rows: Mapping[str, Sequence[str]]) -> Cover:
    """The smallest set of tests that kills every entry that any test kills."""
    columns: dict[str, int] = {}
    for bit, row in enumerate(row for row in rows.values() if row):
        for test in row:
            columns[test] = columns.get(test, 0) | 1 << bit
    return smallest(columns)


def distinguishing(rows: Mapping[str, Sequence[str]]) -> Cover:
    """The smallest set of tests whose reds name the entry: all entries differ, and each from no entry at all.

    Entries with equal rows cannot be told apart by any set; they count as one.
    """
    distinct = sorted({tuple(sorted(row)) for row in rows.values() if row})
    seen = [frozenset(row) for row in distinct] + [frozenset()]
    columns: dict[str, int] = {}
    for bit, (one, other) in enumerate(combinations(seen, 2)):
        for test in one ^ other:
            columns[test] = columns.get(test, 0) | 1 << bit
    return smallest(columns)


def smallest(columns: Mapping[str, int], budget: int = BUDGET) -> Cover:
    """The smallest set of names whose bits together are all bits that occur."""
    useful = _undominated(columns)
    everything = 0
    for bits in useful.values():
        everything |= bits
    if not everything:
        return Cover((), 0)
    search = _Search(useful, _greedy(useful, everything), budget)
    bound = search.needed(everything)
    search.extend([], everything)
    size = len(search.best)
    return Cover(tuple(sorted(search.best)), bound if search.budget < 0 else size)


def _undominated(columns: Mapping[str, int]) -> dict[str, int]:
    """One name per set of bits, without those whose bits another one has as well."""
    first: dict[int, str] = {}
    for name in sorted(columns):
        first.setdefault(columns[name], name)
    kept: list[int] = []
    for bits in sorted((bits for bits in first if bits), key=lambda bits: (-bits.bit_count(), first[bits])):
        if not any(bits & other == bits for other in kept):
            kept.append(bits)
    return {first[bits]: bits for bits in kept}


def _greedy(columns: Mapping[str, int], missing: int) -> list[str]:
    chosen = []
    while missing:
        name = max(columns, key=lambda each: ((columns[each] & missing).bit_count(), each))
        chosen.append(name)
        missing &= ~columns[name]
    return chosen


def _bits(number: int) -> list[int]:
    return [bit for bit in range(number.bit_length()) if number >> bit & 1]


class _Search:
    """Branch on a bit that few names have; cut where the bound cannot beat the best set so far."""

    def __init__(self, columns: Mapping[str, int], best: list[str], budget: int) -> None:
        self.columns, self.best, self.budget = columns, best, budget
        self.having: dict[int, list[str]] = {}
        for name, bits in columns.items():
            for bit in _bits(bits):
                self.having.setdefault(bit, []).append(name)
        self.rarest = sorted(self.having, key=lambda bit: (len(self.having[bit]), bit))

    def extend(self, chosen: list[str], missing: int) -> None:
        """Try every way to complete `chosen`; `best` is the smallest found."""
        self.budget -= 1
        if not missing:
            if len(chosen) < len(self.best):
                self.best = list(chosen)
            return
        if self.budget < 0 or len(chosen) + self.needed(missing) >= len(self.best):
            return
        bit = next(bit for bit in self.rarest if missing >> bit & 1)
        for name in sorted(self.having[bit], key=lambda n: (-(self.columns[n] & missing).bit_count(), n)):
            self.extend([*chosen, name], missing & ~self.columns[name])

    def needed(self, missing: int) -> int:
        """Names that are needed at least: bits of which no name has two, rarest first."""
        count = 0
        for bit in self.rarest:
            if missing >> bit & 1:
                count += 1
                for name in self.having[bit]:
                    missing &= ~self.columns[name]
                if not missing:
                    break
        return count
