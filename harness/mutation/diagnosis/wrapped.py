"""A function's text with a hook around everything that it returns, yields or raises."""

from __future__ import annotations

import ast

from ..anchor import definitions

LEAVE, SWALLOW, _ERROR = "__rowproof_leave__", "__rowproof_swallow__", "__rowproof_error__"
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def wrapped(text: str, name: str, raising: bool) -> str | None:
    """The module's text for one poisoned run; None when there is no such definition.

    Lambdas have no names of their own, so all of them get the hook; it acts in the call that was asked for.
    """
    tree = ast.parse(text)
    if name.endswith("<lambda>"):
        lambdas = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
        for each in lambdas:
            each.body = _call(LEAVE, each.body)
        return ast.unparse(ast.fix_missing_locations(tree)) + "\n" if lambdas else None
    nodes = [node for found, node in definitions(tree) if found == name and isinstance(node, _Function)]
    lines = text.splitlines(keepends=True)
    # From the last to the first, so that what is written does not move what is still to come.
    for node in sorted(nodes, key=lambda node: -node.lineno):
        first = min(
            [node.body[0].lineno, *(each.lineno for each in getattr(node.body[0], "decorator_list", []))]
        )
        last = node.end_lineno or first
        inside = list(_own(node))
        yields = any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in inside)
        asynchronous = yields and isinstance(node, ast.AsyncFunctionDef)
        for inner in inside:
            bare = asynchronous and isinstance(inner, ast.Return) and inner.value is None
            if isinstance(inner, ast.Return | ast.Yield) and not bare:
                inner.value = _call(LEAVE, inner.value)
        if not yields:
            node.body.append(ast.Return(_call(LEAVE, None)))
        if raising and not yields:
            rescue = ast.Return(_call(SWALLOW, ast.Name(_ERROR, ast.Load())))
            handler = ast.ExceptHandler(ast.Name("BaseException", ast.Load()), _ERROR, [rescue])
            node.body = [ast.Try(node.body, [handler], [], [])]
        if lines[first - 1][: node.col_offset + 1].strip(" "):
            # A body on the line of its `def`, or indented by tabs.
            return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
        lines[first - 1 : last] = [_indented(node.body, node.col_offset // 4 + 1)]
    return "".join(lines) if nodes else None


def _indented(body: list[ast.stmt], depth: int) -> str:
    """A function's body as text. All other lines stay: a class whose lines move is another class to the compiler."""
    for _ in range(depth):
        body = [ast.If(ast.Constant(True), body, [])]
    text = ast.unparse(ast.fix_missing_locations(ast.Module(body, [])))
    return "".join(line + "\n" for line in text.split("\n")[depth:])


def _call(name: str, value: ast.expr | None) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), [value or ast.Constant(None)], [])


def _own(node: ast.AST) -> list[ast.AST]:
    """Nodes of a function without those of definitions inside it."""
    found: list[ast.AST] = []
    for inner in ast.iter_child_nodes(node):
        if not isinstance(inner, _Function | ast.ClassDef | ast.Lambda):
            found.append(inner)
            found += _own(inner)
    return found
