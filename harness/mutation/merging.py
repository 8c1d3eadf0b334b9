"""`gate merge`: the shards of one run become its evidence, byte for byte what one machine would have written.

Everything that could make a merge say more than was judged is refused with a sentence: a shard that is
missing, doubled, edited, unfinished, or judged on other inputs than the others or than the tree here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..exit_codes import ExitCode
from . import evidence, owed
from .catalogue import Catalogue
from .decide import Finding, uncontrolled, weigh
from .inputs import tree_digests
from .settings import Settings
from .shards import Shard

_SAME = ("versions", "configuration", "swap_refused")
Statement = Mapping[str, Any]


@dataclass
class Merged:
    """The evidence and notes of a merge that was not refused, and all findings."""

    findings: list[Finding]
    statement: dict[str, Any] | None = None
    notes: dict[str, Any] = field(default_factory=dict)


def merge(root: Path, settings: Settings, found: Catalogue, files: Sequence[Path]) -> Merged:
    """Read shards and put them together; nothing is written."""
    try:
        return _merge(root, settings, found, files)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        return _refused([f"a shard has content that cannot be read ({error!r})"])


def _merge(root: Path, settings: Settings, found: Catalogue, files: Sequence[Path]) -> Merged:
    given: dict[str, Statement] = {}
    lost = []
    for path in files:
        try:
            given[str(path)] = evidence.load(path, str(path))
        except evidence.EvidenceLost as error:
            lost.append(str(error).partition("; run `")[0])
    lost += [f"{name} is no shard of a run" for name, data in given.items() if not _is_shard(data)]
    lost += [f"{name} is given twice" for name, count in Counter(map(str, files)).items() if count > 1]
    if lost:
        return _refused(lost)
    problems = [*_parts(given), *_inputs(given), *_tree(root, settings, given)]
    if problems:
        return _refused(problems)
    problems = [*_entries(given)]
    if problems:
        return _refused(problems)
    shards = [data["predicate"] for _, data in sorted(given.items(), key=lambda item: _index(item[1]))]
    disagreement = [*_disagreements(shards)]
    if disagreement:
        return Merged([Finding(ExitCode.INSTRUMENT, sentence) for sentence in disagreement])
    one = next(iter(given.values()))
    made = evidence.statement(evidence.digests_of(one), _predicate(root, found, shards))
    findings = [*weigh(made["predicate"]), *uncontrolled(root, found.mutants, made["predicate"])]
    return Merged(findings, made, {**_notes(shards), "evidence_seal": made["seal"]})


def _refused(sentences: Sequence[str]) -> Merged:
    return Merged([Finding(ExitCode.ABSENT, f"merge: {sentence}") for sentence in sentences])


def _is_shard(data: Statement) -> bool:
    return {"shard", "notes"} <= set(data["predicate"])


def _index(data: Statement) -> int:
    return int(data["predicate"]["shard"]["index"])


def _parts(given: Mapping[str, Statement]) -> Iterator[str]:
    """Every part of one number of parts, each exactly once."""
    sizes: dict[int, list[str]] = {}
    for name, data in given.items():
        sizes.setdefault(int(data["predicate"]["shard"]["of"]), []).append(name)
    if len(sizes) > 1:
        told = ", ".join(f"{names[0]} is one of {of}" for of, names in sizes.items())
        yield f"shards of different runs: {told}; judge all with the same n"
        return
    (of,) = sizes
    found: dict[int, list[str]] = {}
    for name, data in given.items():
        found.setdefault(_index(data), []).append(name)
    for index in range(of):
        names = found.get(index, [])
        if not names:
            yield f"{Shard(index, of)} is missing; {len(found)} of {of} were given"
        elif len(names) > 1:
            yield f"{Shard(index, of)} is doubled: {' and '.join(names)}"


def _inputs(given: Mapping[str, Statement]) -> Iterator[str]:
    """Files, versions, configuration and catalogue are the same in all."""
    (first, one), *others = given.items()
    for name, data in others:
        files = _different(evidence.digests_of(one), evidence.digests_of(data))
        if files:
            more = f" and {len(files) - 1} more" if len(files) > 1 else ""
            yield f"{name} is foreign: {files[0]}{more} differ from what {first} was judged on"
        for what in _SAME:
            if data["predicate"][what] != one["predicate"][what]:
                yield f"{name} is foreign: its {what} differ from {first}'s"
        if data["predicate"]["shard"]["catalogue"] != one["predicate"]["shard"]["catalogue"]:
            yield f"{name} is foreign: its catalogue lists other entries than {first}'s"


def _different(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return sorted(name for name in {*one, *other} if one.get(name) != other.get(name))


def _tree(root: Path, settings: Settings, given: Mapping[str, Statement]) -> Iterator[str]:
    name, data = next(iter(given.items()))
    files = _different(evidence.digests_of(data), tree_digests(root, settings))
    if files:
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        yield f"{name} is foreign: {files[0]}{more} differ from the tree here; merge where the shards were judged"


def _entries(given: Mapping[str, Statement]) -> Iterator[str]:
    """Every entry of the catalogue was judged, in exactly one shard."""
    owners: dict[str, list[str]] = {}
    for name, data in given.items():
        predicate = data["predicate"]
        listed = [entry["id"] for entry in predicate["catalogue"]]
        judged = {record["id"] for record in predicate["mutants"]}
        if judged != set(listed):
            yield f"{name} is unfinished: it judged {len(judged & set(listed))} of its {len(listed)} entries"
        for entry in listed:
            owners.setdefault(entry, []).append(name)
    wanted = next(iter(given.values()))["predicate"]["shard"]["catalogue"]
    for what, names in (
        ("are in no shard", [entry for entry in wanted if entry not in owners]),
        ("are in two shards", [entry for entry in wanted if len(owners.get(entry, ())) > 1]),
        ("are in no catalogue", sorted(set(owners) - set(wanted))),
    ):
        if names:
            yield f"{len(names)} entries {what}: {', '.join(names[:3])}"


def _disagreements(shards: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Shards run some tests and traps twice; they must have seen the same."""
    seen: dict[Any, Any] = {}
    for predicate in shards:
        runs: list[tuple[tuple[str, ...], Any]] = [
            (("baseline " + when, test), run)
            for when in ("before", "after")
            for test, run in predicate["baseline"][when].items()
        ]
        runs += [(owed.key(record), record) for record in predicate["controls"]]
        for key, run in runs:
            if seen.setdefault(key, run) != run:
                yield f"merge: two shards saw different things in {' '.join(filter(None, key))}; judge again"


