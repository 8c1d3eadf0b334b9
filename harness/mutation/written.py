"""Is this what a run of this tree would have written? For the gate, beside deriving the verdicts again.

A verdict that follows from its observations proves little if the observations cannot have been made: a kill
that was copied instead of confirmed, a canary of a text that the engine never plants, a record that lacks the
tests that must stay green. Pure functions of evidence and tree; every sentence says what does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import controls, owed
from .catalogue import Mutant
from .evidence import as_json
from .ready import matches
from .serving import digest
from .settings import Settings
from .verdict import needs_another, rule

_PREDICATE = {"versions", "configuration", "catalogue", "baseline", "mutants", "controls", "swap_refused",
              "tree_unchanged", "complete"}  # fmt: skip
_RECORD = {"id", "theme", "kind", "expected", "dies_by", "twin_of", "sources", "bytecode_differs", "mode",
           "why_reimport", "killers", "green", "widened", "doubt", "verdict", "reason", "killed"}  # fmt: skip
_MODES = ("swap", "reimport", "spawn")
_YES_OR_NO = ("collected", "reached", "stale", "joined", "started")
Record = Mapping[str, Any]


def oddities(root: Path, settings: Settings, mutants: Sequence[Mutant], predicate: Record) -> Iterator[str]:
    """A sentence for everything that no run of this tree writes."""
    yield from _keys("the evidence", _PREDICATE, predicate)
    if predicate["catalogue"] != as_json([mutant.told for mutant in mutants]):
        yield "the evidence's copy of the catalogue is not the catalogue"
    for name in ("complete", "tree_unchanged"):
        if not isinstance(predicate[name], bool):
            yield f"the evidence says {name}: {predicate[name]!r}, should be true or false"
    for where, seen in _observations(predicate):
        if seen["mode"] not in _MODES:
            yield f"{where}: '{seen['mode']}' is no way of judging"
        yield from (
            f"{where}: {k} is {seen[k]!r}, should be true or false"
            for k in _YES_OR_NO
            if k in seen and not isinstance(seen[k], bool)
        )
    for when in ("before", "after"):
        for test, seen in predicate["baseline"][when].items():
            if seen["role"] != "baseline" or seen.get("source"):
                yield f"baseline {when}: {test} was run as '{seen['role']}' of a mutated source"
    by_id = {mutant.id: mutant for mutant in mutants}
    for record in predicate["mutants"]:
        if record["id"] in by_id:
            for sentence in _entry(by_id[record["id"]], record, predicate):
                yield f"{record['id']}: {sentence}"
    yield from _controls(root, settings, owed.places(root, mutants), predicate)


def _keys(what: str, wanted: set[str], there: Record) -> Iterator[str]:
    for told, names in (("lacks", wanted - set(there)), ("holds what no run writes:", set(there) - wanted)):
        if names:
            yield f"{what} {told} {', '.join(sorted(names))}"


def _observations(predicate: Record) -> Iterator[tuple[str, Record]]:
    for when in ("before", "after"):
        yield from ((f"baseline {when}: {t}", seen) for t, seen in predicate["baseline"][when].items())
    for record in predicate["mutants"]:
        for tests in (record["killers"], record["green"]):
            yield from ((f"{record['id']}: {t}", seen) for t, runs in tests.items() for seen in runs)
    for record in predicate["controls"]:
        if record.get("seen") is not None:
            yield f"{record['control']} in {record['file']}", record["seen"]


def _entry(mutant: Mutant, record: Record, predicate: Record) -> Iterator[str]:
    yield from _keys("the record", _RECORD, record)
    for key, value in (("theme", mutant.theme), ("kind", mutant.kind), ("twin_of", mutant.twin_of)):
        if record[key] != value:
            yield f"recorded with {key} {record[key]}, the entry says {value}"
    ruling = rule(record)
    if record["verdict"] == ruling.verdict and (record["reason"], record["killed"]) != (
        ruling.reason,
        list(ruling.killed),
    ):
        yield "the recorded reason or the killers that killed do not follow from the observations"
    if not record["bytecode_differs"]:
        return
    first = {attempts[0]["mode"] for attempts in record["killers"].values() if attempts}
    if record["mode"] not in (first or _MODES):
        yield f"recorded as judged by {record['mode']}, and no killer was"
    for test, attempts in record["killers"].items():
        yield from _attempts(test, attempts, record, predicate)
    yield from _greens(mutant, record, predicate)
    undecided = rule({**record, "doubt": {}, "widened": None}).needs_suite
    if undecided != (record["widened"] is not None):
        told = "was not searched, though nothing else decides" if undecided else "was searched without need"
        yield f"the rest of the suite {told}"


def _attempts(test: str, attempts: Sequence[Record], record: Record, predicate: Record) -> Iterator[str]:
    """Each run is the one that those before it called for, and none is left to be done."""
    for number, seen in enumerate(attempts):
        role = needs_another(attempts[:number], record["sources"], record["dies_by"])
        if seen["role"] != role:
            yield f"{test} run {number + 1} is '{seen['role']}', should be '{role or 'no run at all'}'"
            return
        if seen["mode"] == "swap" and (number or predicate["swap_refused"] is not None):
            yield f"{test} run {number + 1} was judged by swap, which this run cannot have done"


def _greens(mutant: Mutant, record: Record, predicate: Record) -> Iterator[str]:
    there = record["green"]
    for glob in mutant.must_stay_green:
        known = {*there, *mutant.killed_by}
        if not any(matches(test, glob) for test in known):
            yield f"no test of must_stay_green '{glob}' was run"
        for test in predicate["baseline"]["before"]:
            if matches(test, glob) and test not in known:
                yield f"{test} must stay green and was not run"
    for test, attempts in there.items():
        if not any(matches(test, glob) for glob in mutant.must_stay_green):
            yield f"{test} was run as must_stay_green, which the entry does not list"
        if [seen["role"] for seen in attempts] not in (["green"], ["green", "green-alone"]):
            yield f"{test} was not run as must_stay_green"
        for when in ("before", "after"):
            if test not in predicate["baseline"][when]:
                yield f"{test} was not run without the mutant {when} judging"


def _controls(root: Path, settings: Settings, found: owed.Places, predicate: Record) -> Iterator[str]:
    """Each control served what the engine would serve, to a test that speaks for the place."""
    forms = owed.forms(root, found, predicate["mutants"])
    for record in predicate["controls"]:
        control, file, function, seen = (record.get(k) for k in ("control", "file", "function", "seen"))
        # A trap proves itself by being hit, and a control that was not run was told already.
        if control == owed.TRAP or seen is None or file not in found.files:
            continue
        where = f"control: {control} in {file}"
        if control == owed.CANARY:
            tests, role = found.files[file], "canary"
            served = record["sources"] in (
                {file: digest(each.text)}
                for each in controls.canaries(root, settings, found, file)
                if (each.name, each.function) == (record["form"], function)
            )
        else:
            tests, role = found.functions.get((file, function), ()), "null"
            text = (
                owed.source(root, file)
                if control == owed.NULL
                else forms.get(owed.Owed(control, file, function))
            )
            served = text is not None and record["sources"] == {file: digest(text)}
        if not served:
            yield f"{where}: it served a text that the engine does not make"
        if record["test"] not in tests or seen["role"] != role:
            yield f"{where}: {record['test']} as '{seen['role']}' cannot speak for it"
