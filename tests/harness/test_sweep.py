"""The open sweep: which faults operators make, what they are called, and what becomes of each."""

from __future__ import annotations

import ast
import json
from importlib import metadata
from pathlib import Path

import pytest
from toys import command, run

from harness import mutate
from harness.mutation.sweep import borrowed, tensors
from harness.mutation.sweep.changes import candidates

CODE = """import functools

LIMIT = 3 + 1


def f(x):
    return x + 1


def g(table):
    return table["a"]


def h(x):
    return max(x, 0)


def never(x):
    return -x


@functools.lru_cache(maxsize=None)
def k(x):
    return x - 1
"""
TESTS = """import pytest

import calc


def test_f():
    assert calc.f(1) == 2


def test_g():
    assert calc.g({"a": 1}) == 1


def test_h():
    assert calc.h(3) == 3


def test_k():
    assert calc.k(1) == 0


@pytest.mark.skip
def test_skipped():
    assert calc.never(1) == -1
"""
# What each change must come to, worked out by hand from the tests above.
BY_HAND = {
    ("f", "x - 1"): "killed",
    ("f", "2"): "killed",
    ("g", '"A"'): "killed-by-error",
    ("g", '"XXaXX"'): "killed-by-error",
    ("h", "(0)"): "killed",
    ("h", "(x)"): "survived",
    ("h", "1"): "survived",
    ("h", "max(None, 0)"): "killed-by-error",
    ("h", "max(x, None)"): "killed-by-error",
    ("h", "max(0)"): "killed-by-error",
    ("h", "max(x, )"): "killed-by-error",
    ("never", "+x"): "not-reached",
    ("k", "x + 1"): "killed",
    ("k", "2"): "killed",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project without a catalogue: a sweep needs none."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "calc.py").write_text(CODE)
    (tmp_path / "tests" / "test_calc.py").write_text(TESTS)
    return tmp_path


def made(text: str) -> set[tuple[str, str]]:
    """(before, after) of every change by our own operators."""
    return {(change.before, change.after) for change in tensors.changes(text)}


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("y = x[a:b]", {("x[a:b]", each) for each in ("x[:b]", "x[a:]", "x[(a) + 1:b]", "x[a:(b) + 1]")}),
        ("y = x[..., -1]", {("x[..., -1]", "x[..., 1]")}),
        ("y = x[2, k]", {("x[2, k]", "x[-2, k]")}),
        ("y = x.sum(1)", {("x.sum(1)", "x.sum(0)")}),
        ("y = torch.softmax(x, dim=-1)", {("torch.softmax(x, dim=-1)", "torch.softmax(x, dim=-2)")}),
        ("y = torch.cat([x, x], 2)", {("torch.cat([x, x], 2)", "torch.cat([x, x], 1)")}),
        ("y = torch.sum(x, 0)", {("torch.sum(x, 0)", "torch.sum(x, 1)")}),
        ("y = x.clone()", {("x.clone()", "x")}),
        ("y = x.view(2).contiguous()", {("x.view(2).contiguous()", "x.view(2)")}),
        ("y = max(a, b)", {("max(a, b)", "(a)"), ("max(a, b)", "(b)")}),
        ("y = x.clamp(min=0)", {("x.clamp(min=0)", "x")}),
        ("self.n += 1", {("self.n += 1", "pass")}),
        ("self.n = 1", {("self.n = 1", "pass")}),
        ("check(x)", {("check(x)", "pass")}),
        ("raise ValueError", {("raise ValueError", "pass")}),
        # A local without its assignment is a NameError, a docstring does nothing, a word is no dimension.
        ("y = 1", set()),
        ('"words"', set()),
        ("y = x.size(name)", set()),
        ("y = table['a']", set()),
    ],
)
def test_our_operators_make_the_faults_of_tensor_code(line: str, changes: set[tuple[str, str]]) -> None:
    assert made(f"def f(self, x):\n    {line}\n") == changes
    assert (
        made(f"class C:\n    @torch.no_grad()\n    def f(self, x):\n        if x:\n            {line}\n")
        == changes
    )
    if not line.startswith("raise"):
        assert made(f"{line}\n") == set(), "nothing outside of functions"


def test_borrowed_operators_look_inside_decorated_functions_and_nowhere_else() -> None:
    found = {(c.before, c.after) for c in borrowed.changes("calc.py", CODE)}
    assert ("x - 1", "x + 1") in found
    assert not any("3" in before for before, _ in found)
    multi = "@wrap(\n    1 + 1,\n)\ndef f(x):\n    return (x\n            + 1)\n"
    changes = list(borrowed.changes("calc.py", multi))
    assert {multi[: c.low] + c.new + multi[c.high :] for c in changes} == {
        multi.replace("(x\n            + 1)", "(x - 1)"),
        multi.replace("+ 1)", "+ 2)"),
    }


