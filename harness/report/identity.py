"""Row identity for a reader: a matrix of fixtures and checks, mismatches in words, counts; or one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from string import ascii_letters
from typing import Any

from harness.report import facts
from harness.rows.facts import FACTS
from harness.rows.results import NOT_ASKED, Result, columns, holds
from harness.rows.schedule import Fixture

MARKS = {"green": "●", "red": "✗", "aborted": "!", "unevaluated": "?", NOT_ASKED: "·"}
_MESSAGES_MAX = 20


def legend(fixtures: Sequence[Fixture]) -> str:
    """What the letters and marks of the matrix mean."""
    named = [f"{letter} {check}" for letter, check in zip(ascii_letters, columns(fixtures), strict=False)]
    lines = ["   ".join(named[start : start + 6]) for start in range(0, len(named), 6)]
    marks = "   ".join(f"{mark} {word}" for word, mark in MARKS.items())
    heading = f"{'fixture':36} {ascii_letters[: len(named)]}  facts declared and witnessed"
    return "\n".join([*lines, marks, "", heading])


def line(result: Result, fixtures: Sequence[Fixture]) -> str:
    """One fixture's row of the matrix: a mark per check, and its facts with their denominator."""
    marks = "".join(MARKS[result.outcome(check)] for check in columns(fixtures))
    declared, seen = result.fixture.facts, result.facts()
    witnessed = [fact for fact in declared if fact in seen]
    return f"{result.fixture.name:36} {marks}  {len(witnessed)} of {len(declared)}: {', '.join(witnessed)}"


def summary(played: Sequence[Result], row: int | None, arguments: str, every_fixture: bool) -> str:
    """Mismatches, counts with their denominators, and the answer."""
    said = [message for result in played for message in result.messages(row, arguments)]
    parts = said[:_MESSAGES_MAX]
    if len(said) > _MESSAGES_MAX:
        parts.append(
            f"{_MESSAGES_MAX} of {len(said)} messages shown; choose with --fixture, --row and --until"
        )
    outcomes = [word for result in played for word in result.asked().values()]
    traces = [trace for result in played for _, trace in result.traces]
    witnessed: set[str] = set().union(*(result.facts() for result in played))
    counts = (
        f"checks green {outcomes.count('green')} of {len(outcomes)} · fixtures {len(played)} · "
        f"plays {len(traces)} · comparisons {sum(sum(trace.compared.values()) for trace in traces)} · "
        f"facts witnessed {len(witnessed)} of {len(FACTS)}"
    )
    if every_fixture:
        missing = facts.unwitnessed(facts.table(played))
        counts += f"\nfacts that no fixture witnesses: {', '.join(missing) or 'none'}"
    counts += "\nidentity holds" if holds(played) else "\nidentity does NOT hold"
    return "\n" + "\n\n".join([*parts, counts])


def as_json(played: Sequence[Result]) -> dict[str, Any]:
    """Everything that was found."""
    return {
        "holds": holds(played),
        **facts.as_json(played),
        "fixtures": [
            {
                "name": result.fixture.name,
                "proves": result.fixture.proves,
                "checks": result.asked(),
                "facts": sorted(result.facts()),
                "plays": [
                    {
                        "lane": lane,
                        "options": trace.options,
                        "stopped": asdict(trace.stopped) if trace.stopped is not None else None,
                        "compared": dict(sorted(trace.compared.items())),
                        "mismatches": [asdict(mismatch) for mismatch in trace.mismatches],
                    }
                    for lane, trace in result.traces
                ],
            }
            for result in played
        ],
    }
