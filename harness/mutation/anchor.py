"""Anchors: where an edit stands in a file, and the mutated text.

An anchor is the literal text `find`, which must occur exactly once inside `scope`. Scopes are
qualified names as Python writes them (`Class.method`, `f.<locals>.g`) or `<module>`.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from . import nearest
from .codetree import source_lines
from .errors import did_you_mean
from .toml_text import toml_string

MODULE = "<module>"
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Edit:
    """Replace `find` by `replace` inside `scope` of `file` (relative to the project root)."""

    file: str
    scope: str
    find: str
    replace: str


class AnchorLost(Exception):
    """The edit has no unique place in the text; the message says why and what to do."""


@lru_cache(maxsize=64)
def parse(text: str) -> ast.Module:
    """Parse once per text; the tree is shared and must not be changed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, _Definition]]:
    """Yield (qualified name, node) of every class and function in the tree."""
    for node in _statements(tree):
        if isinstance(node, _Definition):
            name = prefix + node.name
            yield name, node
            inner = "." if isinstance(node, ast.ClassDef) else ".<locals>."
            yield from definitions(node, name + inner)
        else:
            yield from definitions(node, prefix)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    # Definitions are statements, so expressions need no visit; they are most of a tree.
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, block, ())
        if isinstance(inner, list):
            yield from inner


def first_line(node: _Definition) -> int:
    """The first line of a definition, its decorators included."""
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


@lru_cache(maxsize=64)
def _table(text: str) -> tuple[tuple[str, bool, int, int], ...]:
    """(qualified name, is a function, first offset, end offset) of every definition, outer ones first."""
    starts = _line_starts(text)
    return tuple(
        (name, not isinstance(n, ast.ClassDef), starts[first_line(n) - 1], starts[n.end_lineno or n.lineno])
        for name, n in definitions(parse(text))
    )


def _spans(text: str, edit: Edit) -> list[tuple[int, int]]:
    if edit.scope == MODULE:
        return [(0, len(text))]
    spans = [(low, high) for name, _, low, high in _table(text) if name == edit.scope]
    if not spans:
        near = did_you_mean(edit.scope, [name for name, *_ in _table(text)])
        raise AnchorLost(f"there is no definition '{edit.scope}'{near}{_nearest(text, edit, ())}")
    return spans


