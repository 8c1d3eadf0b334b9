"""Shards merged are one run, byte for byte; a set of shards that is not exactly one run is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from toys import Ran, command, lay, read, run, run_gate

from harness import gate
from harness.mutation import evidence, shards
from harness.mutation.errors import InputRefused

CODE = """import functools


def f(x):
    step = 1
    return x + step


def g(x):
    return 2 * x


def h(x):
    return f(x) + g(x)
"""
TESTS = """import subprocess
import sys

import calc


def test_f():
    assert calc.f(1) == 2


def test_g():
    assert calc.g(3) == 6


def test_h():
    assert calc.h(2) == 7


def test_starts_a_process():
    assert subprocess.run([sys.executable, "-c", ""]).returncode == 0


def test_nothing():
    assert True
"""
ENTRIES = [
    ("f-two", "f", "step = 1", "step = 2", ["test_h", "test_f"], []),
    ("f-minus", "f", "x + step", "x - step", ["test_f"], ["test_starts_a_process"]),
    ("g-three", "g", "2 * x", "3 * x", ["test_g"], ["test_f", "test_nothing"]),
    ("g-plus", "g", "2 * x", "2 + x", ["test_g"], ["test_nothing", "test_starts_a_process"]),
    ("h-minus", "h", "f(x) + g(x)", "f(x) - g(x)", ["test_h"], ["test_f", "test_g"]),
]


def entry(name: str, scope: str, find: str, replace: str, killers: list[str], greens: list[str]) -> str:
    ids = [[f"tests/test_calc.py::{test}" for test in tests] for tests in (killers, greens)]
    return (
        f'[[mutant]]\nid = "{name}"\nfile = "calc.py"\nscope = "{scope}"\nfind = "{find}"\n'
        f'replace = "{replace}"\nbecause = "wrong"\norigin = "own"\n'
        f"killed_by = {json.dumps(ids[0])}\nmust_stay_green = {json.dumps(ids[1])}\n\n"
    )


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that was judged by one run and by three shards."""
    toy = read("killed")
    root = lay(toy, tmp_path_factory.mktemp("shards") / "project")
    (root / "calc.py").write_text(CODE)
    (root / "tests" / "test_calc.py").write_text(TESTS)
    (root / "mutants" / "sums.toml").write_text("".join(entry(*each) for each in ENTRIES))
    with pytest.MonkeyPatch.context() as monkeypatch:
        whole = run(root, monkeypatch, "-j", "2")
        assert whole.code == 0, whole.text
        (root / "reports" / "evidence.json").rename(root / "reports" / "one.json")
        for part in ("0/3", "1/3", "2/3"):
            ran = run(root, monkeypatch, "--shard", part, "-j", "1")
            assert ran.code == 0, ran.text
            assert f"part {part[0]} of 3; `gate merge` makes evidence of all 3 parts" in ran.text
    return root


@pytest.fixture
def project(judged: Path, tmp_path: Path) -> Path:
    """A fresh copy of it."""
    return Path(shutil.copytree(judged, tmp_path / "project"))


def merge(root: Path, monkeypatch: pytest.MonkeyPatch, *parts: str) -> Ran:
    return command(gate.app, root, monkeypatch, "merge", *(f"reports/{part}.json" for part in parts))


ALL = ("shard-2-of-3", "shard-0-of-3", "shard-1-of-3")


