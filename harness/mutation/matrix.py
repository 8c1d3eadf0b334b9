"""The kill matrix: every entry against every test that executes what it changes.

It answers which checks kill nothing, which are the only killer of something, and which entries no
check can tell apart. Two entries with the same row are *twins*: one must name the other in
`twin_of`, or the catalogue counts one fault twice.

The suite is cut into batches that share a fork, since tests of one batch often share what they prepare.
One traced run of each batch without a mutant says which mutated lines it executes; an entry meets only the
batches that execute its lines, the cheapest first. What is red there is judged again in other company,
alone if there are few: a row says what an entry does to the suite, a verdict is judged one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..exit_codes import ExitCode
from . import cover, prepare
from .anchor import MODULE
from .campaign import NOTHING, Campaign, passed
from .catalogue import Mutant
from .cover import Cover
from .decide import Finding
from .observe import observations
from .prepare import Fault
from .verdict import Reading, read

NAME = "matrix.json"
MARKDOWN = "matrix.md"
SHARE = 100
# So many reds of one entry are judged again one by one; more, again in company.
ALONE_MAX = 8
# So many batches of one entry may die or hang before the rest of them is given up, and said to be.
PATIENCE = 6
Rows = Mapping[str, Sequence[str]]
Place = tuple[str, str, int]


@dataclass
class Matrix:
    """Which tests kill which entry; `unsettled` counts the tests of an entry that gave no answer."""

    tests: list[str]
    rows: dict[str, list[str]] = field(default_factory=dict)
    unsettled: dict[str, int] = field(default_factory=dict)
    red: list[str] = field(default_factory=list)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Matrix:
        """What matrix.json holds."""
        tests = list(data["tests"])
        rows = {name: [tests[at] for at in row] for name, row in data["rows"].items()}
        return cls(tests, rows, dict(data["unsettled"]), list(data["red_without_mutant"]))

    def as_data(self) -> dict[str, Any]:
        """The form of matrix.json: tests once, rows as positions in that list."""
        at = {test: number for number, test in enumerate(self.tests)}
        rows = {name: [at[test] for test in row] for name, row in self.rows.items()}
        return {
            "tests": self.tests,
            "rows": rows,
            "unsettled": self.unsettled,
            "red_without_mutant": self.red,
        }


@dataclass(frozen=True)
class _Batch:
    tests: list[str]
    lines: frozenset[Place]
    seconds: float


def fill(campaign: Campaign, mutants: Sequence[Mutant], records: Sequence[Mapping[str, Any]]) -> Matrix:
    """Judge every entry by every test that executes what it changes."""
    killers = {test for mutant in mutants for test in mutant.killed_by}
    suite = sorted({*campaign.tests_of(campaign.settings.matrix or campaign.settings.suite), *killers})
    faults = {mutant.id: prepare.of_mutant(campaign.root, mutant) for mutant in mutants}
    changed = {place for fault in faults.values() for place in fault.functions}
    parts = [suite[low : low + SHARE] for low in range(0, len(suite), SHARE)]
    campaign.tell(f"matrix: which of {len(suite)} tests execute which mutated lines")
    found = campaign.each(lambda part: _traced(campaign, part, changed), parts)
    result = Matrix(suite, red=sorted(test for _, red in found for test in red))
    todo = sorted((batch for batch, _ in found if batch.tests), key=lambda batch: batch.seconds)
    settled = {record["id"]: record for record in records}

    def row(mutant: Mutant) -> tuple[list[str], int]:
        campaign.tell(f"matrix: {mutant.id}")
        judge = _Judge(campaign, mutant, faults[mutant.id], settled[mutant.id]["mode"])
        killing = judge.killing(batch.tests for batch in todo if meets(faults[mutant.id], batch.lines))
        return sorted({*settled[mutant.id]["killed"], *killing}), judge.unsettled

    for mutant, (names, unsettled) in zip(mutants, campaign.each(row, mutants), strict=True):
        result.rows[mutant.id] = names
        if unsettled:
            result.unsettled[mutant.id] = unsettled
    return result


def _traced(campaign: Campaign, part: list[str], changed: set[tuple[str, str]]) -> tuple[_Batch, list[str]]:
    """One batch without a mutant: the mutated functions' lines that it executes, and what is red there."""
    functions: dict[str, list[str]] = {}
    for file, name in sorted(changed):
        functions.setdefault(file, []).append(name)
    mode = campaign.reference if campaign.servers.swap_refused else "swap"
    reply = campaign.ask(NOTHING, mode, part, mapped=functions)
    if reply["end"] != "answered":
        return _Batch([], frozenset(), 0.0), part
    seen = observations(reply, mode, "matrix", part)
    green = [test for test in part if passed(seen[test])]
    seconds = float(reply["seconds"])
    for test in part:
        campaign.seconds.setdefault(test, seconds / len(part))
    lines = frozenset((file, name, line) for file, name, line in reply["answer"]["lines"])
    return _Batch(green, lines, seconds), [test for test in part if test not in green]


