"""The report on screen; the only module that imports rich."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..exit_codes import ExitCode
from ..mutation.decide import Finding, counts
from ..mutation.matrix import Matrix, Study
from ..mutation.since import Changed
from . import why
from .matrix import sentences
from .rows import Row, claims, common_test, control_lines, legend, rows, scope_line

_NARROW = 100
_WIDE = 200
# Columns that name a row; they are never folded.
_NAMES = 2


def print_report(predicate: Mapping[str, Any], notes: Mapping[str, Any], findings: Sequence[Finding]) -> None:
    """Print table, counts, controls and findings."""
    console = Console()
    if not console.is_terminal and console.width < _NARROW:
        # A pipe has no width of its own; a wrapped id could be found by nobody.
        console = Console(width=200)
    shown = rows(predicate, notes)
    common = common_test(shown)
    if common:
        console.print(f"[...] is {common}[...]", markup=False, highlight=False)
    if shown:
        console.print(_table(shown, common))
    lines = [counts(predicate), scope_line(predicate), *claims(predicate), *control_lines(predicate)]
    for line in [*lines, *legend(predicate), *why.report(notes.get("why", {}))]:
        console.print(escape(line), soft_wrap=True, highlight=False)
    print_findings(findings)


def _table(shown: Sequence[Row], common: str) -> Table:
    """Killers whole, one a line, and under them the message; a long one is folded, never cut."""
    table = Table("mutant", "verdict", box=None, pad_edge=False)
    table.add_column("killers that killed, and the first message of the failing check", overflow="fold")
    theme = ""
    for row in shown:
        if row.theme != theme:
            theme = row.theme
            table.add_row(f"[bold]{escape(theme)}")
        told = [escape(test.replace(f"{common}[", "[", 1) if common else test) for test in row.killers]
        told += [f"[dim]{escape(row.message)}"] if row.message else []
        table.add_row(
            f"  {escape(row.id)}", row.verdict, "\n".join(told), style="" if row.promised else "bold red"
        )
    return table


def print_matrix(matrix: Matrix, study: Study) -> None:
    """Print how many tests see each entry, and what the matrix says about the checks."""
    print_lines(sentences(matrix, study))


def print_table(title: str, headings: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Print one table under its title; a wide one keeps its columns and is not cut."""
    console = Console()
    if console.width < _WIDE:
        console = Console(width=_WIDE)
    table = Table(title=escape(title), title_justify="left", box=None, pad_edge=False)
    for number, heading in enumerate(headings):
        table.add_column(escape(heading), overflow="fold", no_wrap=number < _NAMES)
    for row in cells:
        table.add_row(*map(escape, row))
    console.print(table)


def print_lines(lines: Sequence[str]) -> None:
    """Print sentences, one a line."""
    for line in lines:
        Console().print(escape(line), soft_wrap=True, highlight=False)


def print_audit(way: str, records: Sequence[Mapping[str, Any]], different: Sequence[Finding]) -> None:
    """Print whether another way of judging came to the same verdicts."""
    held = sum(record["mode"] == way for record in records)
    lines = [f"audit: {held} of {len(records)} entries were judged by {way} alone"]
    if different:
        lines += [finding.sentence for finding in different]
    else:
        lines.append("audit: every verdict and every killer that killed is the evidence's")
    for line in lines:
        Console().print(escape(line), soft_wrap=True, highlight=False)


def print_since(revision: str, changed: Changed, total: int) -> None:
    """Print which entries changes ask for, and why."""
    lines = [f"{len(changed.files)} files differ from {revision} and could change a verdict"]
    for file in changed.files:
        asked = [name for name, why in changed.why.items() if why == file]
        lines += [f"  {file}: {len(asked)} entries"] if asked else []
    lines.append(f"{len(changed.why)} of {total} entries are judged")
    for line in lines:
        Console().print(escape(line), soft_wrap=True, highlight=False)


def print_findings(findings: Sequence[Finding]) -> None:
    """Print each finding on a line of its own, with the exit code it asks for."""
    console = Console()
    for finding in findings:
        console.print(
            escape(f"exit {int(finding.code)}: {finding.sentence}"),
            soft_wrap=True,
            highlight=False,
            style="red",
        )


def print_last_line(code: ExitCode) -> None:
    """Print the exit code with its meaning."""
    Console().print(escape(f"exit {int(code)}: {code.meaning}"), soft_wrap=True, highlight=False)
