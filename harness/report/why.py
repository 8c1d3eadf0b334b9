"""Why mutants are not seen, for a reader: one heading line for an entry, then sentences and advice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..mutation.diagnosis.classes import Class


def heading(name: str, found: Mapping[str, Any]) -> str:
    """`id: class; reached by so many of so many tests that were asked, infected by so many`."""
    asked = sum(bool(finding["test"]) for finding in found["findings"])
    return (
        f"{name}: {found['class']}; {found['reached']} of {asked} tests that were asked reach it, "
        f"{found['infected']} infected"
    )


def lines(found: Mapping[str, Any], every: bool = True) -> Iterator[str]:
    """What each test told, the furthest first, and the advice; with `every` unset, only the first test's."""
    for finding in found["findings"] if every else found["findings"][:1]:
        if finding["test"]:
            yield f"{finding['test']}: {finding['class']}"
        yield f"  {finding['sentence']}"
        yield from (f"  ({note})" for note in finding["notes"])
        yield f"  {Class(finding['class']).advice}"
    if found["declared"] and found["class"] not in (Class.NO_OP, Class.UNRESOLVED, Class.UNKNOWN):
        yield f"declared equivalent ({found['declared']}), and yet {Class(found['class']).meaning}"


def report(entries: Mapping[str, Any]) -> Iterator[str]:
    """All entries of a run, for the screen."""
    for name, found in sorted(entries.items()):
        if promised(found):
            continue
        yield heading(name, found)
        yield from (f"  {line}" for line in lines(found, every=False))


def promised(found: Mapping[str, Any]) -> bool:
    """Whether an entry is declared equivalent and nothing measured contradicts that."""
    return bool(found["declared"]) and found["class"] in (Class.NO_OP, Class.UNKNOWN, Class.NOT_REACHED)