def _predicate(root: Path, found: Catalogue, shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The predicate that one run of all would have written."""
    made = {key: value for key, value in shards[0].items() if key not in ("shard", "notes")}
    entries = {entry["id"]: entry for predicate in shards for entry in predicate["catalogue"]}
    made["catalogue"] = [entries[name] for name in shards[0]["shard"]["catalogue"]]
    made["baseline"] = {
        when: {test: run for predicate in shards for test, run in predicate["baseline"][when].items()}
        for when in ("before", "after")
    }
    records = [record for predicate in shards for record in predicate["mutants"]]
    made["mutants"] = sorted(records, key=lambda record: str(record["id"]))
    controls = [record for predicate in shards for record in predicate["controls"]]
    made["controls"] = owed.merged(root, found.mutants, made["mutants"], controls)
    made["tree_unchanged"] = all(predicate["tree_unchanged"] for predicate in shards)
    made["complete"] = True
    return made


def _notes(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What may differ between equal runs, of all shards."""
    notes = [predicate["notes"] for predicate in shards]
    made: dict[str, Any] = {
        "shards": len(notes),
        "host": ", ".join(dict.fromkeys(str(note["host"]) for note in notes)),
        "jobs": sum(note["jobs"] for note in notes),
        "shuffle": [note["shuffle"] for note in notes],
        "hash_seed": ", ".join(dict.fromkeys(str(note["hash_seed"]) for note in notes)),
        "begun": min(note["begun"] for note in notes),
        "seconds": max(note["seconds"] for note in notes),
        "fork_refused": notes[0].get("fork_refused"),
    }
    for name in ("messages", "seconds_by_entry", "why"):
        made[name] = {key: value for note in notes for key, value in note[name].items()}
    for name in ("resumed", "rolled_back"):
        made[name] = sorted(each for note in notes for each in note[name])
    made["seconds_by_test"] = {}
    made["spent"] = {}
    for note in notes:
        for test, seconds in note["seconds_by_test"].items():
            made["seconds_by_test"][test] = max(seconds, made["seconds_by_test"].get(test, 0.0))
        for mode, spent in note["spent"].items():
            total = made["spent"].setdefault(mode, dict.fromkeys(spent, 0))
            for key, value in spent.items():
                total[key] += value
    return made
