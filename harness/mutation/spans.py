"""Offsets of syntax tree nodes in a text, and insertions that keep everything else as it is."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from .codetree import source_lines


class Spans:
    """A text whose nodes can be found and replaced."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = source_lines(text, keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def line_start(self, line: int) -> int:
        """Offset of the first character of a line, counted from 1."""
        return self._starts[line - 1]

    def indent(self, line: int) -> str:
        """The blanks that a line begins with, tabs as tabs: Python refuses a block that mixes them."""
        text = self._lines[line - 1]
        return text[: len(text) - len(text.lstrip(" \t\f"))]

    def at(self, line: int, column: int) -> int:
        """Offset of an AST position, whose columns count UTF-8 bytes."""
        prefix = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(prefix)

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Offsets of a node's first and last character."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def replaced(self, changes: Sequence[tuple[int, int, str]]) -> str:
        """The text with (low, high, new) changes made, which must not overlap."""
        text = self.text
        for low, high, new in sorted(changes, reverse=True):
            text = text[:low] + new + text[high:]
        return text
