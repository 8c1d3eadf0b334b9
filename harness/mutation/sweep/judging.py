"""One candidate judged by the tests that reach it: the first kill ends it.

A kill is confirmed alone, in the way it was seen. A survivor is confirmed by reimport, since a swap that saw
nothing proves nothing; a death by exception is confirmed unless its test was the first of its fork, which is as
good as alone. (A catalogue's kill is a promise and is confirmed by reimport; an operator's only is no survivor.)

The verdicts are the engine's, read by the same functions, and one bucket more: `killed-by-error`. About half
of all operator mutants die by an exception only; nobody has to write a test for those, and no assertion has
seen them either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ...exit_codes import ExitCode
from ..campaign import Campaign
from ..observe import first_message, observations
from ..prepare import Fault
from ..verdict import Read, Reading, read

# So many tests that die by an exception say that it is one. Fewer would not do: which of two tests is cheaper
# differs from run to run, and an assertion behind the last of them would be seen in one run and not in the next.
ERRORS_MAX = 100
# A judgement that takes so much longer than the tests' own time is judged again, alone and with twice as much.
PATIENCE_S, PATIENCE_FACTOR, ALONE = 2.0, 10.0, 2.0


class Bucket(StrEnum):
    """What became of a candidate."""

    KILLED = "killed"
    KILLED_BY_ERROR = "killed-by-error"
    SURVIVED = "survived"
    NOT_REACHED = "not-reached"
    TIMED_OUT = "timed-out"
    FLAKY = "flaky"
    UNKNOWN = "unknown"
    NOT_APPLIED = "not-applied"

    @property
    def meaning(self) -> str:
        """One line for the report."""
        return _MEANINGS[self]

    @property
    def exit_code(self) -> ExitCode:
        """What one such candidate asks for."""
        if self in (Bucket.KILLED, Bucket.KILLED_BY_ERROR):
            return ExitCode.OK
        found = self in (Bucket.SURVIVED, Bucket.NOT_REACHED)
        return ExitCode.FINDING if found else ExitCode.INCONCLUSIVE


_MEANINGS = {
    Bucket.KILLED: "a test failed by its own assertion, and again alone",
    Bucket.KILLED_BY_ERROR: "tests died by an exception only",
    Bucket.SURVIVED: "every test that reaches it passed, by reimport",
    Bucket.NOT_REACHED: "no test executes the changed lines",
    Bucket.TIMED_OUT: "hit its limit, also when it ran alone",
    Bucket.FLAKY: "judged twice, with two answers",
    Bucket.UNKNOWN: "no answer, or a contradictory one, came from the judging process",
    Bucket.NOT_APPLIED: "the mutated source was never executed",
}


@dataclass(frozen=True)
class Judged:
    """The bucket, the test that decided it, what it said, and how many tests reach the change."""

    bucket: Bucket
    reason: str
    test: str | None = None
    message: str = ""


def judge(campaign: Campaign, fault: Fault, tests: Sequence[str]) -> Judged:
    """Judge a candidate by these tests, the cheapest first; each of them reaches it and is green without it."""
    if not tests:
        return Judged(Bucket.NOT_REACHED, Bucket.NOT_REACHED.meaning)
    if fault.swappable and not campaign.servers.swap_refused:
        quick = _look(campaign, fault, "swap", tests)
        # A swap that saw nothing proves nothing: reimport has the last word.
        if quick is not None and quick.reading is not Reading.PASSED:
            return _settled(campaign, fault, quick)
    last = _look(campaign, fault, campaign.reference, tests)
    if last is None:
        return Judged(Bucket.UNKNOWN, "the judging process refused to reimport")
    return _settled(campaign, fault, last)


@dataclass(frozen=True)
class _Look:
    """What one fork with several tests came to: the reading that decides, and the test that it is of."""

    mode: str
    first: bool
    reading: Reading
    note: str
    test: str
    seen: int
    reached: bool
    message: str = ""


def _look(campaign: Campaign, fault: Fault, mode: str, tests: Sequence[str]) -> _Look | None:
    """Run tests in one fork until one kills; None when a swap cannot be judged here."""
    own = sum(campaign.seconds.get(test, 0.0) for test in tests)
    patience = PATIENCE_S + PATIENCE_FACTOR * own
    reply = campaign.ask(fault, mode, list(tests), together=True, stop=ERRORS_MAX, patience_s=patience)
    if reply["end"] == "timeout":
        patience *= ALONE
        reply = campaign.ask(
            fault, mode, list(tests), alone=True, together=True, stop=ERRORS_MAX, patience_s=patience
        )
    if reply["end"] == "answered" and reply["answer"]["kind"] == "refused":
        return None
    ran = _ran(reply, tests)
    if len(ran) < min(len(tests), ERRORS_MAX) and not _killed(reply, mode, ran, fault):
        # It looked like a kill and is none; what the other tests say still counts.
        reply = campaign.ask(fault, mode, list(tests), together=True)
        ran = _ran(reply, tests)
    seen = observations(reply, mode, "sweep", ran)
    readings = {test: read(seen[test], fault.sources) for test in ran}
    # The swap was not effective where old code still ran; what it says then is nothing.
    if mode == "swap" and any(seen[test].get("stale") for test in ran):
        return None
    test, found = _deciding(readings)
    reached = any(seen[test].get("reached") for test in ran)
    return _Look(
        mode, test == ran[0], found.reading, found.note, test, len(ran), reached, first_message(reply, test)
    )


def _killed(reply: Mapping[str, Any], mode: str, ran: Sequence[str], fault: Fault) -> bool:
    seen = observations(reply, mode, "sweep", list(ran))
    return any(read(each, fault.sources).reading is Reading.KILLED for each in seen.values())


def _ran(reply: Mapping[str, Any], tests: Sequence[str]) -> list[str]:
    """The tests that ran before the end; all of them where something ended them together."""
    if reply["end"] != "answered" or reply["answer"]["broken"] or reply["answer"]["collect_errors"]:
        return list(tests)
    return [result["node"] for result in reply["answer"]["results"]] or list(tests)


def _deciding(readings: Mapping[str, Read]) -> tuple[str, Read]:
    """A kill first, then whatever is not a pass, in the order of the tests."""
    for wanted in (Reading.KILLED, None):
        for test, found in readings.items():
            if found.reading is wanted or (wanted is None and found.reading is not Reading.PASSED):
                return test, found
    return next(iter(readings.items()))


def _settled(campaign: Campaign, fault: Fault, look: _Look) -> Judged:
    """Confirm a death alone; everything else speaks for itself."""
    if look.reading is Reading.PASSED:
        if not look.reached:
            return Judged(Bucket.NOT_REACHED, "the changed lines did not run in any of the tests")
        return Judged(Bucket.SURVIVED, f"{look.seen} tests reach it, 0 are red")
    if look.reading in _ENDS:
        return Judged(_ENDS[look.reading], look.note, look.test)
    if look.reading is Reading.CRASHED and look.first:
        return Judged(Bucket.KILLED_BY_ERROR, look.note, look.test, look.message)
    reply = campaign.ask(fault, look.mode, [look.test])
    seen = observations(reply, look.mode, "confirm", [look.test])[look.test]
    again = read(seen, fault.sources)
    if again.reading is not look.reading:
        first = f"{look.reading} with others, then alone: {again.reading} {again.note}".strip()
        return Judged(Bucket.FLAKY, first, look.test)
    dead = Bucket.KILLED if again.reading is Reading.KILLED else Bucket.KILLED_BY_ERROR
    return Judged(dead, again.note, look.test, look.message)


_ENDS = {
    Reading.TIMED_OUT: Bucket.TIMED_OUT,
    Reading.FLAKY: Bucket.FLAKY,
    Reading.UNKNOWN: Bucket.UNKNOWN,
    Reading.NOT_APPLIED: Bucket.NOT_APPLIED,
    Reading.RED_UNREACHED: Bucket.FLAKY,
}
