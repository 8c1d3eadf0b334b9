"""Row identity for a reader: a matrix of fixtures and checks, mismatches in words, counts; or one JSON object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from string import ascii_letters
from typing import Any

from harness.report import facts
from harness.rows.exact import Proof
from harness.rows.facts import FACTS
from harness.rows.results import NOT_ASKED, Result, columns, holds
from harness.rows.schedule import Fixture
from harness.rows.values import WARN_ABOVE

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


def summary(
    played: Sequence[Result],
    row: int | None,
    arguments: str,
    margins: Mapping[str, float | Proof],
    every_fixture: bool,
) -> str:
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
    counts += "".join(f"\n{line}" for line in [*rounding(played, margins), *declined(played)])
    if every_fixture:
        missing = facts.unwitnessed(facts.table(played))
        counts += f"\nfacts that no fixture witnesses: {', '.join(missing) or 'none'}"
    counts += "\nidentity holds" if holds(played) else "\nidentity does NOT hold"
    return "\n" + "\n\n".join([*parts, counts])


def rounding(played: Sequence[Result], margins: Mapping[str, float | Proof]) -> list[str]:
    """How much of their bounds real numbers used, by format, how far the nearest wrong token is, and what is proved."""
    shares = _shares(played)
    used = [f"{dtype} {max(by_check.values()):.3f}" for dtype, by_check in shares.items() if by_check]
    lines = [f"largest share of a rounding bound that was used: {' · '.join(used)}"] if used else []
    lines += [
        f"{check} in {dtype} uses {share:.2f} of its bound: still right, and more than {WARN_ABOVE}, so worth a look"
        for dtype, by_check in shares.items()
        for check, share in by_check.items()
        if WARN_ABOVE < share <= 1 and dtype != "bfloat16"  # whose one rounding to nearest may use all of it
    ]
    distances = _distances(margins)
    if distances:
        nearest = min(distances, key=lambda name: distances[name])
        lines.append(
            f"calibrated {len(distances)} of {len(distances)}: a wrong token is at least {distances[nearest]:.0f} bounds away ({nearest})"
        )
    return lines + [f"{name} is exact: {proof}" for name, proof in _proofs(margins).items()]


def declined(played: Sequence[Result]) -> list[str]:
    """Where row-invariant arithmetic was refused by name: green there means that nothing was promised."""
    said = {
        result.fixture.name: trace.declined
        for result in played
        for _, trace in result.traces
        if trace.declined is not None
    }
    return [f"{name}: row-invariant arithmetic was refused: {why}" for name, why in said.items()]


def _distances(margins: Mapping[str, float | Proof]) -> dict[str, float]:
    return {name: found for name, found in margins.items() if not isinstance(found, Proof)}


def _proofs(margins: Mapping[str, float | Proof]) -> dict[str, Proof]:
    return {name: found for name, found in margins.items() if isinstance(found, Proof)}


def _shares(played: Sequence[Result]) -> dict[str, dict[str, float]]:
    """format -> check -> the largest share of its bound in any play."""
    found: dict[str, dict[str, float]] = {}
    for result in played:
        by_check = found.setdefault(result.fixture.values.dtype, {})
        for lane, trace in result.traces:
            if lane == "values":
                for check, share in trace.shares.items():
                    by_check[check] = max(by_check.get(check, 0.0), share)
    return found


def as_json(played: Sequence[Result], margins: Mapping[str, float | Proof]) -> dict[str, Any]:
    """Everything that was found."""
    return {
        "holds": holds(played),
        **facts.as_json(played),
        "shares": _shares(played),
        "margins": _distances(margins),
        "proofs": {name: asdict(proof) for name, proof in _proofs(margins).items()},
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
                        "declined": trace.declined,
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
