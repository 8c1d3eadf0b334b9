"""What observations mean: readings of single runs, fates of killers, and the ordered verdict table.

Pure functions of recorded data. The run and the gate call the same ones, so a verdict that was
edited by hand, or that the observations do not support, cannot pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..exit_codes import ExitCode
from .facts import DOCTEST_FAILED

Observation = Mapping[str, Any]
_TEST_DEATHS = ("builtins.AssertionError", "pytest.Failed", DOCTEST_FAILED)
_CANNOT_ANSWER = 97


class Reading(StrEnum):
    """How one run of one test on the mutant ended."""

    PASSED = "passed"
    KILLED = "killed"
    RED_UNREACHED = "red-unreached"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    FLAKY = "flaky"
    UNKNOWN = "unknown"
    NOT_APPLIED = "not-applied"


class Verdict(StrEnum):
    """The verdicts, in the order of the table: the first that matches wins."""

    NOT_APPLIED = "not-applied"
    UNKNOWN = "unknown"
    FLAKY = "flaky"
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"
    NOT_REACHED = "not-reached"
    KILLED = "killed"
    OVERCLAIMED = "overclaimed"
    KILLED_ELSEWHERE = "killed-elsewhere"
    SURVIVED = "survived"

    @property
    def meaning(self) -> str:
        """One line for the report."""
        return MEANINGS[self]

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of an entry that was expected to be something else."""
        inconclusive = ("not-applied", "unknown", "flaky", "timed-out", "crashed")
        return ExitCode.INCONCLUSIVE if self.value in inconclusive else ExitCode.FINDING


MEANINGS = {
    Verdict.NOT_APPLIED: "the mutated source was never executed, so the tests say nothing",
    Verdict.UNKNOWN: "no answer, or a contradictory one, came from the judging process",
    Verdict.FLAKY: "judged twice, with two answers",
    Verdict.TIMED_OUT: "a listed killer hit its limit, also when it ran alone",
    Verdict.CRASHED: "a listed killer ended neither passed nor by a test assertion",
    Verdict.NOT_REACHED: "no test executed the changed lines",
    Verdict.KILLED: "every listed killer failed by its own assertion",
    Verdict.OVERCLAIMED: "the entry claims more than the run shows",
    Verdict.KILLED_ELSEWHERE: "no listed killer fired, another test is red",
    Verdict.SURVIVED: "no test fired",
}


@dataclass(frozen=True)
class Read:
    """A reading with the fact that decided it; `needs` is the role of a run that is still missing."""

    reading: Reading
    note: str = ""
    needs: str | None = None


@dataclass(frozen=True)
class Ruling:
    """A verdict with its reason and the killers that killed; `needs_suite` when only the other tests can tell."""

    verdict: Verdict
    reason: str
    killed: tuple[str, ...] = ()
    needs_suite: bool = False


def read(seen: Observation, sources: Mapping[str, str], dies_by: str = "assertion") -> Read:
    """Read one observation; `sources` holds the expected sha256 of each mutated file."""
    end = seen["end"]
    if end == "timeout":
        return Read(Reading.TIMED_OUT, "hit its limit")
    if end == "silent" and seen["started"] and seen["status"] != _CANNOT_ANSWER:
        return Read(Reading.CRASHED, _death(seen["status"]))
    if end != "answered":
        return Read(Reading.UNKNOWN, f"no valid answer ({seen.get('why') or end})")
    if not _applied(seen["source"], sources):
        return Read(Reading.NOT_APPLIED, "the mutated source was not what ran")
    if seen["broken"]:
        return Read(Reading.CRASHED, f"could not be imported or configured: {_types(seen['broken'])}")
    if not seen["collected"]:
        return Read(Reading.CRASHED, "was not collected")
    return _read_phases(seen, dies_by)


def _applied(executed: Mapping[str, str | None], expected: Mapping[str, str]) -> bool:
    ran = {file: value for file, value in executed.items() if value is not None}
    return bool(ran) and all(expected.get(file) == value for file, value in ran.items())


def _read_phases(seen: Observation, dies_by: str) -> Read:
    phases = seen["phases"]
    if any(phase["xfail"] for phase in phases):
        return Read(Reading.CRASHED, "is marked xfail, which can hide any failure")
    calls = [phase for phase in phases if phase["phase"] == "call"]
    red = [phase for phase in calls if phase["outcome"] == "failed"]
    if not red:
        return _read_without_red_call(phases, calls)
    leaves = [leaf for phase in red for leaf in phase["leaves"]]
    if not leaves:
        return Read(Reading.CRASHED, "failed without an exception (a strict xfail that passed)")
    return _read_leaves(leaves, dies_by, bool(seen["reached"]))


