"""A killed run is resumed from its journal; equal inputs give equal bytes whatever the order and workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_interrupted import wait_for
from toys import lay, read, run, run_gate, running_in, start


def evidence(root: Path) -> bytes:
    return (root / "reports" / "evidence.json").read_bytes()


def settled(root: Path) -> int:
    """Entries in the journal, its first line apart."""
    path = root / "reports" / "journal.jsonl"
    return max(len(path.read_text().splitlines()) - 1, 0) if path.exists() else 0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with two mutants, the second of which takes a while."""
    root = lay(read("state_does_not_leak"), tmp_path / "project")
    (root / "tests" / "test_slow.py").write_text(
        "import time\n\nimport calc\n\n\ndef test_slow():\n    time.sleep(0.3)\n    assert calc.f(1) == 2\n"
    )
    catalogue = root / "mutants" / "sums.toml"
    catalogue.write_text(
        catalogue.read_text().replace('test_calc.py::test_f"', 'test_slow.py::test_slow"', 1)
    )
    return root


def test_a_killed_run_is_resumed_to_the_same_evidence(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(project, monkeypatch).code == 0
    whole = evidence(project)
    (project / "reports" / "evidence.json").unlink()
    first = start(project)
    assert wait_for(lambda: settled(project) >= 1, 30.0)
    first.kill()
    first.wait()
    assert wait_for(lambda: not running_in(project))
    assert run(project, monkeypatch, "--resume").code == 0
    assert evidence(project) == whole
    assert len(json.loads((project / "reports" / "run.json").read_text())["resumed"]) >= 1
    assert not (project / "reports" / "journal.jsonl").exists()
    assert run_gate(project, monkeypatch).code == 0


def test_nothing_is_reused_when_an_input_changed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(project)
    assert wait_for(lambda: settled(project) >= 1, 30.0)
    first.kill()
    first.wait()
    assert wait_for(lambda: not running_in(project))
    (project / "helper.py").write_text("")
    assert run(project, monkeypatch, "--resume").code == 0
    assert json.loads((project / "reports" / "run.json").read_text())["resumed"] == []


def test_equal_runs_give_equal_bytes_for_any_jobs_hash_seed_and_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = lay(read("must_stay_green"), tmp_path / "project")
    catalogue = root / "mutants" / "sums.toml"
    one = catalogue.read_text()
    more = [one.replace("the-fault", f"fault-{n}").replace("x + 2", f"x + {n}") for n in (3, 4, 5)]
    assert all("x + 1" in text for text in more)
    catalogue.write_text("\n".join([one, *more]))
    seen, orders = set(), set()
    for jobs, seed, shuffle in (
        ("1", "0", ()),
        ("2", "1", ("--shuffle", "1")),
        ("2", "77", ("--shuffle", "2")),
    ):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        assert run(root, monkeypatch, "-j", jobs, *shuffle).code == 0
        seen.add(evidence(root))
        notes = json.loads((root / "reports" / "run.json").read_text())
        orders.add((notes["jobs"], notes["hash_seed"], notes["shuffle"]))
    assert len(seen) == 1
    assert orders == {(1, "0", None), (2, "1", 1), (2, "77", 2)}
