"""mutmut's operators behind one door; no other module knows that there is a mutmut.

Its internal function is used, so its version is pinned. Its own runner is not: that one writes a folder
whose name is fixed and is our catalogue's. What it skips is given to it all the same: a decorated function is
shown to it without its decorators.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from importlib import metadata
from types import SimpleNamespace
from typing import Any

from ..anchor import definitions, parse
from ..codetree import source_lines
from ..errors import InputRefused
from ..spans import Spans
from .changes import Change

VERSION = "3.8.1"
_HOW = f"install it with `pip install mutmut=={VERSION}`"


def demand() -> None:
    """Raise InputRefused with what to install unless the pinned version is there."""
    try:
        here = metadata.version("mutmut")
    except metadata.PackageNotFoundError:
        raise InputRefused(
            [f"the sweep borrows mutmut's operators, and mutmut is not installed; {_HOW}"]
        ) from None
    if here != VERSION:
        raise InputRefused([f"the sweep needs mutmut {VERSION}, here is mutmut {here}; {_HOW}"])


def changes(file: str, text: str) -> Iterator[Change]:
    """Every single change that mutmut's operators make inside functions of this text."""
    plain = undecorated(text)
    module, mutations = _mutations(file, plain)
    cst: Any = importlib.import_module("libcst")
    libcst_metadata: Any = importlib.import_module("libcst.metadata")
    wrapper = libcst_metadata.MetadataWrapper(module, unsafe_skip_copy=True)
    positions = wrapper.resolve(libcst_metadata.PositionProvider)
    spans = Spans(plain)
    for mutation in mutations:
        # mutmut leaves alone what stands outside functions: it runs once, at import.
        if not isinstance(mutation.contained_by_top_level_function, cst.FunctionDef):
            continue
        old, new = mutation.original_node, mutation.mutated_node
        operator = f"mutmut {type(old).__name__}"
        before = module.code_for_node(old)
        after = "" if isinstance(new, cst.RemovalSentinel) else module.code_for_node(new)
        place = _place(spans, positions.get(old), before)
        if place is not None:
            yield Change(operator, place, place + len(before), after, before.strip(), after.strip())
            continue
        low, high, made = _difference(plain, module.deep_replace(old, new).code)
        yield Change(operator, low, high, made, before.strip(), after.strip())


def _mutations(file: str, text: str) -> tuple[Any, Any]:
    # Its settings would be read from the project here, and be refused where there are none.
    pragmas: Any = importlib.import_module("mutmut.mutation.pragma_handling")
    pragmas.config = lambda: SimpleNamespace(do_not_mutate_patterns=[])
    operators: Any = importlib.import_module("mutmut.mutation.file_mutation")
    module, mutations, _, _ = operators.create_mutations(file, text)
    return module, mutations


def undecorated(text: str) -> str:
    """The text with blank lines for the decorators of functions, so that every offset stays what it is."""
    lines = source_lines(text, keepends=True)
    for _, node in definitions(parse(text)):
        if isinstance(node, ast.ClassDef):
            continue
        for decorator in node.decorator_list:
            for number in range(decorator.lineno - 1, decorator.end_lineno or decorator.lineno):
                body = lines[number].rstrip("\r\n")
                lines[number] = " " * len(body) + lines[number][len(body) :]
    return "".join(lines)


def _place(spans: Spans, position: Any, code: str) -> int | None:
    """The offset of a node's code; its position leaves out parentheses and spaces that belong to it."""
    if position is None or not code:
        return None
    low = _offset(spans, position.start)
    core = spans.text[low : _offset(spans, position.end)]
    at = low - code.find(core)
    found = core in code and at >= 0 and spans.text[at : at + len(code)] == code
    return at if found else None


def _offset(spans: Spans, at: Any) -> int:
    # libcst counts characters, not bytes.
    return spans.line_start(at.line) + int(at.column)


def _difference(old: str, new: str) -> tuple[int, int, str]:
    low, tail = 0, 0
    while low < min(len(old), len(new)) and old[low] == new[low]:
        low += 1
    while tail < min(len(old), len(new)) - low and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return low, len(old) - tail, new[low : len(new) - tail]