def _read_without_red_call(phases: Sequence[Any], calls: Sequence[Any]) -> Read:
    broken = [phase for phase in phases if phase["outcome"] == "failed"]
    if broken:
        return Read(Reading.CRASHED, f"red in {broken[0]['phase']} only: {_types(broken[0]['leaves'])}")
    if any(phase["outcome"] == "skipped" for phase in phases):
        return Read(Reading.CRASHED, "was skipped")
    if not calls:
        return Read(Reading.UNKNOWN, "no call phase was reported")
    return Read(Reading.PASSED)


def _read_leaves(leaves: Sequence[Any], dies_by: str, reached: bool) -> Read:
    if any(leaf["timeout_plugin"] for leaf in leaves):
        return Read(Reading.TIMED_OUT, "pytest-timeout fired")
    if any(leaf["types"][0].startswith("hypothesis.") for leaf in leaves):
        return Read(Reading.FLAKY, f"Hypothesis gave up: {_types(leaves)}")
    if not all(_declared_death(leaf, dies_by) for leaf in leaves):
        wanted = "" if dies_by == "assertion" else f", declared {dies_by}"
        where = leaves[-1]["at"] or "no line of the project"
        return Read(Reading.CRASHED, f"died by {_types(leaves)} at {where}{wanted}")
    if not reached:
        return Read(Reading.RED_UNREACHED, "is red, but the changed lines never ran")
    return Read(Reading.KILLED, f"{_types(leaves)} at {leaves[-1]['at']}")


def _declared_death(leaf: Any, dies_by: str) -> bool:
    if dies_by == "assertion":
        return leaf["frame"] in ("test", "helper") and any(t in _TEST_DEATHS for t in leaf["types"])
    return leaf["frame"] == "code" and dies_by in leaf["types"]


def _types(leaves: Sequence[Any]) -> str:
    names = dict.fromkeys(leaf["types"][0].removeprefix("builtins.") for leaf in leaves)
    return ", ".join(names) or "no exception"


def _death(status: int) -> str:
    return (
        f"the process died by signal {-status}"
        if status < 0
        else f"the process exited with {status} silently"
    )


def fate(attempts: Sequence[Observation], sources: Mapping[str, str], dies_by: str = "assertion") -> Read:
    """Fold all runs of one killer. A kill needs a confirmation by reimport, and each timeout a lonely rerun.

    A swap that saw nothing proves nothing (a primed cache, a compiled function), so only its kills
    and timeouts count; reimport is the reference for everything else.
    """
    read_all = [(seen, read(seen, sources, dies_by)) for seen in attempts]
    weighty = [
        (seen, result)
        for seen, result in read_all
        if seen["mode"] != "swap"
        or (result.reading in (Reading.KILLED, Reading.TIMED_OUT) and not seen.get("stale"))
    ]
    if not weighty:
        return Read(Reading.UNKNOWN, "was never judged by reimport", needs="judge")
    if weighty[0][1].reading is Reading.TIMED_OUT:
        weighty = weighty[1:]
        if not weighty or weighty[0][0]["role"] != "alone":
            return Read(Reading.UNKNOWN, "timed out and was not run alone", needs="alone")
    first = weighty[0][1]
    if first.reading is not Reading.KILLED:
        return first
    if len(weighty) < 2 or weighty[1][0]["mode"] == "swap":
        return Read(Reading.UNKNOWN, "the kill was not confirmed", needs="confirm")
    second = weighty[1][1]
    if second.reading is Reading.TIMED_OUT:
        if len(weighty) < 3 or weighty[2][0]["role"] != "alone":
            return Read(Reading.UNKNOWN, "the confirmation timed out and was not run alone", needs="alone")
        second = weighty[2][1]
    if second.reading is not Reading.KILLED:
        return Read(Reading.FLAKY, f"killed once; the confirmation: {second.reading} {second.note}".strip())
    return first


def needs_another(attempts: Sequence[Observation], sources: Mapping[str, str], dies_by: str) -> str | None:
    """The role of the run that is still missing for this killer, or None when its fate is settled."""
    return fate(attempts, sources, dies_by).needs


