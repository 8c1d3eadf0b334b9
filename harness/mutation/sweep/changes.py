"""One change of one text: what an operator did, where, and a name that survives edits elsewhere.

An id is made of file, scope, the expression and what became of it, never of a position, so an edit above it
moves nothing. Where one scope holds the same change twice, the second says so.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..anchor import MODULE, definitions, first_line, parse


@dataclass(frozen=True)
class Change:
    """text[low:high] becomes `new`; `before` and `after` are the whole expressions, for a reader."""

    operator: str
    low: int
    high: int
    new: str
    before: str
    after: str


@dataclass(frozen=True)
class Candidate:
    """A change with its place and its id."""

    id: str
    file: str
    scope: str
    line: int
    change: Change

    def apply(self, text: str) -> str:
        """The mutated text."""
        return text[: self.change.low] + self.change.new + text[self.change.high :]


def candidates(file: str, text: str, changes: Iterable[Change]) -> list[Candidate]:
    """Named candidates in text order; two operators that make the same text make one candidate."""
    found: dict[tuple[int, int, str], Change] = {}
    for change in changes:
        low, high, new = _trimmed(text, change)
        if text[low:high] != new:
            found.setdefault((low, high, new), change)
    seen: Counter[tuple[str, str, str]] = Counter()
    scopes = _scopes(text)
    result = []
    for (low, high, _), change in sorted(found.items(), key=lambda item: item[0]):
        line = text.count("\n", 0, low) + 1
        scope = _scope(scopes, line, text.count("\n", 0, max(high - 1, low)) + 1)
        key = (scope, " ".join(change.before.split()), " ".join(change.after.split()))
        seen[key] += 1
        made = "\0".join((file, *key, str(seen[key])))
        name = f"{file}:{scope}:{hashlib.sha256(made.encode()).hexdigest()[:8]}"
        result.append(Candidate(name, file, scope, line, change))
    return result


def _trimmed(text: str, change: Change) -> tuple[int, int, str]:
    """The change without what it leaves as it is."""
    low, high, new = change.low, change.high, change.new
    while low < high and new and text[low] == new[0]:
        low, new = low + 1, new[1:]
    while low < high and new and text[high - 1] == new[-1]:
        high, new = high - 1, new[:-1]
    return low, high, new


def _scopes(text: str) -> list[tuple[int, int, str]]:
    """(first line, last line, name) of every function."""
    return [
        (first_line(node), node.end_lineno or node.lineno, name)
        for name, node in definitions(parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def _scope(scopes: Sequence[tuple[int, int, str]], first: int, last: int) -> str:
    inside = [(low, name) for low, high, name in scopes if low <= first and last <= high]
    return max(inside)[1] if inside else MODULE
