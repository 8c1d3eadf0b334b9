"""The controls that a run owes, derived from catalogue, tree and records.

The run plans by this and the gate asks for the same, so a control that was never run is missed:

    trap            every function that was judged by swap: a swap there was seen to take effect
    null            every mutated function, in every way of judging in which a killer did more than pass it by
    null form       identity and comment at the first place that a killer reaches; a renamed local at the
                    first that has one to rename
    canary          every mutated file, if a killer did more than pass its changes by

In a shard the places are those of the whole catalogue: a control has the same speakers there as in one
run of all, so what two shards both made is the same, and together they made all that one run owes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import canary, prepare
from .anchor import MODULE
from .catalogue import Mutant
from .serving import read_source
from .verdict import Reading, read

TRAP, NULL, CANARY = "trap", "null", "canary"
IDENTITY, COMMENT, RENAMED = (f"null form: {form}" for form in ("identity", "comment", "renamed local"))
Function = tuple[str, str]
Records = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Owed:
    """One control: which, where, and by which way of judging if that matters."""

    control: str
    file: str
    function: str = ""
    mode: str = ""

    def __str__(self) -> str:
        where = f"{self.file} {self.function}".rstrip()
        return f"{self.control} in {where}" + (f" by {self.mode}" if self.mode else "")


@dataclass(frozen=True)
class Places:
    """Which functions and files the judged mutants change, and the killers that can speak for them."""

    functions: Mapping[Function, tuple[str, ...]]
    files: Mapping[str, tuple[str, ...]]
    by_mutant: Mapping[str, tuple[Function, ...]]

    def functions_of(self, file: str) -> list[str]:
        """The mutated functions of a file."""
        return [name for found, name in self.functions if found == file]


def places(root: Path, mutants: Sequence[Mutant]) -> Places:
    """Collect the places of all mutants; each knows the killers listed for it, in catalogue order."""
    functions: dict[Function, dict[str, None]] = {}
    files: dict[str, dict[str, None]] = {}
    by_mutant = {mutant.id: prepare.of_mutant(root, mutant).functions for mutant in mutants}
    for mutant in mutants:
        for function in by_mutant[mutant.id]:
            functions.setdefault(function, {}).update(dict.fromkeys(mutant.killed_by))
        for file in mutant.files:
            files.setdefault(file, {}).update(dict.fromkeys(mutant.killed_by))
    return Places(
        functions={key: tuple(tests) for key, tests in functions.items()},
        files={key: tuple(tests) for key, tests in files.items()},
        by_mutant=by_mutant,
    )


def traps(found: Places, records: Records) -> list[Owed]:
    """What a run owes once it has judged by swap."""
    modes = _modes(found, records)
    return [Owed(TRAP, file, name) for file, name in found.functions if "swap" in modes.get((file, name), ())]


def nulls(found: Places, records: Records) -> list[Owed]:
    """A null mutant for each function and way of judging."""
    modes = _modes(found, records, heard_only=True)
    return [
        Owed(NULL, file, name, mode)
        for file, name in found.functions
        for mode in sorted(modes.get((file, name), ()))
    ]


def forms(root: Path, found: Places, records: Records) -> dict[Owed, str]:
    """The null forms, each with the text that it serves."""
    modes = _modes(found, records, heard_only=True)
    speaking = reaching(records)
    usable = [
        place for place, tests in found.functions.items() if modes.get(place) and speaking.intersection(tests)
    ]
    result: dict[Owed, str] = {}
    for file, name in usable[:1]:
        text = source(root, file)
        result[Owed(IDENTITY, file, name)] = text
        result[Owed(COMMENT, file, name)] = canary.commented(text)
    for file, name in usable:
        renamed = canary.renamed_local(source(root, file), name)
        if renamed is not None:
            result[Owed(RENAMED, file, name)] = renamed
            break
    return result


def canaries(found: Places, records: Records) -> list[Owed]:
    """A canary for each file with an entry that its killers did not simply pass by."""
    spoke = [record for record in records if not record["killers"] or _modes_of(record, True)]
    judged = {file for record in spoke for file in record["sources"]}
    return [Owed(CANARY, file) for file, tests in found.files.items() if tests and file in judged]


def missing(root: Path, mutants: Sequence[Mutant], predicate: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each control that was owed and is not recorded."""
    records = predicate["mutants"]
    if not records:
        return
    found = places(root, mutants)
    there = {_recorded(record) for record in predicate["controls"]}
    for owed in (
        *traps(found, records),
        *nulls(found, records),
        *forms(root, found, records),
        *canaries(found, records),
    ):
        if owed not in there:
            yield f"there is no {owed}"


def _recorded(record: Mapping[str, Any]) -> Owed | None:
    control, file, function = record["control"], record["file"], record["function"] or ""
    if control == TRAP:
        return Owed(TRAP, file, function) if record["hit"] else None
    if control == CANARY:
        return Owed(CANARY, file)
    return Owed(control, file, function, record["mode"] if control == NULL else "")


def _modes(found: Places, records: Records, heard_only: bool = False) -> dict[Function, set[str]]:
    """The ways of judging that were used on each function, or those in which a killer did not pass it by.

    What no killer runs, no null mutant can pass through: a finding about the entry, not a broken instrument.
    """
    used: dict[Function, set[str]] = {}
    for record in records:
        modes = _modes_of(record, heard_only)
        for function in found.by_mutant.get(record["id"], ()):
            used.setdefault(function, set()).update(modes)
    return used


def _modes_of(record: Mapping[str, Any], heard_only: bool) -> set[str]:
    attempts = [seen for of_test in record["killers"].values() for seen in of_test]
    return {seen["mode"] for seen in attempts if not (heard_only and _passed_by(seen, record["sources"]))}


def _passed_by(seen: Mapping[str, Any], sources: Mapping[str, str]) -> bool:
    """The mutated source was there, the test ended by itself, and nothing of the change ran."""
    ended = read(seen, sources).reading in (Reading.PASSED, Reading.RED_UNREACHED)
    return ended and not seen.get("reached")


def reaching(records: Records) -> set[str]:
    """The killers that executed a changed line of some mutant."""
    return {
        test
        for record in records
        for test, attempts in record["killers"].items()
        if any(seen.get("reached") for seen in attempts)
    }


def source(root: Path, file: str) -> str:
    """The original text of a mutated file."""
    return read_source(str(root / file))


def trappable(found: Places, names: Collection[str]) -> list[tuple[Function, tuple[str, ...]]]:
    """Functions that these entries change and that a trap can be set in, each with its killers."""
    touched = {place for name in names for place in found.by_mutant[name]}
    return [
        (place, tests)
        for place, tests in found.functions.items()
        if place in touched and place[1] != MODULE and tests
    ]


def key(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Which control a record is of."""
    return (record["control"], record["file"], record["function"] or "", record.get("mode") or "")


def in_order(records: Records) -> list[dict[str, Any]]:
    """Recorded controls in an order that does not depend on which machine ran them."""
    return [dict(record) for record in sorted(records, key=key)]


def merged(root: Path, mutants: Sequence[Mutant], records: Records, made: Records) -> list[dict[str, Any]]:
    """The controls of all shards as one run has them: each once, and a null form at one place only."""
    owing = set(forms(root, places(root, mutants), records))
    kept = {key(each): each for each in made if not _is_form(each) or _recorded(each) in owing}
    return in_order(list(kept.values()))


def _is_form(record: Mapping[str, Any]) -> bool:
    return record["control"] in (IDENTITY, COMMENT, RENAMED)