def meets(fault: Fault, lines: frozenset[Place]) -> bool:
    """Whether a batch that executed these lines of the original would execute the fault's."""
    if any(name == MODULE for _, name in fault.functions):
        return True
    if fault.replaced is not None:
        return any(place in lines for place in fault.replaced)
    entered = {(file, name) for file, name, _ in lines}
    return any(place in entered for place in fault.functions)


class _Judge:
    """The tests that one entry turns red, by an assertion, in two forks of different company."""

    def __init__(self, campaign: Campaign, mutant: Mutant, fault: Fault, mode: str) -> None:
        self.campaign, self.mutant, self.fault, self.mode = campaign, mutant, fault, mode
        self.unsettled = 0
        self._silent = 0

    def killing(self, parts: Iterator[list[str]]) -> list[str]:
        suspects = [test for part in parts for test in self._red(part)]
        size = 1 if len(suspects) <= ALONE_MAX else SHARE
        again = [suspects[low : low + size] for low in range(0, len(suspects), size)]
        return [test for part in again for test in self._red(part)]

    def _red(self, part: list[str]) -> list[str]:
        reply = self.campaign.ask(self.fault, self.mode, part, together=True)
        if reply["end"] == "answered" and reply["answer"]["kind"] == "refused":
            self.mode = self.campaign.reference
            return self._red(part)
        if reply["end"] != "answered":
            return self._halved(part)
        seen = observations(reply, self.mode, "matrix", part)
        readings = {test: read(run, self.fault.sources, self.mutant.dies_by) for test, run in seen.items()}
        return [test for test, result in readings.items() if result.reading is Reading.KILLED]

    def _halved(self, part: list[str]) -> list[str]:
        self._silent += 1
        if len(part) == 1 or self._silent > PATIENCE:
            self.unsettled += len(part)
            return []
        middle = len(part) // 2
        return self._red(part[:middle]) + self._red(part[middle:])


@dataclass(frozen=True)
class Study:
    """What a matrix says; every list is sorted."""

    twins: tuple[tuple[str, ...], ...]
    idle: tuple[str, ...]
    sole: Mapping[str, str]
    silent: tuple[str, ...]
    killing: Cover
    distinguishing: Cover


def study(matrix: Matrix, mutants: Sequence[Mutant]) -> Study:
    """Read a matrix: groups of equal rows, tests that kill nothing, sole killers, and the smallest sets."""
    rows = matrix.rows
    killers = {test for mutant in mutants if mutant.id in rows for test in mutant.killed_by}
    fired = {test for row in rows.values() for test in row}
    return Study(
        twins=twins(rows),
        idle=tuple(sorted(killers - fired)),
        sole={name: row[0] for name, row in rows.items() if len(row) == 1},
        silent=tuple(test for test in matrix.tests if test not in fired),
        killing=cover.killing(rows),
        distinguishing=cover.distinguishing(rows),
    )


def twins(rows: Rows) -> tuple[tuple[str, ...], ...]:
    """Groups of entries that the same tests kill: no check tells them apart."""
    equal: dict[tuple[str, ...], list[str]] = {}
    for name, row in rows.items():
        if row:
            equal.setdefault(tuple(row), []).append(name)
    return tuple(sorted(tuple(sorted(group)) for group in equal.values() if len(group) > 1))


def findings(rows: Rows, mutants: Sequence[Mutant]) -> list[Finding]:
    """Undeclared twins, and declared ones that a check does tell apart."""
    named = {m.id: m.twin_of for m in mutants if m.twin_of is not None and m.id in rows}
    result = []
    for group in twins(rows):
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
