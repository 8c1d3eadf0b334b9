"""The report on screen; the only module that imports rich."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..exit_codes import ExitCode
from ..mutation.decide import Finding, counts
from ..mutation.matrix import Study
from .rows import HEADINGS, control_lines, legend, rows, scope_line

_NARROW = 100


def print_report(predicate: Mapping[str, Any], notes: Mapping[str, Any], findings: Sequence[Finding]) -> None:
    """Print table, counts, controls and findings."""
    console = Console()
    if not console.is_terminal and console.width < _NARROW:
        # A pipe has no width of its own; a wrapped id could be found by nobody.
        console = Console(width=200)
    table = Table(*HEADINGS, box=None, pad_edge=False)
    for row in rows(predicate, notes):
        style = "" if row.promised else "bold red"
        killers = escape("\n".join(row.killers))
        table.add_row(
            escape(row.id), escape(row.theme), row.verdict, killers, escape(row.message), style=style
        )
    if table.row_count:
        console.print(table)
    for line in [counts(predicate), scope_line(predicate), *control_lines(predicate), *legend(predicate)]:
        console.print(escape(line), soft_wrap=True, highlight=False)
    print_findings(findings)


def print_matrix(matrix: Mapping[str, Sequence[str]], study: Study) -> None:
    """Print how many listed checks see each entry, and what the matrix says about the checks."""
    console = Console()
    lines = [f"{name}: killed by {len(row)} of all listed checks" for name, row in matrix.items()]
    lines += [f"only {test} kills {name}" for name, test in study.sole.items()]
    lines += [f"{test} kills nothing" for test in study.idle]
    lines.append(
        f"matrix of {len(matrix)} entries: {len(study.twins)} groups that no check tells apart, "
        f"{len(study.sole)} entries with a single killer, {len(study.idle)} checks that kill nothing"
    )
    for line in lines:
        console.print(escape(line), soft_wrap=True, highlight=False)


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
