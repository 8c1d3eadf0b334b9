"""Somebody's cache on the fixtures, for a reader: a line for each, messages, and what was not offered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from harness.caches.needs import OWN
from harness.caches.protocol import OFFERS, Described
from harness.caches.results import ABORTED, GREEN, NOT_OFFERED, RED, REFUSED, Result, holds, messages
from harness.caches.situations import reachable, unmet

MARKS = {GREEN: "●", REFUSED: "◐", RED: "✗", ABORTED: "!", NOT_OFFERED: "·"}
_MESSAGES_MAX = 20


def heading(cache: Described) -> str:
    """What is judged, and what the marks mean."""
    marks = "   ".join(f"{mark} {word}" for word, mark in MARKS.items())
    offered = ", ".join(sorted(cache.supports)) or "nothing besides advance and read"
    return f"{cache.name} offers {offered}\n{marks}\n"


def line(result: Result) -> str:
    """One fixture: its word, and the arrays that were compared, or what it would take."""
    name = f"{MARKS[result.word]} {result.fixture.name:36}"
    if result.played is None:
        steps = [f"{need} (step {step})" for need, step in result.needs.items()]
        return f"{name} not offered: {', '.join(steps) or result.geometry}"
    checks = result.checks()
    compared = sum(result.trace.compared.values())
    red = [check for check, word in checks.items() if word == RED]
    said = f"{len(checks) - len(red)} of {len(checks)} checks green, {compared} comparisons"
    if red:
        said += f"; red: {', '.join(red)}"
    if result.trace.stopped is not None:
        said += f"; played to step {result.trace.stopped.step}: {result.trace.stopped.why}"
    return f"{name} {said}"


def shown(result: Result) -> bool:
    """Whether the fixture has a line: not if it speaks of this project's own state and nothing else is missing."""
    return not result.needs or not set(result.needs) <= set(OWN)


def summary(found: Sequence[Result], cache: Described, row: int | None, arguments: str) -> str:
    """Messages, what was not offered with its consequence, counts, and the answer."""
    parts = messages(found, row, arguments)
    shown = parts[:_MESSAGES_MAX]
    if len(parts) > _MESSAGES_MAX:
        shown.append(
            f"{_MESSAGES_MAX} of {len(parts)} messages shown; choose with --fixture, --row and --until"
        )
    words = Counter(result.word for result in found)
    played = [result for result in found if result.played is not None]
    compared = sum(sum(result.trace.compared.values()) for result in played)
    skipped = sum(result.played.skipped for result in played if result.played is not None)
    counts = [
        f"fixtures played {len(played)} of {len(found)}: "
        + ", ".join(f"{words[word]} {word}" for word in (GREEN, REFUSED, RED, ABORTED)),
        f"comparisons {compared} · steps skipped because another cache's refusal is expected there {skipped}",
    ]
    margins = [each.played.comparison.margin for each in played if each.played and each.word == GREEN]
    if margins:
        counts.append(f"a wrong newest token is at least {min(margins):.3g} tolerances away")
    counts += _met(found, cache)
    answer = "identity holds in what was played" if holds(found) else "identity does NOT hold"
    return "\n" + "\n\n".join([*shown, "\n".join([*_not_offered(found, cache), *counts, answer])])


def _not_offered(found: Sequence[Result], cache: Described) -> list[str]:
    """Each thing that is missing with what it costs, and what other caches are not asked for."""
    asked = Counter(need for result in found for need in result.needs)
    lines = []
    for what, consequence in OFFERS.items():
        if not cache.offers(what):
            fixtures = f" ({asked[what]} of {len(found)} fixtures need it)" if asked[what] else ""
            lines.append(f"not offered: {what}{fixtures}; {consequence}")
    own = [result for result in found if set(result.needs) & set(OWN)]
    if own:
        needs = sorted({need for result in own for need in result.needs if need in OWN})
        lines.append(
            f"not asked of another cache: {len(own)} of {len(found)} fixtures, about "
            f"{', '.join(OWN[need] for need in needs)}"
        )
    return lines


def _met(found: Sequence[Result], cache: Described) -> list[str]:
    """What the plays went through: nothing is proved about a situation that none of them met."""
    plays = [result.played for result in found if result.played is not None]
    met = set().union(*(play.trace.facts for play in plays))
    there, missing = reachable(cache), unmet(cache, met)
    lines = [f"situations met {len(there) - len(missing)} of {len(there)} that it can come into"]
    lines += [f"never met: {sentence}" for sentence in missing]
    unread = sorted(set(cache.axes) - {name for play in plays for name in play.comparison.names})
    if plays and unread:
        lines.append(f"axes names {', '.join(unread)}, and no row read such an array: is it spelt alike?")
    return lines


def as_json(found: Sequence[Result], cache: Described) -> Mapping[str, Any]:
    """Everything that was found."""
    return {
        "subject": cache.name,
        "supports": sorted(cache.supports),
        "holds": holds(found),
        "fixtures": [
            {
                "name": result.fixture.name,
                "outcome": result.word,
                "needs": result.needs,
                "geometry": result.geometry,
                **({} if result.played is None else _play(result)),
            }
            for result in found
        ],
    }


def _play(result: Result) -> dict[str, Any]:
    trace = result.trace
    return {
        "checks": result.checks(),
        "compared": dict(sorted(trace.compared.items())),
        "stopped": asdict(trace.stopped) if trace.stopped is not None else None,
        "mismatches": [asdict(mismatch) for mismatch in trace.mismatches],
    }
