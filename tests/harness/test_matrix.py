"""The kill matrix finds entries that no check tells apart, and claims about twins that are not true."""

from __future__ import annotations

import random
from functools import reduce
from itertools import combinations
from operator import or_
from pathlib import Path

import pytest
from toys import lay, read, run

from harness.mutation import cover
from harness.mutation.matrix import Matrix
from harness.report.matrix import by_check

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


def test_a_study_names_idle_checks_sole_killers_and_the_smallest_sets(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (project / "tests" / "test_calc.py").open("a") as handle:
        handle.write("\n\ndef test_far():\n    assert calc.f(1) < 4\n\n\ndef test_none():\n    calc.f(1)\n")
    assert run(project, monkeypatch, "study").code == 5
    ran = run(project, monkeypatch, "--matrix")
    assert ran.code == 0, ran.text
    again = run(project, monkeypatch, "study")
    assert again.code == 0, again.text
    text = (project / "reports" / "matrix.md").read_text()
    for line in (
        "only tests/test_calc.py::test_f kills the-fault",
        "tests that kill nothing: 1 of 3",
        "smallest set that still kills all 2 entries: 1 of 3 tests",
        "smallest set that still tells all entries apart: 2 of 3 tests",
    ):
        assert line in ran.text
        assert line in again.text
    assert "- `the-fault`: tests/test_calc.py::test_f" in text
    assert "## Tests that kill nothing: 1 of 3\n\n- tests/test_calc.py::test_none" in text
    (project / "reports" / "matrix.json").write_text('{"tests": []}')
    assert run(project, monkeypatch, "study").code == 5


def test_smallest_sets_are_smallest() -> None:
    made = random.Random(0)
    for _ in range(200):
        columns = {f"t{n}": made.getrandbits(made.randint(1, 7)) for n in range(made.randint(1, 8))}
        union = reduce(or_, columns.values())
        sizes = (k for k in range(9) for names in combinations(columns, k) if _union(columns, names) == union)
        found = cover.smallest(columns)
        assert _union(columns, found.tests) == union
        assert len(found.tests) == found.at_least == next(sizes)


def _union(columns: dict[str, int], names: tuple[str, ...]) -> int:
    return reduce(or_, (columns[name] for name in names), 0)


def test_a_search_that_runs_out_says_how_far_it_may_be_off() -> None:
    columns = {
        name: sum(1 << "abcdef".index(letter) for letter in name)
        for name in ("ab", "bc", "cd", "de", "ef", "fa", "abc")
    }
    assert cover.smallest(columns, budget=0).at_least <= cover.smallest(columns).at_least == 3
    assert cover.Cover(("a", "b", "c"), 2).told == "3 (the best found; at least 2)"


def test_sets_that_tell_entries_apart_also_tell_each_from_none() -> None:
    rows = {"a": ["x"], "b": ["x", "y"], "twin": ["x", "y"], "unseen": []}
    assert cover.killing(rows).tests == ("x",)
    assert cover.distinguishing(rows).tests == ("x", "y")


def test_tests_that_share_a_last_word_are_one_check() -> None:
    tests = ["t[a-width]", "t[b-width]", "t[a-tokens]", "t[b-tokens]", "t[a-2]", "other"]
    found = dict(by_check(Matrix(tests, {"one": ["t[a-width]"], "two": ["t[b-width]", "other"]})))
    assert found == {
        "width": "kills 2 of 2 entries with 2 tests, alone 1: one",
        "tokens": "kills nothing with 2 tests",
    }
