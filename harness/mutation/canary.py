"""Faults made by the engine itself: traps, null forms, and canaries.

A canary proves that a fault in a file is seen by an assertion of a listed killer, without leaning on
the catalogue's own entries. Per file the candidates are, in a fixed order: each mutated function
returns (or yields) wrong data of the right type and shape; each mutated function leaves wrong array
state behind; then small slips (a number off by one, a comparison or an operator turned round). The
first that dies by a test assertion is the file's canary; if none does, the control has failed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .anchor import MODULE, definitions, first_line, parse
from .planted import TRAP, WRONG, WRONG_STATE
from .spans import Spans

CANDIDATES_MAX = 40
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_TURNED: dict[type[ast.AST], str] = {
    ast.Lt: ">=", ast.GtE: "<", ast.Gt: "<=", ast.LtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*",
}  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """A mutated text with the name of what was done and the function it was done to."""

    name: str
    function: str
    text: str


def functions(text: str, name: str) -> list[_Function]:
    """All definitions of a function name (getter and setter, overloads)."""
    return [node for found, node in definitions(parse(text)) if found == name and isinstance(node, _Function)]


def trap(text: str, name: str) -> str | None:
    """The text with a trap as the first statement of the function; None for a lambda or a module."""
    nodes, where = functions(text, name), Spans(text)
    if not nodes:
        return None
    changes = []
    for node in nodes:
        first = node.body[0]
        line = first_line(first) if isinstance(first, _Function | ast.ClassDef) else first.lineno
        at = where.at(line, first.col_offset)
        own_line = not where.text[:at].rpartition("\n")[2].strip()
        joint = "\n" + where.indent(line) if own_line else "; "
        changes.append((at, at, f"{TRAP}(){joint}"))
    return where.replaced(changes)


def commented(text: str) -> str:
    """A null form: only a comment is added."""
    return text + ("" if text.endswith("\n") or not text else "\n") + "# a comment changes nothing\n"


def renamed_local(text: str, name: str) -> str | None:
    """A null form: one local variable has another name; None when no variable is safe to rename."""
    nodes = functions(text, name)
    if len(nodes) != 1 or not _is_plain(nodes[0]):
        return None
    names = [n for n in ast.walk(nodes[0]) if isinstance(n, ast.Name)]
    parameters = {a.arg for a in ast.walk(nodes[0]) if isinstance(a, ast.arg)}
    stored = [n.id for n in names if isinstance(n.ctx, ast.Store) and n.id not in parameters]
    if not stored:
        return None
    where, chosen = Spans(text), stored[0]
    return where.replaced([(*where.span(n), f"{chosen}_renamed") for n in names if n.id == chosen])


def _is_plain(node: _Function) -> bool:
    """No inner scopes, no global names, nothing that looks at local names, no f-strings."""
    scopes = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
    shy = scopes | ast.Global | ast.Nonlocal | ast.JoinedStr | ast.ExceptHandler | ast.Match | ast.Import
    looks = {"locals", "eval", "exec", "vars", "dir"}
    comprehensions = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    return not any(
        isinstance(inner, shy | comprehensions) or (isinstance(inner, ast.Name) and inner.id in looks)
        for inner in ast.walk(node)
        if inner is not node
    )


def candidates(text: str, mutated: Sequence[str]) -> Iterator[Candidate]:
    """Canaries for one file, in a fixed order; `mutated` are the functions that the catalogue mutates."""
    others = [name for name, node in definitions(parse(text)) if isinstance(node, _Function)]
    names = list(dict.fromkeys([*(name for name in mutated if name != MODULE), *others]))
    made = 0
    for candidate in _all(text, names):
        if candidate.text == text or not _compiles(candidate.text):
            continue
        made += 1
        if made > CANDIDATES_MAX:
            return
        yield candidate


def _all(text: str, names: Sequence[str]) -> Iterator[Candidate]:
    for name in names:
        yield Candidate("wrong result", name, _wrong_results(text, name))
    for name in names:
        yield Candidate("wrong state", name, _wrong_state(text, name))
    for name in names:
        for node in functions(text, name):
            yield from _slips(text, name, node)
    yield from _slips(text, MODULE, parse(text))


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function without those of definitions inside it."""
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, _Function | ast.ClassDef | ast.Lambda):
            yield inner
            yield from _own(inner)


def _wrong_results(text: str, name: str) -> str:
    where, changes = Spans(text), []
    for node in functions(text, name):
        for inner in _own(node):
            if isinstance(inner, ast.Return | ast.Yield) and inner.value is not None:
                low, high = where.span(inner.value)
                changes.append((low, low, f"{WRONG}(("))
                changes.append((high, high, "))"))
    return where.replaced(changes)


def _wrong_state(text: str, name: str) -> str:
    where, changes = Spans(text), []
    for node in functions(text, name):
        arguments = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
        last = node.body[-1]
        if isinstance(last, ast.Return | ast.Raise) or not arguments or last.lineno == node.lineno:
            continue
        end = where.span(last)[1]
        calls = "; ".join(f"{WRONG_STATE}({argument})" for argument in arguments)
        changes.append((end, end, "\n" + where.indent(last.lineno) + calls))
    return where.replaced(changes)


def _slips(text: str, name: str, node: ast.AST) -> Iterator[Candidate]:
    where = Spans(text)
    for inner in _own(node):
        if isinstance(inner, ast.Constant) and type(inner.value) is int:
            yield Candidate(
                "number off by one", name, where.replaced([(*where.span(inner), f"({inner.value + 1})")])
            )
        elif isinstance(inner, ast.Compare) and len(inner.ops) == 1:
            yield from _turn(where, name, inner.left, inner.ops[0], inner.comparators[0])
        elif isinstance(inner, ast.BinOp):
            yield from _turn(where, name, inner.left, inner.op, inner.right)


def _turn(where: Spans, name: str, left: ast.expr, operator: ast.AST, right: ast.expr) -> Iterator[Candidate]:
    if type(operator) not in _TURNED:
        return
    low, high = where.span(left)[1], where.span(right)[0]
    between = where.text[low:high]
    if between.strip() and all(c in "+-*/%<>=! " for c in between):
        yield Candidate(
            "operator turned", name, where.replaced([(low, high, f" {_TURNED[type(operator)]} ")])
        )


def _compiles(text: str) -> bool:
    try:
        parse(text)
    except SyntaxError:
        return False
    return True
