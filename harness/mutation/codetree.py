"""Two compiled code trees compared: can the edit be swapped in, and which lines did it change?

A code object's *own content* is everything it executes except nested code and line tables.
Defaults, decorators, bases and class attributes live in the enclosing code object, so an edit
there shows as a differing module or class body and needs no special case.
"""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from types import CodeType
from typing import Any

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


@dataclass(frozen=True)
class Pair:
    """An old code object and its new version; `changed` when its own content differs."""

    old: CodeType
    new: CodeType
    changed: bool
    outermost: bool


@dataclass(frozen=True)
class Plan:
    """How to judge an edit: the pairs to swap, or why it must be reimported."""

    pairs: tuple[Pair, ...]
    gone: tuple[CodeType, ...]
    why_reimport: str | None

    @property
    def nothing(self) -> bool:
        """True when no bytecode differs."""
        return not self.pairs and self.why_reimport is None


def compile_source(text: str, filename: str) -> CodeType:
    """Compile as an import would, with assertions, whatever flags this interpreter was started with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile(text, filename, "exec", dont_inherit=True, optimize=0)


def source_lines(text: str, keepends: bool = False) -> list[str]:
    """Lines as the compiler counts them: a form feed, or a line separator inside a string, ends none."""
    ended = _LINE.findall(text)
    return ended if keepends else [line.rstrip("\r\n") for line in ended]


def nested(code: CodeType) -> list[CodeType]:
    """The code objects that `code` holds as constants, in order."""
    return [const for const in code.co_consts if isinstance(const, CodeType)]


def walk(code: CodeType) -> Iterator[CodeType]:
    """Yield the code object and everything nested in it."""
    yield code
    for inner in nested(code):
        yield from walk(inner)


def is_function(code: CodeType) -> bool:
    """True for functions, lambdas, generators; False for module and class bodies."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED)


def make_plan(old: CodeType, new: CodeType) -> Plan:
    """Compare two versions of a module and decide between swap and reimport."""
    pairs: list[Pair] = []
    gone: list[CodeType] = []
    bodies: list[str] = []
    _compare(old, new, (), pairs, gone, bodies)
    why = f"the body of {bodies[0]} differs" if bodies else None
    return Plan(pairs=tuple(pairs), gone=tuple(gone), why_reimport=why)


def _compare(
    old: CodeType,
    new: CodeType,
    above: tuple[Pair, ...],
    pairs: list[Pair],
    gone: list[CodeType],
    bodies: list[str],
) -> bool:
    """Fill the plan's lists; returns True when anything at or below this code object differs."""
    changed = own_content(old) != own_content(new)
    inside_function = above + ((Pair(old, new, changed, not above),) if is_function(old) else ())
    if changed and not is_function(old):
        bodies.append(old.co_qualname)
    below = False
    matched = _match(old, new)
    for old_inner, new_inner in matched:
        below |= _compare(old_inner, new_inner, inside_function, pairs, gone, bodies)
    kept = {id(code) for code, _ in matched}
    gone += [code for inner in nested(old) if id(inner) not in kept for code in walk(inner)]
    if (changed or below) and is_function(old):
        pairs.append(inside_function[-1])
    return changed or below


def _match(old: CodeType, new: CodeType) -> list[tuple[CodeType, CodeType]]:
    """Pair nested code by name and position among equal names."""
    waiting: dict[str, list[CodeType]] = {}
    for inner in nested(new):
        waiting.setdefault(inner.co_name, []).append(inner)
    return [(i, waiting[i.co_name].pop(0)) for i in nested(old) if waiting.get(i.co_name)]


def own_content(code: CodeType) -> tuple[Any, ...]:
    """Everything that decides what the code does, nested code masked by its name."""
    return (
        code.co_name,
        code.co_code,
        tuple(_typed(const) for const in code.co_consts),
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        code.co_flags,
        code.co_exceptiontable,
    )


def _typed(const: Any) -> Any:
    # 1 == 1.0 == True and 0.0 == -0.0, so a constant is compared with its type and spelling.
    if isinstance(const, CodeType):
        return ("code", const.co_name)
    if isinstance(const, tuple):
        return tuple(_typed(item) for item in const)
    if isinstance(const, frozenset):
        return frozenset(_typed(item) for item in const)
    if isinstance(const, complex):
        return ("complex", _typed(const.real), _typed(const.imag))
    if isinstance(const, float) and const != const:
        # The sign of a NaN is a bit that `copysign` reads and `repr` does not show.
        return ("nan", math.copysign(1.0, const))
    return (type(const).__name__, repr(const))


def watched(original: str, mutated: str, old: CodeType, new: CodeType) -> tuple[tuple[str, int], ...]:
    """(qualified name, line) pairs of the new code; executing one means that the change was reached.

    Only code objects that differ count: the `def` line above a deleted first statement also runs at
    import and proves nothing. A replaced or inserted line counts itself, a deletion the line before
    it; a line without bytecode stands for the nearest one above it in the same function, and line 0
    for entering the function.
    """
    touched = _touched(source_lines(original), source_lines(mutated))
    lines = {id(code): {ln for *_, ln in code.co_lines() if ln} for code in walk(new)}
    changed = list(_changed_code(old, new))
    direct = {(c.co_qualname, ln) for c in changed for ln in _own_lines(c, lines[id(c)]) & touched}
    if not direct:
        direct = {(c.co_qualname, _nearest(touched, _own_lines(c, lines[id(c)]))) for c in changed}
    return tuple(sorted(direct))


def replaced(original: str, mutated: str, old: CodeType, new: CodeType) -> tuple[tuple[str, int], ...] | None:
    """(qualified name, line) pairs of the old code that an edit replaces or deletes.

    None when they do not say enough: something is inserted, or a line has no bytecode of its own.
    """
    before, after = source_lines(original), source_lines(mutated)
    opcodes = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    touched = {n + 1 for tag, low, high, _, _ in opcodes if tag != "equal" for n in range(low, high)}
    pairs = {
        (code.co_qualname, line)
        for code in _changed_code(new, old)
        for line in _own_lines(code, {ln for *_, ln in code.co_lines() if ln}) & touched
    }
    if any(tag == "insert" for tag, *_ in opcodes) or {line for _, line in pairs} != touched:
        return None
    return tuple(sorted(pairs))


def _own_lines(code: CodeType, lines: set[int]) -> set[int]:
    # The first line of a function is its def or decorator; no line event ever comes for it.
    return lines - {code.co_firstlineno} if is_function(code) and len(lines) > 1 else lines


def _changed_code(old: CodeType, new: CodeType) -> Iterator[CodeType]:
    differs = own_content(old) != own_content(new)
    matched = _match(old, new)
    if differs:
        yield new
        kept = {id(inner) for _, inner in matched}
        for inner in nested(new):
            if id(inner) not in kept:
                yield from walk(inner)
    for old_inner, new_inner in matched:
        yield from _changed_code(old_inner, new_inner)


def _touched(old: list[str], new: list[str]) -> set[int]:
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    matcher = SequenceMatcher(None, old[head : len(old) - tail], new[head : len(new) - tail], autojunk=False)
    lines: set[int] = set()
    for tag, _, _, low, high in matcher.get_opcodes():
        if tag == "delete":
            lines.add(head + low)
        elif tag != "equal":
            lines.update(range(head + low + 1, head + high + 1))
    return lines


def _nearest(touched: set[int], lines: set[int]) -> int:
    above = [line for line in lines if any(line <= t for t in touched)]
    return max(above, default=0)
