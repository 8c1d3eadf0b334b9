"""Which edits can be swapped in, which must be reimported, and which lines count as reached."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from harness.mutation import live
from harness.mutation.child import null_plan
from harness.mutation.codetree import compile_source, make_plan, watched

SHAPES = {
    "function": ("def f(x):\n    return x + 1\n", "f(1)"),
    "method": ("class A:\n    def f(self, x):\n        return x + 1\n\n\na = A()\n", "a.f(1)"),
    "class method": ("class A:\n    @classmethod\n    def f(cls, x):\n        return x + 1\n", "A.f(1)"),
    "static method": ("class A:\n    @staticmethod\n    def f(x):\n        return x + 1\n", "A.f(1)"),
    "property": (
        "class A:\n    x = 1\n\n    @property\n    def f(self):\n        return self.x + 1\n",
        "A().f",
    ),
    "closure": ("def make():\n    def f(x):\n        return x + 1\n\n    return f\n\n\nf = make()\n", "f(1)"),
    "inner function": ("def f(x):\n    def g(y):\n        return y + 1\n\n    return g(x)\n", "f(1)"),
    "lambda": ("f = lambda x: x + 1\n", "f(1)"),
    "generator": ("def f(x):\n    yield x + 1\n", "next(f(1))"),
    "comprehension": ("def f(x):\n    return [y + 1 for y in [x]][0]\n", "f(1)"),
    "partial": (
        "import functools\n\n\ndef g(x):\n    return x + 1\n\n\nf = functools.partial(g, 1)\n",
        "f()",
    ),
    "wrapped": (
        "import functools\n\n\ndef keep(g):\n    @functools.wraps(g)\n    def w(*a):\n        return g(*a)\n\n"
        "    return w\n\n\n@keep\ndef f(x):\n    return x + 1\n",
        "f(1)",
    ),
}


def imported(text: str, path: Path) -> types.ModuleType:
    """The module as a collected process would hold it."""
    module = types.ModuleType("swapped")
    path.write_text(text)
    sys.modules["swapped"] = module
    exec(compile_source(text, str(path)), module.__dict__)
    return module


@pytest.mark.parametrize("shape", list(SHAPES))
def test_a_swap_takes_effect(shape: str, tmp_path: Path) -> None:
    text, call = SHAPES[shape]
    path = tmp_path.resolve() / "swapped.py"
    module = imported(text, path)
    old, new = compile_source(text, str(path)), compile_source(text.replace("+ 1", "+ 2"), str(path))
    index, done = live.Live({str(path)}, set()), live.Swapped()
    plan = make_plan(old, new)
    live.check(index, str(path), plan)
    live.swap(index, str(path), plan, done)
    assert done.functions >= 1
    assert eval(call, module.__dict__) == 3


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x=1", "x=2"),
        ("*, k=1", "*, k=2"),
        ("@keep\n", ""),
        ("LIMIT = 3", "LIMIT = 4"),
        ("class A:\n    n = 1", "class A:\n    n = 2"),
        ("class B(A)", "class B"),
        ("[y for y in (1, 2)]", "[y for y in (1, 3)]"),
    ],
)
def test_what_lives_outside_functions_is_reimported(before: str, after: str) -> None:
    text = (
        "def keep(g):\n    return g\n\n\nLIMIT = 3\nTABLE = [y for y in (1, 2)]\n\n\n@keep\ndef f(x=1, *, k=1):\n"
        "    return x\n\n\nclass A:\n    n = 1\n\n\nclass B(A):\n    pass\n"
    )
    assert before in text
    plan = make_plan(compile_source(text, "m.py"), compile_source(text.replace(before, after, 1), "m.py"))
    assert plan.why_reimport is not None


def test_a_living_closure_whose_free_variables_change_is_reimported(tmp_path: Path) -> None:
    text = "def make(a, b):\n    def f(x):\n        return x + a\n\n    return f\n\n\nf = make(1, 2)\n"
    path = tmp_path.resolve() / "swapped.py"
    module = imported(text, path)
    plan = make_plan(
        compile_source(text, str(path)), compile_source(text.replace("x + a", "x + a + b"), str(path))
    )
    with pytest.raises(live.SwapRefused, match="free variables"):
        live.check(live.Live({str(path)}, set()), str(path), plan)
    assert module.f(1) == 2


def test_a_function_that_nobody_holds_is_reimported(tmp_path: Path) -> None:
    text = "if False:\n    def f(x):\n        return x + 1\n"
    path = tmp_path.resolve() / "swapped.py"
    imported(text, path)
    plan = make_plan(compile_source(text, str(path)), compile_source(text.replace("+ 1", "+ 2"), str(path)))
    with pytest.raises(live.SwapRefused, match="no live function runs f"):
        live.check(live.Live({str(path)}, set()), str(path), plan)


def test_numbers_of_other_types_are_a_difference() -> None:
    for before, after in (("1", "1.0"), ("1", "True"), ("0.0", "-0.0"), ("(1, 2)", "(1, 2.0)")):
        old, new = (compile_source(f"def f():\n    return {value}\n", "m.py") for value in (before, after))
        assert not make_plan(old, new).nothing, (before, after)


def test_the_sign_of_a_nan_is_a_difference() -> None:
    # Folded at compile time into constants whose `repr` is the same; `copysign` tells them apart.
    for before, after in (("1e400 - 1e400", "-(1e400 - 1e400)"), ("0.0", "-0.0"), ("0j", "-0j")):
        pair = [compile_source(f"def f():\n    return {text}\n", "m.py") for text in (before, after)]
        assert not make_plan(*pair).nothing, after
    same = [compile_source("def f():\n    return 1e400 - 1e400\n", "m.py") for _ in range(2)]
    assert make_plan(*same).nothing


def test_a_comment_is_no_difference() -> None:
    old, new = (
        compile_source("def f():\n    return 1\n", "m.py"),
        compile_source("def f():\n    # 1\n    return 1\n", "m.py"),
    )
    assert make_plan(old, new).nothing


def test_a_null_plan_covers_the_function_its_holders_and_what_it_holds() -> None:
    text = SHAPES["inner function"][0]
    old, new = compile_source(text, "m.py"), compile_source(text, "m.py")
    inner = null_plan(old, new, "f.<locals>.g")
    assert [(pair.old.co_name, pair.outermost) for pair in inner.pairs] == [("g", False), ("f", True)]
    assert [pair.old.co_name for pair in null_plan(old, new, "f").pairs] == ["g", "f"]


TEXT = """def f(x):
    a = 1
    if x:
        b = 2
        c = 3
    return (
        a,
        x,
    )
"""


@pytest.mark.parametrize(
    ("find", "replace", "lines"),
    [
        ("b = 2", "b = 3", [4]),
        ("        c = 3\n", "", [4]),
        ("        b = 2\n", "", [3]),
        ("    a = 1\n", "    a = 1\n    a += 1\n", [3]),
        ("        x,\n", "        x + 1,\n", [8]),
        ("    a = 1\n", "", [0]),
    ],
)
def test_the_watched_lines_are_those_that_differ(find: str, replace: str, lines: list[int]) -> None:
    new = TEXT.replace(find, replace, 1)
    found = watched(TEXT, new, compile_source(TEXT, "m.py"), compile_source(new, "m.py"))
    assert [line for _, line in found] == lines


def test_a_changed_default_is_watched_where_it_is_evaluated() -> None:
    new = TEXT.replace("f(x)", "f(x=1)")
    assert watched(TEXT, new, compile_source(TEXT, "m.py"), compile_source(new, "m.py")) == (("<module>", 1),)