def _line_starts(text: str) -> list[int]:
    starts = [0]
    for line in source_lines(text, keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def locate(text: str, edit: Edit) -> int:
    """Return the offset of the anchor; raises AnchorLost unless it occurs exactly once."""
    if not edit.find:
        raise AnchorLost("find is empty; give the text to be replaced")
    spans = _spans(text, edit)
    found = {at for low, high in spans for at in _occurrences(text, edit.find, low, high)}
    if len(found) == 1:
        return found.pop()
    if found:
        lines = ", ".join(str(_line(text, at)) for at in sorted(found))
        raise AnchorLost(
            f"the anchor occurs {len(found)} times inside '{edit.scope}' (lines {lines}), should be once; "
            f"lengthen find{_longer(text, edit, spans, sorted(found))}"
        )
    elsewhere = text.count(edit.find)
    hint = f"it occurs {elsewhere} times elsewhere in the file" if elsewhere else "it is nowhere in the file"
    raise AnchorLost(
        f"the anchor occurs 0 times inside '{edit.scope}', should be once; {hint}{_nearest(text, edit, spans)}"
    )


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _longer(text: str, edit: Edit, spans: Sequence[tuple[int, int]], found: Sequence[int]) -> str:
    """For each occurrence, the lines to paste that mean this one and no other."""
    told = ""
    for at in found:
        low, high = next((low, high) for low, high in spans if low <= at < high)
        longer = nearest.longer(text, at, edit.find, edit.replace, low, high)
        if longer is not None:
            told += f"; for line {_line(text, at)}:\n{_lines(find=longer[0], replace=longer[1])}"
    return told


def _nearest(text: str, edit: Edit, spans: Sequence[tuple[int, int]]) -> str:
    """The lines to paste where the anchor has moved or changed, if there is such a place."""
    scope = nearest.moved(
        text, edit.find, [(MODULE, 0, len(text)), *((n, lo, hi) for n, _, lo, hi in _table(text))]
    )
    if scope is not None:
        return f"; it now stands in line {_line(text, text.index(edit.find))}:\n{_lines(scope=scope)}"
    for low, high in spans:
        found = nearest.nearest(text[low:high], edit.find)
        if found is not None and all(text.count(found[0], *span) == (span == (low, high)) for span in spans):
            at = f"line {_line(text, low + found[1])}, {found[2]:.0%} alike"
            return f"; the nearest text there ({at}):\n{_lines(find=found[0])}"
    return ""


def _lines(**values: str) -> str:
    return "\n".join(f"    {key} = {toml_string(value)}" for key, value in values.items())


def _occurrences(text: str, find: str, low: int, high: int) -> Iterator[int]:
    at = text.find(find, low, high)
    while at >= 0:
        yield at
        at = text.find(find, at + 1, high)


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Return the text with all edits made; anchors are located in the original text."""
    placed = sorted((locate(text, edit), edit) for edit in edits)
    for (at, edit), (following, _) in zip(placed, placed[1:], strict=False):
        if at + len(edit.find) > following:
            raise AnchorLost("two edits of one mutant overlap; make them one")
    for at, edit in reversed(placed):
        text = text[:at] + edit.replace + text[at + len(edit.find) :]
    return text


def sources(root: Path, edits: Sequence[Edit]) -> dict[str, tuple[str, str]]:
    """Return {file: (original text, mutated text)} for the files that the edits touch."""
    by_file: dict[str, list[Edit]] = {}
    for edit in edits:
        by_file.setdefault(edit.file, []).append(edit)
    result = {}
    for file, of_file in by_file.items():
        text = _read(root / file)
        result[file] = (text, apply_edits(text, of_file))
    return result


def _read(path: Path) -> str:
    stat = path.stat()
    return _read_version(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=256)
def _read_version(path: Path, modified_ns: int, size: int) -> str:
    # newline="" keeps the bytes' own line ends, so that the mutated text differs in the edit only.
    with path.open(encoding="utf-8-sig", newline="") as handle:
        return handle.read()


def check_edits(root: Path, roots: Sequence[str], edits: Sequence[Edit], where: str) -> list[str]:
    """Return every problem of a mutant's edits: path, anchor, syntax, nothing changed."""
    misplaced = {edit.file: _check_path(root, roots, edit.file, where) for edit in edits}
    problems = [sentence for found in misplaced.values() for sentence in found]
    problems += [f"{where}: replace equals find" for edit in edits if edit.find == edit.replace]
    problems += [p for edit in edits if not misplaced[edit.file] for p in _check_anchor(root, edit, where)]
    if problems:
        return list(dict.fromkeys(problems))
    try:
        changed = sources(root, edits)
    except AnchorLost as error:
        return [f"{where}: {error}"]
    placed = {file: [edit for edit in edits if edit.file == file] for file in changed}
    return [
        p for file, (old, new) in changed.items() for p in _check_syntax(file, old, new, placed[file], where)
    ]


def check_texts(root: Path, roots: Sequence[str], file: str, old: str, new: str) -> list[str]:
    """Return every problem of a file that somebody edited by hand: its place, its syntax before and after."""
    problems = _check_path(root, roots, file, "edit")
    if problems:
        return problems
    try:
        parse(old)
    except SyntaxError as error:
        return [f"edit: {file}: the committed text is not valid Python: line {error.lineno}: {error.msg}"]
    return _check_syntax(file, old, new, (), "edit")


def _check_path(root: Path, roots: Sequence[str], file: str, where: str) -> list[str]:
    path = (root / file).resolve()
    allowed = [(root / name).resolve() for name in roots]
    if not any(path.is_relative_to(folder) for folder in allowed):
        return [f"{where}: file '{file}' lies outside the allowed roots ({', '.join(roots)})"]
    if not path.is_file():
        names = [p.relative_to(root.resolve()).as_posix() for a in allowed for p in a.rglob("*.py")]
        return [f"{where}: there is no file '{file}'{did_you_mean(file, names)}"]
    if path.suffix != ".py":
        return [f"{where}: file '{file}' is not Python source"]
    return []


def _check_anchor(root: Path, edit: Edit, where: str) -> list[str]:
    try:
        locate(_read(root / edit.file), edit)
    except AnchorLost as error:
        return [f"{where}: {edit.file}: {error}"]
    except SyntaxError as error:
        return [f"{where}: {edit.file}: is not valid Python: line {error.lineno}: {error.msg}"]
    except UnicodeDecodeError:
        return [f"{where}: {edit.file}: is not UTF-8 text"]
    return []


def _check_syntax(file: str, original: str, mutated: str, edits: Sequence[Edit], where: str) -> list[str]:
    """Only the function around the edit is compiled where that suffices: --check must stay fast."""
    for old, new in (*_around(original, mutated, edits), (original, mutated)):
        try:
            same = ast.dump(_compiled(old)) == ast.dump(_compiled(new))
        except (SyntaxError, ValueError) as error:
            # Cut out of its place, the function proves nothing wrong; the whole file does.
            problem = f"line {getattr(error, 'lineno', '?')}: {error}"
            continue
        if same:
            unchanged = "the syntax tree is unchanged (comment, spacing); nothing would be tested"
            return [f"{where}: {file}: {unchanged}"]
        return []
    return [f"{where}: {file}: the mutated text has a syntax error in {problem}"]


def _around(original: str, mutated: str, edits: Sequence[Edit]) -> Iterator[tuple[str, str]]:
    """The outermost function that holds a single edit, before and after it."""
    if len(edits) != 1:
        return
    at = locate(original, edits[0])
    end, grown = at + len(edits[0].find), len(mutated) - len(original)
    for _, is_function, low, high in _table(original):
        if is_function and low <= at and end <= high:
            yield f"if 1:\n{original[low:high]}", f"if 1:\n{mutated[low : high + grown]}"
            return


def _compiled(text: str) -> ast.Module:
    """Parse and compile, which finds more: a return outside a function, a repeated argument."""
    if text.startswith("if 1:\n") and not text.startswith("if 1:\n "):
        text = text.removeprefix("if 1:\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
        compile(text, "<mutant>", "exec", dont_inherit=True)
    return tree
