"""The gate: evidence against the tree as it is now. A pure function of both; nothing is run.

Each way of being absent, partial, stale or edited has a sentence of its own. A missing thing is never
a pass, and every verdict is derived again from the recorded observations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..exit_codes import ExitCode
from . import evidence, prepare, written
from .catalogue import Catalogue
from .decide import Finding, uncontrolled, weigh
from .inputs import tree_digests, versions
from .settings import Settings
from .verdict import Verdict

_KEYS = {
    "versions", "configuration", "catalogue", "baseline", "mutants", "controls", "swap_refused",
    "tree_unchanged", "complete",
}  # fmt: skip


def examine(
    root: Path, settings: Settings, catalogue: Catalogue
) -> tuple[list[Finding], dict[str, Any] | None]:
    """Return all findings, and the evidence when it could be read at all."""
    shown = f"{settings.reports}/{evidence.EVIDENCE}"
    path = root / settings.reports / evidence.EVIDENCE
    try:
        data = evidence.load(path, shown)
    except evidence.EvidenceLost as error:
        partial = (root / settings.reports / evidence.PARTIAL).exists() and not path.exists()
        hint = (
            f"; {settings.reports}/{evidence.PARTIAL} is of a filtered run and does not count"
            if partial
            else ""
        )
        return [Finding(ExitCode.ABSENT, f"{error}{hint}")], None
    findings = [Finding(ExitCode.USAGE, problem) for problem in catalogue.problems]
    try:
        lacking = sorted(_KEYS - set(data["predicate"]))
        if lacking:
            return [Finding(ExitCode.ABSENT, f"{shown} lacks {', '.join(lacking)}")], None
        findings += _held_against(root, settings, catalogue, data)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, RecursionError) as error:
        findings.append(Finding(ExitCode.ABSENT, f"{shown} has observations that cannot be read ({error!r})"))
        return findings, None
    return findings, data


def _held_against(
    root: Path, settings: Settings, catalogue: Catalogue, data: Mapping[str, Any]
) -> list[Finding]:
    """The evidence against the tree; what cannot be read raises whatever it raises."""
    predicate = data["predicate"]
    stale = list(_stale(root, settings, data))
    findings = [*stale, *_versions(predicate), *_catalogue(root, settings, catalogue, predicate)]
    # Which controls are owed follows from the judged tree, which a stale one is not.
    findings += [] if stale else uncontrolled(root, catalogue.mutants, predicate)
    findings += weigh(predicate)
    if not stale and not catalogue.problems:
        odd = written.oddities(root, settings, catalogue.mutants, predicate)
        findings += [Finding(ExitCode.ABSENT, sentence) for sentence in odd]
    return findings


def _stale(root: Path, settings: Settings, data: Mapping[str, Any]) -> Iterator[Finding]:
    now, then = tree_digests(root, settings), evidence.digests_of(data)
    if not then:
        yield Finding(ExitCode.ABSENT, "the evidence is bound to no file at all")
    if len(data["subject"]) != len(then):
        yield Finding(ExitCode.ABSENT, "the evidence names a file twice")
    changed = [name for name in then if name in now and now[name] != then[name]]
    for what, names in (
        ("changed since the run", changed),
        ("are gone since the run", [name for name in then if name not in now]),
        ("are new since the run", [name for name in now if name not in then]),
    ):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            yield Finding(ExitCode.ABSENT, f"stale: {len(names)} files {what}: {', '.join(names[:3])}{more}")


def _versions(predicate: Mapping[str, Any]) -> Iterator[Finding]:
    now = versions()
    for name in dict.fromkeys([*now, *predicate["versions"]]):
        here, then = (found.get(name, "of unknown version") for found in (now, predicate["versions"]))
        if here != then:
            yield Finding(ExitCode.ABSENT, f"stale: judged with {name} {then}, here is {name} {here}")


def _catalogue(
    root: Path, settings: Settings, catalogue: Catalogue, predicate: Mapping[str, Any]
) -> Iterator[Finding]:
    if not predicate["complete"]:
        yield Finding(
            ExitCode.ABSENT, "the evidence is of a filtered run, which proves nothing about the rest"
        )
    if predicate["configuration"] != evidence.as_json(settings.effective()):
        yield Finding(ExitCode.ABSENT, "stale: the effective configuration differs from the run's")
    judged = {(record["id"], record["expected"]) for record in predicate["mutants"]}
    listed = {(mutant.id, mutant.expected) for mutant in catalogue.mutants}
    for name, expected in sorted(listed - judged):
        yield Finding(ExitCode.ABSENT, f"{name}: expected {expected}, but the evidence holds no such result")
    for name, expected in sorted(judged - listed):
        yield Finding(
            ExitCode.ABSENT, f"{name}: judged as expected {expected}, but no catalogue entry says so"
        )
    records = {record["id"]: record for record in predicate["mutants"]}
    known = {verdict.value for verdict in Verdict}
    for record in predicate["mutants"]:
        if record["verdict"] not in known:
            yield Finding(
                ExitCode.ABSENT, f"{record['id']}: '{record['verdict']}' is no verdict of this program"
            )
    for mutant in catalogue.mutants:
        if mutant.id in records:
            yield from _entry(root, mutant, records[mutant.id], predicate)


def _entry(
    root: Path, mutant: Any, record: Mapping[str, Any], predicate: Mapping[str, Any]
) -> Iterator[Finding]:
    """The record must be about this entry's text and killers, whatever it says about itself."""
    fault = prepare.of_mutant(root, mutant)
    if record["sources"] != fault.sources or record["bytecode_differs"] != fault.bytecode_differs:
        yield Finding(ExitCode.ABSENT, f"{mutant.id}: the judged source is not what the catalogue describes")
    if list(record["killers"]) != sorted(mutant.killed_by) and set(record["killers"]) != set(
        mutant.killed_by
    ):
        yield Finding(ExitCode.ABSENT, f"{mutant.id}: the judged killers are not the listed ones")
    if record["dies_by"] != mutant.dies_by:
        yield Finding(ExitCode.ABSENT, f"{mutant.id}: judged with another dies_by than the catalogue's")
    for when in ("before", "after"):
        unseen = [test for test in record["killers"] if test not in predicate["baseline"][when]]
        if unseen:
            yield Finding(
                ExitCode.INSTRUMENT, f"{mutant.id}: {unseen[0]} was not run without the mutant {when} judging"
            )
