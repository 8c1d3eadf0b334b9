"""Runs of the probe from the engine's side: what is asked for, how a reply is read, what it could not show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_TEST_DEATHS = ("builtins.AssertionError", "pytest.Failed")


class NoAnswer(Exception):
    """A run of the probe that ended without a recording; the sentence says how."""


@dataclass
class Run:
    recording: dict[str, Any]
    reached: bool
    red: str | None
    crashed: bool


def other_data(inputs: Mapping[str, int]) -> list[Mapping[str, Any]]:
    """Other data, in the order in which it is tried; what a test does not feed is not varied.

    Numbers that stand alone come last: they are often settings, and a wrong one ends the test early.
    """
    arrays, rows, scalars = (inputs.get(name, 0) for name in ("arrays", "rows", "scalars"))
    found: list[Mapping[str, Any]] = []
    if arrays:
        found.append({"style": "wide", "scalars": False, "rows": False})
    if arrays or rows:
        found.append({"style": "unit", "scalars": not rows, "rows": True})
    if scalars and (rows or not arrays):
        found.append({"style": "wide", "scalars": True, "rows": False})
    if scalars and not arrays:
        found.append({"style": "unit", "scalars": True, "rows": True})
    return found


def read(reply: Mapping[str, Any], test: str) -> Run:
    if reply["end"] != "answered":
        raise NoAnswer(f"the probing run gave no answer ({reply['end']})")
    answer = reply["answer"]
    if answer.get("probe") is None:
        raise NoAnswer("the probing run gave no recording")
    if answer["broken"]:
        raise NoAnswer(f"the project could not be imported: {answer['broken']['message']}")
    if answer["probe"]["failed"]:
        raise NoAnswer(f"the probe itself failed ({answer['probe']['failed']})")
    result = next((r for r in answer["results"] if r["node"] == test), None)
    if result is None or not result["collected"]:
        raise NoAnswer("the test was not collected")
    red, crashed = None, False
    for phase in result["phases"]:
        if phase["outcome"] == "passed":
            continue
        leaves = phase["leaves"]
        fired = phase["phase"] == "call" and leaves and all(_asserts(leaf) for leaf in leaves)
        red = red or (str(leaves[-1]["at"]) if fired else None)
        crashed |= not fired
    return Run(answer["probe"], bool(result["reached"]), red, crashed)


def _asserts(leaf: Mapping[str, Any]) -> bool:
    return leaf["frame"] in ("test", "helper") and any(t in _TEST_DEATHS for t in leaf["types"])


_CUT = {
    "calls": "the first calls of the function",
    "handed": "the first values that the test was handed",
    "leaves": "the first parts of a large object",
    "lines": "the first lines of the test",
}


def limits(recording: Mapping[str, Any]) -> list[str]:
    """What a reader should know of how far the probe could look."""
    notes = []
    if recording["opaque"]:
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(recording["opaque"].items()))
        notes.append(f"not looked into: {kinds}")
    if recording["cut"]:
        notes.append(f"compared were only {', '.join(_CUT[what] for what in sorted(recording['cut']))}")
    if not recording["tested"]:
        notes.append("the test's own frame was not seen, so whether the difference came to it is not known")
    return notes


def told_of(varied: Sequence[str]) -> str:
    """What was varied, in few words: names on a ramp first."""
    ramps = [name.removesuffix(" on a ramp") for name in varied if name.endswith(" on a ramp")]
    others = [name for name in varied if not name.endswith(" on a ramp")]
    more = f" and {len(ramps) - 4} others" if len(ramps) > 4 else ""
    return ", ".join([*([f"{', '.join(ramps[:4])}{more} on a ramp"] if ramps else []), *others[:3]])
