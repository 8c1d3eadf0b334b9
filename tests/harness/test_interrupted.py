"""A run that is killed at any moment leaves no process, no half-written file and an untouched tree."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from toys import lay, read, run, running_in, snapshot, start

GONE_WITHIN_S = 10.0


def wait_for(condition: object, seconds: float = GONE_WITHIN_S) -> bool:
    """Wait until a condition holds."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    """A project whose killers sleep, so that a run can be caught in the middle."""
    root = lay(read("ignored_sigterm"), tmp_path / "project")
    (root / "pyproject.toml").write_text("[tool.rowproof.limits]\nwall_s = 60.0\n")
    return root


@pytest.mark.parametrize("victim", ["engine", "server", "child"])
def test_after_kill_9_no_process_is_left_and_the_tree_is_untouched(
    slow: Path, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(slow)
    scratch = slow.parent / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    run = start(slow)
    try:
        # Engine, stem, collected process, two slots of each kind, and a judging child that sleeps.
        assert wait_for(lambda: len(running_in(slow)) >= 8, 30.0)
        others = sorted(running_in(slow) - {run.pid})
        os.kill({"engine": run.pid, "server": others[0], "child": others[-1]}[victim], signal.SIGKILL)
        if victim == "server":
            # The engine notices, says so, and cleans up by itself.
            assert run.wait(timeout=30) == 4
        if victim == "child":
            assert wait_for(lambda: others[-1] not in running_in(slow))
            run.kill()
        assert wait_for(lambda: not running_in(slow) - {run.pid})
    finally:
        run.kill()
        run.wait()
    assert snapshot(slow) == before
    assert not list((slow / "reports").glob("*.json"))
    assert wait_for(lambda: not list(scratch.glob("rowproof-*")))


def test_after_an_interrupt_the_code_is_130_and_nothing_is_left(slow: Path) -> None:
    run = start(slow)
    assert wait_for(lambda: len(running_in(slow)) >= 8, 30.0)
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=30) == 130
    assert wait_for(lambda: not running_in(slow))
    assert not list((slow / "reports").glob("*.json"))


def test_a_second_run_is_told_who_runs_and_since_when(slow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(slow)
    try:
        assert wait_for((slow / "reports" / ".lock.txt").exists, 30.0)
        second = run(slow, monkeypatch)
        assert second.code == 4
        assert f"another run is going on in this project: process {first.pid} on " in second.text
        assert " since 20" in second.text
    finally:
        first.kill()
        first.wait()


def test_the_lock_of_a_killed_run_does_not_hold_up_the_next(
    slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start(slow)
    assert wait_for((slow / "reports" / ".lock.txt").exists, 30.0)
    first.kill()
    first.wait()
    assert wait_for(lambda: not running_in(slow))
    assert run(slow, monkeypatch, "--only", "seen").code == 0


def test_a_run_whose_tests_write_into_the_tree_is_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = lay(read("killed"), tmp_path / "project")
    with (root / "tests" / "test_calc.py").open("a") as handle:
        handle.write("\n\ndef test_g():\n    open('dropped.txt', 'w').close()\n    assert calc.f(1) == 2\n")
    catalogue = root / "mutants" / "sums.toml"
    catalogue.write_text(catalogue.read_text().replace("::test_f", "::test_g"))
    ran = run(root, monkeypatch)
    assert ran.code == 4
    assert "files changed while the run was judging" in ran.text


def test_an_edit_made_while_a_run_goes_on_is_kept_and_the_run_is_void(slow: Path) -> None:
    (slow / "pyproject.toml").write_text("[tool.rowproof.limits]\nwall_s = 0.5\nwall_factor = 0.5\n")
    process = start(slow, stdout=subprocess.PIPE)
    assert wait_for((slow / "reports" / "journal.jsonl").exists, 30.0)
    edited = (slow / "calc.py").read_text() + "\n# mine\n"
    (slow / "calc.py").write_text(edited)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 4, text
    assert "files changed while the run was judging" in text
    assert (slow / "calc.py").read_text() == edited


def test_a_reports_folder_that_cannot_be_made_is_told_without_a_traceback(tmp_path: Path) -> None:
    root = lay(read("killed"), tmp_path / "project")
    (root / "reports").write_text("in the way")
    process = start(root, stdout=subprocess.PIPE)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "Traceback" not in text
    assert "reports: File exists; process " in text
    assert "; nothing of this run was written as evidence" in text
