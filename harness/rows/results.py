"""All plays of a set of fixtures: every payload, every plan, both lanes; one word for each check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.rows.checks import CHECKS, REFERENCE, VALUES_LANE, checks_of
from harness.rows.play import play
from harness.rows.schedule import Fixture
from harness.rows.stage import Lane
from harness.rows.subject import Oracle, Subject
from harness.rows.trace import Trace
from harness.rows.verdict import worst

LANES: tuple[Lane, ...] = ("tokens", "values")
NOT_ASKED = "not asked"


@dataclass
class Result:
    """All plays of one fixture. whole: no play was cut short on purpose."""

    fixture: Fixture
    whole: bool = True
    traces: list[tuple[Lane, Trace]] = field(default_factory=list)

    def outcome(self, check: str) -> str:
        """One word over all plays of the lane that answers `check`.

        A play that was cut short on purpose is not asked for what it had no time to look at.
        """
        if check not in checks_of(self.fixture):
            return NOT_ASKED
        lane = "values" if check in VALUES_LANE else "tokens"
        word = worst([trace.outcome(check) for name, trace in self.traces if name == lane])
        return NOT_ASKED if word == "unevaluated" and not self.whole else word

    def asked(self) -> dict[str, str]:
        """The outcome of every check that was asked."""
        outcomes = {check: self.outcome(check) for check in checks_of(self.fixture)}
        return {check: word for check, word in outcomes.items() if word != NOT_ASKED}

    def facts(self) -> set[str]:
        """The facts that every play of the token lane witnessed."""
        return set.intersection(*(trace.facts for lane, trace in self.traces if lane == "tokens"))

    def messages(self, row: int | None = None, arguments: str = "") -> list[str]:
        """Every mismatch in words (of one batch row, if given), and where plays ended early."""
        said = []
        for lane, trace in self.traces:
            for check in checks_of(self.fixture):
                if (check in VALUES_LANE) == (lane == "values"):
                    said += [trace.message(mismatch, arguments) for mismatch in trace.of(check, row)]
        said += [trace.stop_message(arguments) for _, trace in self.traces if trace.stopped is not None]
        return said


def results(
    fixtures: Sequence[Fixture],
    subject: Subject,
    oracle: Oracle,
    retains: Sequence[str],
    plans: Sequence[str],
    *,
    until: int | None = None,
    **how: Any,
) -> Iterator[Result]:
    """Play every fixture with every payload and plan, in both lanes."""
    for fixture in fixtures:
        result = Result(fixture, whole=until is None)
        for retain in [each for each in retains if each in fixture.payloads]:
            for plan in plans:
                for lane in LANES:
                    options = {"retain": retain, "plan": plan}
                    trace = play(fixture, subject, oracle, options, lane=lane, until=until, **how)
                    result.traces.append((lane, trace))
        yield result


def holds(played: Sequence[Result]) -> bool:
    """Every check that was asked is green, and at least one was."""
    outcomes = [word for result in played for word in result.asked().values()]
    return bool(outcomes) and all(word == "green" for word in outcomes)


def columns(fixtures: Sequence[Fixture]) -> list[str]:
    """The checks that some fixture answers, in the order of the catalogue of checks."""
    answered = {check for fixture in fixtures for check in checks_of(fixture)}
    return [check for name in CHECKS for check in (name, name + REFERENCE) if check in answered]
