"""Operators of our own, for code whose faults are in shapes, slices and shared memory.

    slice bound     `x[:n]` loses its end, or ends one later; so does its start
    index sign      `x[-1]` becomes `x[1]`, `x[2]` becomes `x[-2]`
    dimension       `sum(1)`, `dim=-1`: the dimension beside it
    no copy         `x.clone()`, `x.contiguous()`, `x.copy()` become `x`
    no floor        `max(a, b)` becomes one of the two; `x.clamp(min=0)` becomes `x`
    no statement    a call, an update or a store becomes `pass`

They look inside every function, decorated or not, and nowhere else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..anchor import definitions, parse
from ..spans import Spans
from .changes import Change

_COPIES = {"clone", "contiguous", "copy", "detach"}
_FLOORS = {"clamp", "clip", "clamp_min", "clamp_max", "clamp_", "relu"}
_EITHER = {"max", "min", "maximum", "minimum", "fmax", "fmin"}
_DIMENSIONS = {"dim", "axis", "dim0", "dim1", "start_dim", "end_dim"}
# Methods and functions whose dimension may come by position, and which argument it is in the method.
_POSITIONAL = {
    "sum": 0, "mean": 0, "prod": 0, "amax": 0, "amin": 0, "argmax": 0, "argmin": 0, "softmax": 0, "log_softmax": 0,
    "cumsum": 0, "cumprod": 0, "any": 0, "all": 0, "norm": 1, "std": 0, "var": 0, "unsqueeze": 0, "squeeze": 0,
    "select": 0, "narrow": 0, "index_select": 0, "gather": 0, "scatter": 0, "scatter_": 0, "chunk": 1, "split": 1,
    "flip": 0, "roll": 1, "size": 0, "unbind": 0, "repeat_interleave": 1, "flatten": 0, "unflatten": 0,
}  # fmt: skip
_SEQUENCE_FIRST = {"cat", "stack", "concatenate", "concat"}


def changes(text: str) -> Iterator[Change]:
    """Every single change of these operators in this text."""
    spans = Spans(text)
    done: set[ast.AST] = set()
    for _, definition in definitions(parse(text)):
        if isinstance(definition, ast.ClassDef):
            continue
        for statement in definition.body:
            for node in ast.walk(statement):
                if node not in done:
                    done.add(node)
                    yield from _of(spans, node)
        yield from _statements(spans, definition)


def _of(spans: Spans, node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Subscript):
        yield from _subscript(spans, node)
    elif isinstance(node, ast.Call):
        yield from _dimension(spans, node)
        yield from _dropped(spans, node)


def _change(
    spans: Spans, operator: str, node: ast.expr | ast.stmt, whole: ast.expr | ast.stmt, new: str
) -> Change:
    """`node` becomes `new` inside the expression `whole`, which is what a reader is shown."""
    (low, high), (first, last) = spans.span(node), spans.span(whole)
    after = spans.text[first:low] + new + spans.text[high:last]
    return Change(operator, low, high, new, spans.text[first:last], after)


def _code(spans: Spans, node: ast.expr) -> str:
    low, high = spans.span(node)
    return spans.text[low:high]


def _subscript(spans: Spans, node: ast.Subscript) -> Iterator[Change]:
    inner = node.slice
    for part in inner.elts if isinstance(inner, ast.Tuple) else [inner]:
        if not isinstance(part, ast.Slice):
            yield from _sign(spans, part, node)
            continue
        for bound in (part.lower, part.upper):
            if bound is not None:
                yield _change(spans, "slice bound dropped", bound, node, "")
                yield _change(spans, "slice bound shifted", bound, node, f"({_code(spans, bound)}) + 1")
                yield from _sign(spans, bound, node)


def _sign(spans: Spans, index: ast.expr, whole: ast.expr) -> Iterator[Change]:
    if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub):
        yield _change(spans, "index sign", index, whole, _code(spans, index.operand))
    elif isinstance(index, ast.Constant) and type(index.value) is int and index.value:
        yield _change(spans, "index sign", index, whole, f"-{_code(spans, index)}")


def _dimension(spans: Spans, call: ast.Call) -> Iterator[Change]:
    name = _name(call)
    found = [keyword.value for keyword in call.keywords if keyword.arg in _DIMENSIONS]
    if name in _SEQUENCE_FIRST and len(call.args) > 1:
        found.append(call.args[1])
    elif name in _POSITIONAL and isinstance(call.func, ast.Attribute):
        # `torch.sum(x, 1)` has the tensor first, `x.sum(1)` before the dot.
        at = _POSITIONAL[name] + (isinstance(call.func.value, ast.Name) and call.func.value.id in _MODULES)
        found += call.args[at : at + 1]
    for each in found:
        value = _integer(each)
        if value is not None:
            yield _change(spans, "dimension", each, call, str(_beside(value)))


_MODULES = {"torch", "np", "numpy", "F", "jnp"}


def _beside(dimension: int) -> int:
    """The next dimension towards the middle: 0 and 1, -1 and -2, else one outwards."""
    return {0: 1, 1: 0, -1: -2, -2: -1}.get(dimension, dimension - 1 if dimension > 0 else dimension + 1)


def _integer(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _integer(node.operand)
        return None if inner is None else -inner
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _name(call: ast.Call) -> str:
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _dropped(spans: Spans, call: ast.Call) -> Iterator[Change]:
    name, func = _name(call), call.func
    method = isinstance(func, ast.Attribute) and not (
        isinstance(func.value, ast.Name) and func.value.id in _MODULES
    )
    if isinstance(func, ast.Attribute) and method and name in (_COPIES | _FLOORS):
        operator = "no copy" if name in _COPIES else "no floor"
        yield _change(spans, operator, call, call, _code(spans, func.value))
    if name in _EITHER and not method and len(call.args) == 2 and not call.keywords:
        for argument in call.args:
            yield _change(spans, "no floor", call, call, f"({_code(spans, argument)})")


def _statements(
    spans: Spans, definition: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
) -> Iterator[Change]:
    """Statements without which the rest still runs; those of inner definitions are theirs."""
    todo: list[ast.AST] = list(definition.body)
    while todo:
        node = todo.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.stmt) and _is_droppable(node):
            yield _change(spans, "no statement", node, node, "pass")
        todo += [
            each
            for each in ast.iter_child_nodes(node)
            if isinstance(each, ast.stmt | ast.ExceptHandler | ast.match_case)
        ]


def _is_droppable(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant | ast.Yield | ast.YieldFrom)
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    return isinstance(node, ast.AugAssign | ast.Delete | ast.Raise | ast.Assert)