_GRAVE = (
    (Reading.NOT_APPLIED, Verdict.NOT_APPLIED),
    (Reading.UNKNOWN, Verdict.UNKNOWN),
    (Reading.FLAKY, Verdict.FLAKY),
    (Reading.TIMED_OUT, Verdict.TIMED_OUT),
    (Reading.CRASHED, Verdict.CRASHED),
)


def rule(record: Mapping[str, Any]) -> Ruling:
    """The ordered table. `record` is one entry of the evidence's `mutants`, observations included."""
    sources, dies_by = record["sources"], record["dies_by"]
    if not record["bytecode_differs"]:
        return Ruling(Verdict.NOT_APPLIED, "no bytecode differs from the original's")
    if record.get("doubt"):
        red = min(record["doubt"])
        return Ruling(Verdict.UNKNOWN, f"{red} was red without any mutant when it was checked again")
    # By name, since a file keeps no other order: what follows must be the same when evidence is read again.
    fates = {test: fate(runs, sources, dies_by) for test, runs in sorted(record["killers"].items())}
    for reading, verdict in _GRAVE:
        found = [f"{test} {f.note}" for test, f in fates.items() if f.reading is reading]
        if found:
            return Ruling(verdict, found[0])
    killed = tuple(test for test, f in fates.items() if f.reading is Reading.KILLED)
    if not _reached(record):
        reason = Verdict.NOT_REACHED.meaning + _left(record)
        return Ruling(Verdict.NOT_REACHED, reason, needs_suite=record["widened"] is None)
    if killed:
        return _rule_killed(record, fates, killed)
    return _rule_unkilled(record)


def _reached(record: Mapping[str, Any]) -> bool:
    killers = any(_any_reached(runs) for runs in record["killers"].values())
    return killers or bool((record["widened"] or {}).get("reaching"))


def _any_reached(runs: Sequence[Observation]) -> bool:
    return any(seen.get("reached") for seen in runs)


def _rule_killed(record: Mapping[str, Any], fates: Mapping[str, Read], killed: tuple[str, ...]) -> Ruling:
    missing = [test for test in fates if test not in killed]
    if missing:
        note = fates[missing[0]].note or "passed"
        reason = f"listed, but did not kill: {missing[0]} ({note}); measured: killed by {', '.join(killed)}"
        return Ruling(Verdict.OVERCLAIMED, reason, killed)
    red = red_greens(record)
    if red:
        measured = f"measured: {len(red)} of {len(record['green'])} are red"
        return Ruling(Verdict.OVERCLAIMED, f"must stay green, but: {red[0]}; {measured}", killed)
    return Ruling(Verdict.KILLED, f"{len(killed)} of {len(fates)} listed killers", killed)


def red_greens(record: Mapping[str, Any]) -> list[str]:
    """The tests of must_stay_green that are not green, each with what happened."""
    result = []
    for test, attempts in sorted(record["green"].items()):
        last = read(attempts[-1], record["sources"], "assertion")
        if last.reading is not Reading.PASSED:
            result.append(f"{test} {last.reading} {last.note}".strip())
    return result


def _rule_unkilled(record: Mapping[str, Any]) -> Ruling:
    widened = record["widened"]
    if widened is None:
        return Ruling(
            Verdict.UNKNOWN, "no killer fired and the rest of the suite was not run", needs_suite=True
        )
    if widened["red"]:
        names = ", ".join(sorted(widened["red"])[:3])
        return Ruling(Verdict.KILLED_ELSEWHERE, f"{len(widened['red'])} other tests are red: {names}")
    reaching = widened["reaching"] + sum(_any_reached(runs) for runs in record["killers"].values())
    suite = widened["suite"] + len(record["killers"])
    return Ruling(Verdict.SURVIVED, f"{reaching} of {suite} tests reach it, 0 are red{_left(record)}")


def _left(record: Mapping[str, Any]) -> str:
    """Another process sees the original file and is not traced; that may be why nothing was seen."""
    left = sorted(test for test, runs in record["killers"].items() if any(map(unserved, runs)))
    left += (record["widened"] or {}).get("left", [])
    return f" ({left[0]} starts other processes, which see the original file)" if left else ""


def unserved(seen: Observation) -> bool:
    """True when a test started another process and none of them said that it was served the mutant."""
    return bool(seen.get("left")) and not seen.get("joined")
