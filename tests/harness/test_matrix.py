"""The kill matrix finds entries that no check tells apart, and claims about twins that are not true."""

from __future__ import annotations

from pathlib import Path

import pytest
from toys import lay, read, run

SECOND = """
[[mutant]]
id = "another"
file = "calc.py"
scope = "f"
find = "x + 1"
replace = "x + 3"
because = "it would be wrong"
origin = "own"
killed_by = ["tests/test_calc.py::test_f"]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two entries that one test sees in the same way."""
    root = lay(read("killed"), tmp_path / "project")
    with (root / "mutants" / "sums.toml").open("a") as handle:
        handle.write(SECOND)
    return root


def test_undeclared_twins_are_a_finding(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run(project, monkeypatch, "--matrix")
    assert ran.code == 1, ran.text
    assert "matrix of 2 entries: 1 groups that no check tells apart" in ran.text
    assert run(project, monkeypatch).code == 0


def test_declared_twins_are_none(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (project / "mutants" / "sums.toml").open("a") as handle:
        handle.write('twin_of = "the-fault"\n')
    ran = run(project, monkeypatch, "--matrix")
    assert ran.code == 0, ran.text


def test_twins_that_a_check_tells_apart_are_a_finding(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (project / "tests" / "test_calc.py").open("a") as handle:
        handle.write("\n\ndef test_far():\n    assert calc.f(1) < 4\n")
    catalogue = project / "mutants" / "sums.toml"
    listed = catalogue.read_text().replace('test_f"]', 'test_f", "tests/test_calc.py::test_far"]')
    catalogue.write_text(
        listed.replace('test_f", "tests/test_calc.py::test_far"]', 'test_f"]', 1) + 'twin_of = "the-fault"\n'
    )
    ran = run(project, monkeypatch, "--matrix")
    assert ran.code == 1, ran.text
    assert (
        "another: twin_of the-fault, but tests/test_calc.py::test_far tells the two apart; drop twin_of"
        in ran.text
    )
