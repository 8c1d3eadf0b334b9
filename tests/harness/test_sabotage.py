"""For each promise of the engine there is a fault that breaks it, and a toy project's test that sees it."""

from __future__ import annotations

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
from toys import REPOSITORY, Ran, complaints, lay, read, run, running_in, snapshot, start

TABLE = tomllib.loads(Path(__file__).with_name("sabotage.toml").read_text())["sabotage"]
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


def test_stale_bytecode_of_the_project_is_never_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = lay(read("killed"), tmp_path / "project")
    plant_stale_bytecode(root)
    ran = run(root, monkeypatch, "-j", "2")
    assert ran.code == 0, ran.text


def test_the_table_holds_two_dozen_promises() -> None:
    assert len({case["promise"] for case in TABLE}) >= 24