def test_every_candidate_compiles_and_differs() -> None:
    text = (Path(__file__).parents[2] / "torch_impl" / "step.py").read_text()
    found = candidates("step.py", text, [*borrowed.changes("step.py", text), *tensors.changes(text)])
    assert len(found) > 300
    original = ast.dump(ast.parse(text))
    for each in found:
        assert ast.dump(ast.parse(each.apply(text))) != original, each.change
    assert len({each.apply(text) for each in found}) == len(found)


def test_an_id_is_of_scope_and_expression_and_not_of_a_position() -> None:
    def ids(text: str) -> list[str]:
        changes = [*borrowed.changes("calc.py", text), *tensors.changes(text)]
        return [each.id for each in candidates("calc.py", text, changes)]

    before = ids(CODE)
    assert len(set(before)) == len(before) == len(BY_HAND)
    assert ids("# more\n" + CODE.replace("def f(", "def new():\n    pass\n\n\ndef f(")) == before
    twice = "def f(x):\n    return (x + 1) * (x + 1)\n"
    assert len(set(ids(twice))) == len(ids(twice))


def test_every_candidate_ends_as_worked_out_by_hand(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run(project, monkeypatch, "sweep", "calc.py", "-j", "2")
    assert ran.code == 1, ran.text
    data = json.loads((project / "reports" / "sweep.json").read_text())
    assert {(c["scope"], c["after"]): c["verdict"] for c in data["candidates"]} == BY_HAND
    assert "killed 5 of 14 · killed-by-error 6 · survived 2 · not-reached 1" in ran.text
    assert "-    return max(x, 0)\n  +    return (x)" in ran.text
    assert "4 tests were tried, 1 skipped or xfailed ones were not" in ran.text
    survivor = next(c for c in data["candidates"] if c["after"] == "(x)")
    one = run(project, monkeypatch, "sweep", "calc.py", "--only", survivor["id"])
    # One candidate alone shows nothing of whether these tests can see a fault.
    assert (one.code, "no assertion killed anything" in one.text) == (4, True)
    few = run(project, monkeypatch, "sweep", "calc.py", "--tests", "tests/test_calc.py::test_f")
    assert "killed 2 of 14 · killed-by-error 0 · survived 0 · not-reached 12" in few.text


def test_an_assertion_is_found_behind_any_number_of_exceptions(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The cheap test dies by an exception in a line of its own, which is no assertion; the dear one asserts.
    (project / "calc.py").write_text("def f(x):\n    return x[:1]\n")
    (project / "tests" / "test_calc.py").write_text(
        "import time\n\nimport calc\n\n\ndef test_cheap():\n    (one,) = calc.f('abc')\n\n\n"
        "def test_dear():\n    time.sleep(0.2)\n    assert calc.f('abc') == 'a'\n"
    )
    assert run(project, monkeypatch, "sweep", "calc.py").code == 0
    data = json.loads((project / "reports" / "sweep.json").read_text())
    for each in data["candidates"]:
        assert (each["verdict"], each["test"]) == ("killed", "tests/test_calc.py::test_dear"), each


def test_a_list_judges_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run(project, monkeypatch, "sweep", ".", "--list")
    assert ran.code == 0
    assert "no floor: max(x, 0) -> (x)" in ran.text
    assert "14 candidates in 1 files" in ran.text
    assert not (project / "reports").exists()


def test_a_red_test_ends_a_sweep_before_it_begins(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (project / "tests" / "test_calc.py").open("a") as handle:
        handle.write("\n\ndef test_red():\n    assert calc.f(1) == 3\n")
    ran = run(project, monkeypatch, "sweep", "calc.py")
    assert ran.code == 4
    assert "1 of 6 tests should pass without any mutant: tests/test_calc.py::test_red" in ran.text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nowhere.py",), "nowhere.py: there is no such file or folder in this project"),
        (("..",), "..: there is no such file or folder in this project"),
        (("tests/test_calc.py",), "is a test; sweep the code that it looks at"),
        (("calc.py", "--tests", "nowhere"), "--tests nowhere: does not exist"),
        (("calc.py", "--only", "calc.py:f:0"), "there is no such candidate"),
    ],
)
def test_what_cannot_be_swept_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], sentence: str
) -> None:
    ran = command(mutate.app, project, monkeypatch, "sweep", *arguments)
    assert ran.code == 2, ran.text
    assert sentence in ran.text


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (None, "mutmut is not installed; install it with `pip install"),
        ("2.0", "needs mutmut 3.8.1, here is mutmut 2.0"),
    ],
)
def test_without_the_pinned_mutmut_it_says_what_to_install(
    project: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, sentence: str
) -> None:
    def found(name: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(borrowed.metadata, "version", found)
    ran = run(project, monkeypatch, "sweep", "calc.py", "--list")
    assert ran.code == 2
    assert sentence in ran.text
