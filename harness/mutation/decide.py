"""What evidence adds up to: findings with exit codes, as a pure function.

The run prints them and the gate repeats them on the recorded evidence, so both always agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..exit_codes import ExitCode, worst
from . import owed
from .campaign import passed
from .catalogue import Mutant
from .controls import behaved
from .verdict import Verdict, rule


@dataclass(frozen=True)
class Finding:
    """One reason for an exit code, as a sentence."""

    code: ExitCode
    sentence: str


def weigh(predicate: Mapping[str, Any]) -> list[Finding]:
    """All findings of one run's predicate; an empty list means exit 0."""
    return [*_instrument(predicate), *_absent(predicate), *_verdicts(predicate)]


def uncontrolled(root: Path, mutants: Sequence[Mutant], predicate: Mapping[str, Any]) -> list[Finding]:
    """A finding for each control that these entries made the run owe and that it does not hold."""
    return [
        Finding(ExitCode.INSTRUMENT, f"control: {sentence}")
        for sentence in owed.missing(root, mutants, predicate)
    ]


def exit_code(findings: list[Finding]) -> ExitCode:
    """The code that the findings add up to."""
    return worst(finding.code for finding in findings)


def _instrument(predicate: Mapping[str, Any]) -> Iterator[Finding]:
    for when in ("before", "after"):
        for test, seen in predicate["baseline"][when].items():
            if not passed(seen):
                yield Finding(
                    ExitCode.INSTRUMENT,
                    f"baseline {when}: {test} {ending(seen)}, should pass without any mutant; "
                    "repair or replace it before judging",
                )
    for record in predicate["controls"]:
        sentence = behaved(record)
        if sentence:
            yield Finding(ExitCode.INSTRUMENT, f"control: {sentence}")
    if not predicate["tree_unchanged"]:
        yield Finding(
            ExitCode.INSTRUMENT, "files changed while the run was judging; run again on a quiet tree"
        )


def ending(seen: Mapping[str, Any]) -> str:
    """How a baseline run ended, in words."""
    if seen["end"] != "answered":
        slow = (
            "; if it is only slow, raise wall_s in [tool.rowproof.limits]" if seen["end"] == "timeout" else ""
        )
        return f"gave no answer ({seen['end']}{slow})"
    if seen["broken"]:
        return f"could not be imported or configured ({seen['broken'][0]['types'][0]})"
    if not seen["collected"]:
        return "was not collected"
    if any(phase["xfail"] for phase in seen["phases"]):
        return "is marked xfail"
    outcomes = [phase for phase in seen["phases"] if phase["outcome"] != "passed"]
    return (
        f"{outcomes[0]['outcome']} in its {outcomes[0]['phase']} phase"
        if outcomes
        else "reported no call phase"
    )


def _absent(predicate: Mapping[str, Any]) -> Iterator[Finding]:
    if not predicate["catalogue"]:
        yield Finding(ExitCode.ABSENT, "the catalogue is empty: nothing was judged")
    elif not predicate["mutants"]:
        yield Finding(ExitCode.ABSENT, f"0 of {len(predicate['catalogue'])} entries were judged")
    judged = Counter(record["id"] for record in predicate["mutants"])
    twice = [name for name, count in judged.items() if count > 1]
    missing = [entry["id"] for entry in predicate["catalogue"] if entry["id"] not in judged]
    extra = [name for name in judged if name not in {entry["id"] for entry in predicate["catalogue"]}]
    if predicate["mutants"]:
        for what, names in (
            ("have no result", missing),
            ("are no entry", extra),
            ("are judged twice", twice),
        ):
            if names:
                yield Finding(ExitCode.ABSENT, f"{len(names)} results {what}: {', '.join(names[:3])}")


def _verdicts(predicate: Mapping[str, Any]) -> Iterator[Finding]:
    for record in predicate["mutants"]:
        ruling = rule(record)
        if record["verdict"] != ruling.verdict:
            yield Finding(
                ExitCode.ABSENT,
                f"{record['id']}: recorded as {record['verdict']}, but its observations say {ruling.verdict}",
            )
        elif ruling.verdict != record["expected"]:
            yield Finding(
                ruling.verdict.exit_code,
                f"{record['id']}: {ruling.verdict}, should be {record['expected']}: {ruling.reason}",
            )


def counts(predicate: Mapping[str, Any]) -> str:
    """All verdicts with their denominator; they always add up to the catalogue."""
    total = len(predicate["catalogue"])
    found = Counter(record["verdict"] for record in predicate["mutants"])
    parts = [f"{Verdict.KILLED} {found.pop(Verdict.KILLED.value, 0)} of {total}"]
    order = (Verdict.SURVIVED, Verdict.KILLED_ELSEWHERE, Verdict.OVERCLAIMED, Verdict.NOT_REACHED, Verdict.CRASHED,
             Verdict.TIMED_OUT, Verdict.FLAKY, Verdict.UNKNOWN, Verdict.NOT_APPLIED)  # fmt: skip
    parts += [f"{verdict} {found.pop(verdict.value, 0)}" for verdict in order]
    parts += [f"{name} {number}" for name, number in found.items()]
    unjudged = total - len(predicate["mutants"])
    return " · ".join([*parts, f"not judged {unjudged}"])
