"""`mutate list`, `mutate show` and `mutate explain`: the catalogue for a reader, as lines of text."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..mutation.anchor import sources
from ..mutation.catalogue import Mutant
from ..mutation.verdict import Reading, Verdict, fate, read, red_greens, unserved


def listing(mutants: Sequence[Mutant], records: Mapping[str, Any]) -> Iterator[str]:
    """One line per entry: id, theme, what should come out, what came out last."""
    wide = max((len(mutant.id) for mutant in mutants), default=0)
    themes = max((len(mutant.theme) for mutant in mutants), default=0)
    for mutant in mutants:
        last = records[mutant.id]["verdict"] if mutant.id in records else "not judged"
        killers = f"{len(mutant.killed_by)} killers"
        yield f"{mutant.id:<{wide}}  {mutant.theme:<{themes}}  should be {mutant.expected}, {killers}; last: {last}"
    yield f"{len(mutants)} entries"


def shown(root: Path, mutant: Mutant, record: Mapping[str, Any] | None) -> Iterator[str]:
    """One entry: its sentences, its diff, and its last outcome."""
    yield f"{mutant.id} ({mutant.theme}, {mutant.kind})"
    yield f"because: {mutant.because}"
    yield f"origin:  {mutant.origin}"
    if mutant.why:
        yield f"why:     {mutant.why}"
    for file, (original, mutated) in sources(root, mutant.edits).items():
        yield ""
        yield from difflib.unified_diff(
            original.splitlines(), mutated.splitlines(), f"{file} (original)", f"{file} (mutant)", lineterm=""
        )
    yield ""
    yield from (f"killed by: {test}" for test in mutant.killed_by)
    yield from (f"must stay green: {test}" for test in mutant.must_stay_green)
    yield from (
        f"survives under: {kind} (claimed; `python -m harness.lens` verifies it)"
        for kind in mutant.survives_under
    )
    if record is None:
        yield "last: not judged"
    else:
        yield f"last: {record['verdict']}, judged by {record['mode']}: {record['reason']}"


_ROLES = {"judge": "judged", "confirm": "confirmed", "alone": "alone, after a timeout"}


def explained(mutant: Mutant, record: Mapping[str, Any], stale: bool) -> Iterator[str]:
    """What the last run observed of one entry, killer by killer; nothing that was not measured."""
    sources, dies_by = record["sources"], record["dies_by"]
    verdict = Verdict(record["verdict"])
    yield f"{mutant.id}: {verdict}, should be {record['expected']}: {record['reason']}"
    yield f"{verdict}: {verdict.meaning}"
    yield f"because: {mutant.because}"
    why = f", since {record['why_reimport']}" if record["why_reimport"] else ""
    yield f"judged by {record['mode']}{why}"
    if stale:
        yield "the entry or its file changed since that run; this is about the text that was judged"
    for test, runs in record["killers"].items():
        yield ""
        yield test
        yield from (f"  {_attempt(seen, sources, dies_by)}" for seen in runs)
        yield f"  {_stage(runs, sources, dies_by)}"
    yield ""
    yield from _others(record)


def _attempt(seen: Mapping[str, Any], sources: Mapping[str, str], dies_by: str) -> str:
    found = read(seen, sources, dies_by)
    told = f"{_ROLES.get(seen['role'], seen['role'])} by {seen['mode']}"
    if seen["end"] != "answered":
        return f"{told}: {found.reading} ({found.note})"
    applied = "mutated source executed" if any(seen["source"].values()) else "mutated source not executed"
    collected = "collected" if seen["collected"] else "not collected"
    reached = "changed lines ran" if seen["reached"] else "changed lines did not run"
    left = ", started processes that saw the original" if unserved(seen) else ""
    note = f" ({found.note})" if found.note else ""
    return f"{told}: {applied}, {collected}, {reached}{left}: {found.reading}{note}"


def _stage(runs: Sequence[Mapping[str, Any]], sources: Mapping[str, str], dies_by: str) -> str:
    """In which stage the fault stands, as far as the run observed it."""
    result = fate(runs, sources, dies_by)
    answered = [seen for seen in runs if seen["end"] == "answered"]
    if result.reading is Reading.KILLED:
        return "stage: seen; its assertion failed in both runs"
    if not answered or result.reading in (Reading.UNKNOWN, Reading.TIMED_OUT):
        return f"stage: undecided; {result.note}"
    if result.reading is Reading.NOT_APPLIED:
        return "stage: not applied; the test never executed the mutated file"
    if not any(seen["reached"] for seen in answered):
        return "stage: not reached; the test executed the file and none of the changed lines"
    if result.reading is Reading.PASSED:
        return "stage: reached and not seen; the changed lines ran and every assertion held"
    return f"stage: reached, and no verdict of a test; {result.reading}: {result.note}"


def _others(record: Mapping[str, Any]) -> Iterator[str]:
    green = record["green"]
    if green:
        red = red_greens(record)
        yield f"must stay green: {len(green) - len(red)} of {len(green)} did"
        yield from (f"  red: {each}" for each in red)
    widened = record["widened"]
    if widened is None:
        yield "the rest of the suite was not run"
        return
    yield (
        f"the rest of the suite: {widened['suite']} tests, {widened['reaching']} ran the changed lines, "
        f"{len(widened['red'])} are red"
    )
    for test, seen in widened["red"].items():
        yield f"  {test}: {read(seen, record['sources'], record['dies_by']).note}"
