"""Each verdict and each trap has a toy project whose run ends exactly as its file says."""

from __future__ import annotations

from pathlib import Path

import pytest
from toys import Toy, audit, complaints, lay, read, run, run_gate, snapshot, toys

ALL = toys()


@pytest.mark.parametrize("toy", ALL, ids=[toy.name for toy in ALL])
def test_a_toy_ends_as_its_file_says(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = lay(toy, tmp_path / "project")
    before = snapshot(root)
    # Where dozens survive by design, the reasons are not asked for.
    quick = ["--no-explain"] if "modes" in toy.expect else []
    ran = run(root, monkeypatch, "-j", "2", *quick)
    assert complaints(toy, ran, before) == [], ran.text
    if "verdicts" in toy.expect:
        assert run_gate(root, monkeypatch).code == toy.expect["exit"]


@pytest.mark.parametrize(
    "toy, way",
    [(toy, way) for toy in ALL for way in toy.expect.get("audits", {})],
    ids=lambda value: value.name if isinstance(value, Toy) else value,
)
def test_a_toy_ends_the_same_by_one_way_of_judging_alone(
    toy: Toy, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert audit(toy, lay(toy, tmp_path / "project"), monkeypatch, way) == []


def test_there_is_a_toy_for_every_verdict() -> None:
    from harness.mutation.verdict import Verdict

    shown = {verdict for toy in ALL for verdict in toy.expect.get("verdicts", {}).values()}
    assert shown == {verdict.value for verdict in Verdict}


def test_there_is_a_toy_for_every_exit_code_but_those_of_a_fault_and_an_interrupt() -> None:
    # 70 and 130 have tests of their own, in test_sabotage and test_interrupted: no catalogue brings them about.
    from harness.exit_codes import ExitCode

    assert {toy.expect["exit"] for toy in ALL} == set(ExitCode) - {ExitCode.INTERNAL, ExitCode.INTERRUPTED}


def test_the_shell_that_a_run_starts_from_changes_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # -O would strip the code's own assertion, and with it the crash; a filter would redden everything.
    for name, value in {
        "PYTHONOPTIMIZE": "2",
        "PYTHONWARNINGS": "error",
        "PYTEST_ADDOPTS": "-k nothing",
    }.items():
        monkeypatch.setenv(name, value)
    toy = read("assert_in_code")
    root = lay(toy, tmp_path / "project")
    ran = run(root, monkeypatch, "-j", "2")
    assert complaints(toy, ran, snapshot(root)) == [], ran.text