def test_three_shards_merged_are_the_evidence_of_one_run(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not (project / "reports" / "evidence.json").exists()
    judged = [json.loads((project / "reports" / f"{name}.json").read_text())["predicate"] for name in ALL]
    assert sorted(len(part["mutants"]) for part in judged) == [1, 2, 2]
    ran = merge(project, monkeypatch, *ALL)
    assert ran.code == 0, ran.text
    assert (project / "reports" / "evidence.json").read_bytes() == (
        project / "reports" / "one.json"
    ).read_bytes()
    assert "killed 5 of 5" in ran.text
    assert "killed 5 of 5" in (project / "reports" / "mutation.md").read_text()
    assert json.loads((project / "reports" / "run.json").read_text())["shards"] == 3
    assert run_gate(project, monkeypatch).code == 0


def edited(path: Path, change: Any, reseal: bool = True) -> None:
    data = json.loads(path.read_text())
    change(data)
    if reseal:
        data["seal"] = evidence.seal(data)
    path.write_bytes(evidence.canonical(data))


def foreign_versions(data: Any) -> None:
    data["predicate"]["versions"]["pytest"] = "1.0"


def foreign_file(data: Any) -> None:
    data["subject"][0]["digest"]["sha256"] = "0" * 64


def unfinished(data: Any) -> None:
    data["predicate"]["mutants"].pop()


def another_split(data: Any) -> None:
    data["predicate"]["mutants"].clear()
    data["predicate"]["catalogue"].clear()


def unreadable(data: Any) -> None:
    data["predicate"]["mutants"][0]["killers"] = 7


def survivor(data: Any) -> None:
    data["predicate"]["mutants"][0]["verdict"] = "survived"


def another_baseline(data: Any) -> None:
    for runs in data["predicate"]["baseline"].values():
        for seen in runs.values():
            seen["left"] = ["os.fork"]


@pytest.mark.parametrize(
    ("change", "reseal", "code", "sentence"),
    [
        (foreign_versions, True, 5, "shard-1-of-3.json is foreign: its versions differ"),
        (foreign_file, True, 5, "shard-1-of-3.json is foreign: calc.py differ from what"),
        (unfinished, False, 5, "was edited after the run (its seal does not match)"),
        (unfinished, True, 5, "shard-1-of-3.json is unfinished: it judged"),
        (another_split, True, 5, "entries are in no shard"),
        (unreadable, True, 5, "cannot be read"),
        (survivor, True, 5, "recorded as survived, but its observations say killed"),
        (another_baseline, True, 4, "two shards saw different things in baseline before"),
    ],
)
def test_a_changed_shard_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, change: Any, reseal: bool, code: int, sentence: str
) -> None:
    edited(project / "reports" / "shard-1-of-3.json", change, reseal)
    ran = merge(project, monkeypatch, "shard-0-of-3", "shard-1-of-3", "shard-2-of-3")
    assert ran.code == code, ran.text
    assert sentence in ran.text


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (ALL[:2], "shard 1 of 3 is missing; 2 of 3 were given"),
        ((*ALL, ALL[1]), "reports/shard-0-of-3.json is given twice"),
        ((*ALL, "copy"), "shard 0 of 3 is doubled: reports/shard-0-of-3.json and reports/copy.json"),
        ((*ALL[:2], "one"), "reports/one.json is no shard of a run"),
        ((*ALL[:2], "nowhere"), "there is no reports/nowhere.json"),
        ((*ALL[:2], "other"), "shards of different runs: reports/shard-2-of-3.json is one of 3"),
        ((*ALL[:2], "cut"), "reports/cut.json is truncated or is not evidence"),
    ],
)
def test_shards_that_are_not_exactly_one_run_are_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, parts: tuple[str, ...], sentence: str
) -> None:
    reports = project / "reports"
    shutil.copy(reports / "shard-0-of-3.json", reports / "copy.json")
    shutil.copy(reports / "shard-1-of-3.json", reports / "other.json")
    edited(reports / "other.json", lambda data: data["predicate"]["shard"].update(of=2))
    (reports / "cut.json").write_bytes((reports / "shard-1-of-3.json").read_bytes()[:-100])
    ran = merge(project, monkeypatch, *parts)
    assert ran.code == 5, ran.text
    assert sentence in ran.text
    assert "nothing was merged" in ran.text
    assert not (reports / "evidence.json").exists()


def test_shards_of_another_tree_are_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "calc.py").write_text(CODE + "\n\n")
    ran = merge(project, monkeypatch, *ALL)
    assert ran.code == 5
    assert "shard-2-of-3.json is foreign: calc.py differ from the tree here" in ran.text


def test_a_shard_that_is_called_evidence_does_not_pass_the_gate(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(project / "reports" / "shard-0-of-3.json", project / "reports" / "evidence.json")
    ran = run_gate(project, monkeypatch)
    assert ran.code in (4, 5)  # 4 where it lacks a control that another shard has made
    assert "the evidence is of a filtered run" in ran.text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--shard", "3/3"), "shards count from zero; 3 shards are 0/3 to 2/3"),
        (("--shard", "0/0"), "shards count from zero"),
        (("--shard", "-1/3"), "should be k/n, as 0/3 for the first of three"),
        (("--shard", "1of3"), "should be k/n"),
        (("--shard", "0/9"), "the catalogue has 5 entries, so some shards would judge nothing"),
        (("--shard", "0/3", "--only", "f-two"), "drop --only"),
        (("--shard", "0/3", "--isolation", "spawn"), "--shard and --isolation exclude each other"),
    ],
)
def test_a_shard_that_cannot_be_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], sentence: str
) -> None:
    ran = run(project, monkeypatch, *arguments)
    assert ran.code == 2
    assert sentence in ran.text


def test_a_split_deals_every_entry_once_and_evenly_by_cost() -> None:
    costs = {"a": 8.0, "b": 1.0, "c": 1.0, "d": 1.0, "e": 5.0}
    assert shards.split(costs, 2) == [{"a"}, {"b", "c", "d", "e"}]
    assert shards.split(dict.fromkeys("abcde", 1.0), 2) == [{"a", "c", "e"}, {"b", "d"}]
    for parts in (1, 2, 3, 5):
        dealt = shards.split(costs, parts)
        assert sorted(name for part in dealt for name in part) == sorted(costs)
        assert all(dealt)


def test_measured_costs_come_from_a_file_of_the_tree(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.mutation import catalogue
    from harness.mutation.settings import load_settings

    shutil.copy(project / "reports" / "run.json", project / "costs.json")
    text = (project / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text('[tool.rowproof]\ncosts = "costs.json"\n' + text)
    settings = load_settings(project)
    costs = shards.read_costs(project, settings)
    mutants = catalogue.load(project, settings).mutants
    assert sorted(costs) == sorted(mutant.id for mutant in mutants)
    assert all(value > 0 for value in costs.values())
    dear = {**dict.fromkeys(costs, 1.0), "h-minus": 9.0}
    assert [m.id for m in shards.pick(mutants, dear, shards.Shard(0, 2))] == ["h-minus"]
    (project / "costs.json").write_text("{}")
    with pytest.raises(InputRefused, match=r"copy reports/run.json of a whole run there"):
        shards.read_costs(project, settings)
