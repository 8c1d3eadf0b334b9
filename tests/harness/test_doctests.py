"""A doctest's examples are assertions: unmet, they speak for the line of the example; raising, for what was raised."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import MultipleDoctestFailures

from harness.mutation.facts import leaves
from harness.mutation.serving import Project


def failure(root: Path, source: str, f: Any) -> BaseException:
    """What pytest's runner would raise for one example in calc.py."""
    globs, file = {"f": f}, str(root / "calc.py")
    test = doctest.DocTestParser().get_doctest(source, globs, "calc.f", file, 4)
    try:
        doctest.DebugRunner().run(test, clear_globs=False)
    except (doctest.DocTestFailure, doctest.UnexpectedException) as error:
        return error
    raise LookupError("the example was met")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(str(tmp_path), ["tests"], [], ["calc.py"])


def test_an_unmet_example_is_a_test_assertion_at_its_line(project: Project) -> None:
    error = failure(Path(project.root), ">>> f(1)\n3\n", lambda x: x)
    [leaf] = leaves(MultipleDoctestFailures([error]), project)
    assert (leaf["types"][0], leaf["frame"], leaf["at"]) == ("doctest.DocTestFailure", "test", "calc.py:5")
    assert leaf["message"] == "f(1) gives 1, should give 3"


def test_an_assertion_in_an_example_is_the_examples(project: Project) -> None:
    [leaf] = leaves(failure(Path(project.root), ">>> assert f(1) == 3\n", lambda x: x), project)
    assert (leaf["types"][0], leaf["frame"]) == ("builtins.AssertionError", "test")


def test_what_the_code_raises_is_the_codes(project: Project) -> None:
    calc = Path(project.root) / "calc.py"
    calc.write_text("def f(x):\n    assert x > 1\n")
    space: dict[str, Any] = {}
    exec(compile(calc.read_text(), str(calc), "exec"), space)
    [leaf] = leaves(failure(Path(project.root), ">>> f(1)\n", space["f"]), project)
    assert (leaf["types"][0], leaf["frame"], leaf["at"]) == ("builtins.AssertionError", "code", "calc.py:2")
