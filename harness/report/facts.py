"""Facts by fixtures: what each fixture's plays went through, and what no fixture goes through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.rows.facts import FACTS
from harness.rows.results import Result

MARKS = {"declared": "●", "witnessed": "○", "": "·"}


def table(played: Sequence[Result]) -> dict[str, dict[str, str]]:
    """fact -> fixture -> `declared` (and witnessed), `witnessed` (not declared), or an empty word.

    A declared fact that was not witnessed is a red check of its fixture; here it counts as not witnessed.
    """
    found: dict[str, dict[str, str]] = {}
    for fact in FACTS:
        found[fact] = {}
        for result in played:
            seen = "declared" if fact in result.fixture.facts else "witnessed"
            found[fact][result.fixture.name] = seen if fact in result.facts() else ""
    return found


def unwitnessed(facts: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The facts that no fixture witnesses."""
    return [fact for fact, row in facts.items() if not any(row.values())]


def _counts(row: Mapping[str, str]) -> tuple[int, int]:
    return sum(word == "declared" for word in row.values()), sum(bool(word) for word in row.values())


def lines(played: Sequence[Result]) -> list[str]:
    """The table for a screen: one line a fact, one mark a fixture, in the order of the matrix above it."""
    facts = table(played)
    marks = "   ".join(f"{mark} {word or 'neither'}" for word, mark in MARKS.items())
    text = [
        "",
        f"facts by fixtures, in the order above, ten to a group   {marks}",
        f"{'fact':36} {'declared':>8} {'witnessed':>9}  of {len(played)} fixtures",
    ]
    for fact, row in facts.items():
        declared, witnessed = _counts(row)
        shown = "".join(MARKS[word] for word in row.values())
        groups = " ".join(shown[low : low + 10] for low in range(0, len(shown), 10))
        text.append(f"{fact:36} {declared:8} {witnessed:9}  {groups}")
    loose = [fact for fact, row in facts.items() if any(row.values()) and "declared" not in row.values()]
    if loose:
        text.append(
            f"witnessed, but declared by no fixture, so that nobody would miss them: {', '.join(loose)}"
        )
    return text


def markdown(played: Sequence[Result]) -> str:
    """reports/identity.md: every fact with the fixtures that prove it."""
    facts = table(played)
    missing = unwitnessed(facts)
    text = [
        "# Row identity: facts by fixtures",
        "",
        f"{len(facts) - len(missing)} of {len(facts)} facts are witnessed by {len(played)} fixtures. "
        f"No fixture witnesses: {', '.join(missing) or 'none'}.",
        "",
        "| fact | what it means | declared by | witnessed by | also witnessed by |",
        "|---|---|---|---|---|",
    ]
    for fact, row in facts.items():
        declared, witnessed = _counts(row)
        names = ", ".join(name for name, word in row.items() if word == "declared")
        others = ", ".join(name for name, word in row.items() if word == "witnessed")
        text.append(
            f"| {fact} | {FACTS[fact]} | {names or 'none'} ({declared} of {len(row)}) | "
            f"{witnessed} of {len(row)} | {others} |"
        )
    return "\n".join(text) + "\n"


def as_json(played: Sequence[Result]) -> dict[str, Any]:
    """The same for a program."""
    facts = table(played)
    return {
        "facts": {fact: {name: word for name, word in row.items() if word} for fact, row in facts.items()},
        "unwitnessed": unwitnessed(facts),
    }
