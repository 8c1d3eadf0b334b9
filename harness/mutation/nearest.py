"""A stale anchor answered: where the text most likely is now, as lines to paste into the entry.

A proposal is shown only if it is one: pasted into the entry, the anchor is found exactly once.
"""

from __future__ import annotations

import difflib
import io
import tokenize
from collections.abc import Iterator, Sequence

from .codetree import source_lines

ALIKE_MIN = 0.6
# Windows of lines that are looked at token by token; the comparison is quadratic.
_REFINED = 3


def moved(text: str, find: str, spans: Sequence[tuple[str, int, int]]) -> str | None:
    """The innermost scope of the one place in `text` where `find` stands; spans are (scope, low, high)."""
    at = text.find(find)
    if at < 0 or text.find(find, at + 1) >= 0:
        return None
    around = [(high - low, scope) for scope, low, high in spans if low <= at and at + len(find) <= high]
    return min(around)[1] if around else None


def nearest(text: str, find: str) -> tuple[str, int, float] | None:
    """The piece of `text` most like `find`, its offset, and how alike (0 to 1); it occurs once in `text`."""
    windows = sorted(_line_windows(text, find), key=lambda w: (-_alike(w[1].strip(), find.strip()), w[0]))
    found = [each for low, window in windows[:_REFINED] for each in _pieces(text, low, window, find)]
    good = [
        (alike, -at, piece) for piece, at, alike in found if alike >= ALIKE_MIN and text.count(piece) == 1
    ]
    if not good:
        return None
    alike, at, piece = max(good)
    return piece, -at, alike


def longer(text: str, at: int, find: str, replace: str, low: int, high: int) -> tuple[str, str] | None:
    """`find` at this offset with whole lines around it until it occurs once in text[low:high], and its replacement."""
    head, tail = text.rfind("\n", 0, at) + 1, _line_end(text, at + len(find))
    while True:
        found = text[head:tail]
        if text.count(found, low, high) == 1:
            return found, text[head:at] + replace + text[at + len(find) : tail]
        if head <= low and tail >= high:
            return None
        # One line more on either side, as far as the scope goes; first below, where the difference often is.
        if tail < high:
            tail = _line_end(text, tail + 1)
        elif head > low:
            head = text.rfind("\n", 0, head - 1) + 1


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _alike(one: str, other: str) -> float:
    matcher = difflib.SequenceMatcher(None, one, other, autojunk=False)
    # Both bounds are cheap, and most candidates end here.
    if matcher.real_quick_ratio() < ALIKE_MIN or matcher.quick_ratio() < ALIKE_MIN:
        return 0.0
    # Of the longer one: else a prefix, all of which matches, would beat the whole that differs in one token.
    return sum(block.size for block in matcher.get_matching_blocks()) / max(len(one), len(other))


def _line_windows(text: str, find: str) -> Iterator[tuple[int, str]]:
    """(offset, text) of every run of whole lines that is about as long as `find`."""
    lines = source_lines(text, keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    tall = len(find.splitlines())
    for first in range(len(lines)):
        for count in {max(tall - 1, 1), tall, tall + 1}:
            if first + count <= len(lines):
                yield starts[first], text[starts[first] : starts[first + count]]


def _pieces(text: str, low: int, window: str, find: str) -> Iterator[tuple[str, int, float]]:
    """The window itself, and the parts of it that begin and end at tokens, when `find` is a part of lines."""
    body = window.strip("\n")
    at = low + window.index(body) if body else low
    if find.endswith("\n"):
        body = text[at : _line_end(text, at + len(body)) + 1]
    yield body, at, _alike(body, find)
    if "\n" in find:
        yield from _trimmed(body, at, find)
        return
    marks = _boundaries(body)
    for one, start in enumerate(marks):
        for end in marks[one + 1 :]:
            piece = body[start:end]
            if piece == piece.strip() and ALIKE_MIN * len(find) <= len(piece) <= len(find) / ALIKE_MIN:
                yield piece, at + start, _alike(piece, find)


def _trimmed(body: str, at: int, find: str) -> Iterator[tuple[str, int, float]]:
    """Several lines whose first begins after its indent, as anchors often do."""
    inner = body.lstrip(" ")
    yield inner, at + len(body) - len(inner), _alike(inner, find)


def _boundaries(line: str) -> list[int]:
    """Offsets at which tokens of one line begin or end; every word boundary when it is no complete code."""
    marks: set[int] = set()
    try:
        for token in tokenize.generate_tokens(io.StringIO(line.strip()).readline):
            marks |= {token.start[1], token.end[1]} if token.start[0] == 1 else set()
    except (tokenize.TokenError, IndentationError, SyntaxError):
        marks |= {n for n, c in enumerate(line.strip() + " ") if not c.isalnum() and c != "_"}
        marks |= {n + 1 for n in marks}
    shift = len(line) - len(line.lstrip())
    return sorted(mark + shift for mark in marks if mark <= len(line.strip()))
