"""The rest of the suite under a mutant that no killer saw: what is slow there is not what is red."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.mutation.anchor import Edit
from harness.mutation.campaign import Campaign
from harness.mutation.catalogue import Mutant
from harness.mutation.controls import _run_null
from harness.mutation.prepare import Fault, of_mutant
from harness.mutation.serving import digest
from harness.mutation.settings import Settings

SLOW = "tests/test_x.py::test_slow"
PASSED = {"phase": "call", "outcome": "passed", "xfail": False, "leaves": []}
NOTHING_SPECIAL = {"reached": False, "stale": False, "left": [], "joined": False}


class Loaded:
    """Servers of a loaded machine: with the mutant, the slow test hits its limit `late` times, then passes."""

    swap_refused, fork_refused, early = None, None, frozenset()

    def __init__(self, late: int) -> None:
        self.late = late
        self.limits: list[float] = []

    def list_tests(self, paths: object) -> dict[str, Any]:
        return {"items": [SLOW]}

    def judge(self, job: Mapping[str, Any]) -> dict[str, Any]:
        if job["overlay"]:
            self.limits.append(job["limits"]["wall_s"])
            if len(self.limits) <= self.late:
                return {"end": "timeout"}
        answer = {
            "applied": {file: digest(text) for file, text in job["overlay"].items()},
            "results": [{"node": SLOW, "collected": True, "phases": [PASSED], **NOTHING_SPECIAL}],
            "kind": "done",
            "broken": None,
            "collect_errors": [],
        }
        return {"end": "answered", "seconds": 30.0, "answer": answer}


@pytest.mark.parametrize("late, red", [(0, []), (1, []), (2, []), (3, [SLOW])])
def test_a_slow_test_is_red_only_if_it_hangs_alone_too(tmp_path: Path, late: int, red: list[str]) -> None:
    (tmp_path / "m.py").write_text("def f():\n    return 1\n")
    servers: Any = Loaded(late)
    campaign = Campaign(tmp_path, Settings(), servers, 1)
    edit = Edit("m.py", "f", "return 1", "return 2")
    mutant = Mutant("m", "theme", "because", "own", (edit,), ("tests/test_x.py::test_named",))
    widened = campaign._widen(of_mutant(tmp_path, mutant), mutant)
    assert list(widened["red"]) == red
    # Measured at 30 s without the mutant, it is given ten times that with it.
    assert all(limit > 300 for limit in servers.limits[1:])


@pytest.mark.parametrize("late, end", [(0, "answered"), (1, "answered"), (2, "timeout")])
def test_a_null_that_hits_its_limit_beside_others_is_run_alone(tmp_path: Path, late: int, end: str) -> None:
    (tmp_path / "m.py").write_text("def f():\n    return 1\n")
    servers: Any = Loaded(late)
    campaign = Campaign(tmp_path, Settings(), servers, 1)
    null = Fault(overlay={"m.py": "def f():\n    return 1\n"}, watch={}, swappable=False)
    record = _run_null(campaign, {"control": "null"}, null, "reimport", [SLOW])
    assert record["seen"]["end"] == end
