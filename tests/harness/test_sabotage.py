"""For each promise of the engine there is a fault that breaks it, and a toy project's test that sees it."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toys import REPOSITORY, Ran, complaints, lay, read, run, run_gate, running_in, snapshot, start

from harness.mutation import evidence

DATA = tomllib.loads(Path(__file__).with_name("sabotage.toml").read_text())
TABLE, GATE = DATA["sabotage"], DATA["gate"]
LONGEST_S = 120


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the engine to be broken, one fault at a time."""
    folder = tmp_path_factory.mktemp("engine")
    shutil.copytree(REPOSITORY / "harness", folder / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def broken(engine: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The copy with this case's fault in it, mended afterwards."""
    case = request.param
    path = engine / "harness" / "mutation" / case["file"]
    sound = path.read_text()
    assert sound.count(case["find"]) == 1, f"{case['file']}: the fault's anchor should occur exactly once"
    path.write_text(sound.replace(case["find"], case["replace"]))
    yield engine
    path.write_text(sound)


def plant_stale_bytecode(root: Path) -> None:
    """Bytecode of another source that Python would believe: same size, same time."""
    source = root / "calc.py"
    right, stat = source.read_text(), source.stat()
    source.write_text(right.replace("x + 1", "x + 9"))
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    py_compile.compile(str(source))
    source.write_text(right)
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def run_with(engine: Path, root: Path) -> Ran:
    """Run in a process of its own, since a broken engine may do anything."""
    process = start(root, engine, stdout=subprocess.PIPE)
    text, _ = process.communicate(timeout=LONGEST_S)
    return Ran(process.returncode, text, root)


@pytest.mark.parametrize(
    ("case", "broken"), [(c, c) for c in TABLE], ids=[c["promise"] for c in TABLE], indirect=["broken"]
)
def test_breaking_a_promise_turns_a_toy_red(case: dict[str, Any], broken: Path, tmp_path: Path) -> None:
    toy = read(case["toy"])
    root = lay(toy, tmp_path / "project")
    if case.get("stale_bytecode"):
        plant_stale_bytecode(root)
    before = snapshot(root)
    ran = run_with(broken, root)
    seen = complaints(toy, ran, before)
    for orphan in running_in(root):
        os.kill(orphan, signal.SIGKILL)
    assert seen, ran.text
    assert ran.code == case.get("exit", ran.code), ran.text


def _spoil(root: Path, how: str) -> None:
    """Make a judged project one that the gate must refuse; evidence is sealed again unless that is the point."""
    if how == "a file was edited":
        test = root / "tests" / "test_calc.py"
        test.write_text(test.read_text() + "\n")
        return
    if how == "a file was added":
        (root / "more.py").write_text("")
        return
    path = root / "reports" / "evidence.json"
    data = json.loads(path.read_text())
    predicate = data["predicate"]
    control = next(c for c in predicate["controls"] if c["control"] == "null")
    if how == "judged with another pytest":
        predicate["versions"]["pytest"] = "0.0"
    elif how == "the run was filtered":
        predicate["complete"] = False
    elif how == "a control is missing":
        predicate["controls"] = [c for c in predicate["controls"] if c["control"] != "canary"]
    elif how == "a control misbehaved":
        control["seen"]["reached"] = False
    elif how == "the baseline was red":
        next(iter(predicate["baseline"]["after"].values()))["phases"][1]["outcome"] = "failed"
    elif how == "another source was judged":
        record = predicate["mutants"][0]
        text = json.dumps(record).replace(record["sources"]["calc.py"], "0" * 64)
        predicate["mutants"][0] = json.loads(text)
    else:
        # Where the assertion stands: no verdict hangs on it, so that the seal alone protects it.
        [[attempt, *_]] = predicate["mutants"][0]["killers"].values()
        next(leaf for phase in attempt["phases"] for leaf in phase["leaves"])["at"] += "0"
    if "without a new seal" not in how:
        data["seal"] = evidence.seal(data)
    path.write_bytes(evidence.canonical(data))


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a green run's evidence."""
    root = lay(read("killed"), tmp_path_factory.mktemp("judged") / "project")
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert run(root, monkeypatch, "-j", "2").code == 0
    return root


@pytest.mark.parametrize(
    ("case", "broken"), [(c, c) for c in GATE], ids=[c["promise"] for c in GATE], indirect=["broken"]
)
def test_a_gate_without_a_promise_lets_something_pass(
    case: dict[str, Any], broken: Path, judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(shutil.copytree(judged, tmp_path / "project"))
    _spoil(root, case["spoiled"])
    assert run_gate(root, monkeypatch).code in (4, 5)
    process = start(root, broken, module="harness.gate", stdout=subprocess.PIPE)
    text, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0, text


def test_an_error_of_the_engine_itself_ends_in_70(engine: Path, tmp_path: Path) -> None:
    path = engine / "harness" / "mutation" / "campaign.py"
    sound = path.read_text()
    path.write_text(
        sound.replace("        ruling = rule(record)\n", "        ruling = rule(no_such_name)\n", 1)
    )
    try:
        ran = run_with(engine, lay(read("killed"), tmp_path / "project"))
    finally:
        path.write_text(sound)
    assert ran.code == 70, ran.text
    assert "internal error: NameError: name 'no_such_name' is not defined" in ran.text


def test_stale_bytecode_of_the_project_is_never_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = lay(read("killed"), tmp_path / "project")
    plant_stale_bytecode(root)
    ran = run(root, monkeypatch, "-j", "2")
    assert ran.code == 0, ran.text


def test_the_table_holds_two_dozen_promises() -> None:
    assert len({case["promise"] for case in [*TABLE, *GATE]}) >= 24
