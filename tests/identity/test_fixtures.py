"""Every fixture, with every payload and plan, one item per check."""

from __future__ import annotations

from functools import cache

from harness.rows.calibration import require_told_apart
from harness.rows.checks import VALUES_LANE
from harness.rows.defaults import ORACLE, SUBJECT
from harness.rows.fixture import default_folder
from harness.rows.fixture import load as load_fixture
from harness.rows.play import play
from harness.rows.schedule import Values
from harness.rows.stage import Lane
from harness.rows.subject import load
from harness.rows.trace import Trace
from harness.rows.verdict import require_green


@cache
def trace_of(name: str, retain: str, plan: str, lane: Lane) -> Trace:
    """One play answers many items; a process plays it once."""
    fixture = load_fixture(default_folder() / f"{name}.toml")
    if lane == "values" and fixture.values != Values():
        require_told_apart(fixture, load(ORACLE))  # data that cannot tell tokens apart proves nothing
    return play(fixture, load(SUBJECT), load(ORACLE), {"retain": retain, "plan": plan}, lane=lane)


def test_identity(play_id: str) -> None:
    name, retain, plan, check = play_id.split("-")
    lane: Lane = "values" if check in VALUES_LANE else "tokens"
    require_green(trace_of(name, retain, plan, lane), check)
