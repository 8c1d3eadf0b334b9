"""Kill -9 at random moments, and a disk without room: nothing half-written, nothing left, nothing lost.

Set ROWPROOF_KILLS to try more moments than the few that every run of the tests tries.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from test_interrupted import wait_for
from toys import lay, read, run, run_gate, running_in, snapshot, start

KILLS = int(os.environ.get("ROWPROOF_KILLS", "4"))
ORPHANS_GONE_S = 2.0


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four entries that take a moment each, and a folder of their own for scratch files."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    toy = read("killed")
    root = lay(toy, tmp_path / "project")
    (root / "tests" / "test_calc.py").write_text(
        "import time\n\nimport calc\n\n\ndef test_f():\n    time.sleep(0.05)\n    assert calc.f(1) == 2\n"
    )
    one = toy.files["mutants/sums.toml"]
    many = [one.replace("the-fault", f"fault-{n}").replace("x + 2", f"x + {n}") for n in range(2, 6)]
    (root / "mutants" / "sums.toml").write_text("\n".join(many))
    (root / "pyproject.toml").write_text("[tool.rowproof.limits]\nwall_s = 30.0\n")
    return root


def half_written(reports: Path) -> list[str]:
    """Files of the reports folder that no reader could use; the journal's last line may be cut short."""
    bad = []
    for path in reports.glob("*.json"):
        try:
            json.loads(path.read_text())
        except ValueError:
            bad.append(path.name)
    for line in _lines(reports)[:-1]:
        try:
            json.loads(line)
        except ValueError:
            bad.append(line)
    return bad


def _none_of(engine: int, scratch: Path) -> bool:
    return not list(scratch.glob(f"rowproof-{engine}-*"))


def _lines(reports: Path) -> list[str]:
    journal = reports / "journal.jsonl"
    return journal.read_text().splitlines() if journal.exists() else []


def kills_in(reports: Path) -> set[str]:
    """Entries that the journal holds as killed."""
    found = set()
    for line in _lines(reports)[1:]:
        try:
            record = json.loads(line)["record"]
        except (ValueError, KeyError):
            continue
        found |= {record["id"]} if record["verdict"] == "killed" else set()
    return found


def test_kill_9_at_random_moments_of_parent_or_child_loses_and_leaves_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(project, monkeypatch, "-j", "2").code == 0
    reports, scratch = project / "reports", project.parent / "scratch"
    whole, before = (reports / "evidence.json").read_bytes(), snapshot(project)
    dice = random.Random(KILLS)
    for number in range(KILLS):
        process = start(project, args=("--resume", "-j", "2"))
        time.sleep(dice.uniform(0.05, 1.2))
        others = sorted(running_in(project) - {process.pid})
        # Every other time a server or a child of one dies first; the engine may end by itself then.
        both = bool(number % 2 and others)
        if both:
            try:
                os.kill(dice.choice(others), signal.SIGKILL)
            except ProcessLookupError:
                pass
            time.sleep(dice.uniform(0.0, 0.4))
        process.kill()
        process.wait()
        gone = partial(_none_of, process.pid, scratch)
        assert wait_for(lambda: not running_in(project), ORPHANS_GONE_S), f"kill {number}: orphans"
        # When engine and server die at once, the folder's only witness is the next run.
        assert both or wait_for(gone, ORPHANS_GONE_S), f"kill {number}"
        assert half_written(reports) == [], f"kill {number}"
        assert snapshot(project) == before, f"kill {number}"
    settled = kills_in(reports)
    assert len(list(scratch.iterdir())) <= KILLS // 2
    assert run(project, monkeypatch, "--resume", "-j", "2").code == 0
    assert (reports / "evidence.json").read_bytes() == whole
    assert set(json.loads((reports / "run.json").read_text())["resumed"]) == settled
    assert run_gate(project, monkeypatch).code == 0
    assert list(scratch.iterdir()) == []


@pytest.fixture
def full(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project with evidence of an earlier run, on a disk that has room for little more."""
    assert run(project, monkeypatch).code == 0
    kept = {path.name: path.read_bytes() for path in (project / "reports").glob("*.*")}
    # What is written meanwhile is the journal and the lock: a few KiB of room, and then none.
    room = sum(map(len, kept.values())) + 6 * 1024
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={room},mode=755", "tmpfs", str(project / "reports")],
        capture_output=True,
    )
    if mounted.returncode != 0:
        yield project
        return
    try:
        for name, data in kept.items():
            (project / "reports" / name).write_bytes(data)
        yield project
    finally:
        subprocess.run(["umount", str(project / "reports")], check=True)


def test_a_full_disk_is_refused_with_who_and_when_and_the_old_evidence_stays(full: Path) -> None:
    evidence = full / "reports" / "evidence.json"
    before = evidence.read_bytes()
    # Where nothing can be mounted, the same happens to files longer than this.
    small = (
        None
        if os.path.ismount(full / "reports")
        else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, -1))
    )
    process = start(full, stdout=subprocess.PIPE, preexec_fn=small)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 4, text
    assert "Traceback" not in text
    assert f"process {process.pid} on " in text
    assert " gave up at 20" in text
    assert "nothing of this run was written as evidence; mend it and go on with --resume" in text
    assert evidence.read_bytes() == before
    assert not list((full / "reports").glob(".*.json.*"))
    assert not running_in(full)
