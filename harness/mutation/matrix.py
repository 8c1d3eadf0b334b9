"""The kill matrix: every entry against every listed killer, whether listed for it or not.

It answers which checks kill nothing, which are the only killer of something, and which entries no
check can tell apart. Two entries with the same row are *twins*: one must name the other in
`twin_of`, or the catalogue counts one fault twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..exit_codes import ExitCode
from . import prepare
from .campaign import Campaign, batches
from .catalogue import Mutant
from .decide import Finding
from .observe import observations
from .prepare import Fault
from .verdict import Reading, read

NAME = "matrix.json"
Rows = Mapping[str, Sequence[str]]


def fill(
    campaign: Campaign, mutants: Sequence[Mutant], records: Sequence[Mapping[str, Any]]
) -> dict[str, list[str]]:
    """Return {entry: the killers, of all listed ones, that kill it}, both sorted."""
    killers = sorted({test for mutant in mutants for test in mutant.killed_by})
    settled = {record["id"]: record for record in records}

    def row(mutant: Mutant) -> list[str]:
        campaign.tell(f"matrix: {mutant.id}")
        known = set(settled[mutant.id]["killed"])
        others = [test for test in killers if test not in mutant.killed_by]
        return sorted(known | set(_killing(campaign, mutant, settled[mutant.id]["mode"], others)))

    return dict(sorted(zip([m.id for m in mutants], campaign.each(row, mutants), strict=True)))


def _killing(campaign: Campaign, mutant: Mutant, mode: str, tests: Sequence[str]) -> Iterator[str]:
    """Tests share forks; a red among them is judged again alone."""
    fault = prepare.of_mutant(campaign.root, mutant)
    for batch in batches(tests):
        seen = _once(campaign, fault, mode, batch)
        suspects = [
            t for t in batch if read(seen[t], fault.sources, mutant.dies_by).reading is not Reading.PASSED
        ]
        for test in suspects:
            alone = _once(campaign, fault, mode, [test])[test]
            if read(alone, fault.sources, mutant.dies_by).reading is Reading.KILLED:
                yield test


def _once(campaign: Campaign, fault: Fault, mode: str, tests: list[str]) -> dict[str, dict[str, Any]]:
    reply = campaign.ask(fault, mode, tests)
    if reply["end"] == "answered" and reply["answer"]["kind"] == "refused":
        return _once(campaign, fault, campaign.reference, tests)
    return observations(reply, mode, "matrix", tests)


@dataclass(frozen=True)
class Study:
    """What a matrix says; every list is sorted."""

    twins: tuple[tuple[str, ...], ...]
    idle: tuple[str, ...]
    sole: Mapping[str, str]


def study(rows: Rows, mutants: Sequence[Mutant]) -> Study:
    """Read a matrix: groups of equal rows, checks that kill nothing, and sole killers."""
    equal: dict[tuple[str, ...], list[str]] = {}
    for name, row in rows.items():
        if row:
            equal.setdefault(tuple(row), []).append(name)
    killers = {test for mutant in mutants for test in mutant.killed_by}
    fired = {test for row in rows.values() for test in row}
    return Study(
        twins=tuple(sorted(tuple(sorted(group)) for group in equal.values() if len(group) > 1)),
        idle=tuple(sorted(killers - fired)),
        sole={name: row[0] for name, row in rows.items() if len(row) == 1},
    )


def findings(rows: Rows, mutants: Sequence[Mutant]) -> list[Finding]:
    """Undeclared twins, and declared ones that a check does tell apart."""
    named = {m.id: m.twin_of for m in mutants if m.twin_of is not None and m.id in rows}
    result = []
    for group in study(rows, mutants).twins:
        loose = _unconnected(group, named)
        if loose:
            names = ", ".join(group)
            result.append(
                Finding(
                    ExitCode.FINDING,
                    f"undeclared twins: no check tells apart {names}; add a check that does, or twin_of",
                )
            )
    for name, twin in sorted(named.items()):
        if twin in rows and list(rows[name]) != list(rows[twin]):
            apart = sorted(set(rows[name]) ^ set(rows[twin]))
            result.append(
                Finding(
                    ExitCode.FINDING,
                    f"{name}: twin_of {twin}, but {apart[0]} tells the two apart; drop twin_of",
                )
            )
    return result


def _unconnected(group: Sequence[str], named: Mapping[str, str | None]) -> bool:
    """True unless the twin_of links inside the group join all of it."""
    joined = {group[0]}
    for _ in group:
        joined |= {name for name in group if named.get(name) in joined}
        joined |= {str(named[name]) for name in joined if named.get(name) in group}
    return joined != set(group)
