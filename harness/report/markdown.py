"""reports/mutation.md: the same rows as on screen, for a pull request or an artefact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..mutation.decide import Finding, counts, exit_code
from . import why
from .rows import HEADINGS, claims, control_lines, legend, rows, scope_line


def markdown(predicate: Mapping[str, Any], notes: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    """Render the report."""
    code = exit_code(list(findings))
    lines = [
        "# Mutation report",
        "",
        f"exit {int(code)}: {code.meaning}",
        "",
        counts(predicate),
        "",
        scope_line(predicate),
        "",
    ]
    if findings:
        lines += ["## Findings", "", *(f"- exit {int(f.code)}: {_cell(f.sentence)}" for f in findings), ""]
    lines += ["## Mutants", "", _table_row(HEADINGS), _table_row(["---"] * len(HEADINGS))]
    for row in rows(predicate, notes):
        verdict = row.verdict if row.promised else f"**{row.verdict}**"
        lines.append(_table_row([row.id, row.theme, verdict, "<br>".join(row.killers), row.message]))
    told = list(why.report(notes.get("why", {})))
    if told:
        lines += ["", "## Why they are not seen", "", *(f"- {_cell(line)}" for line in told)]
    lines += [
        "",
        "## Controls",
        "",
        *(f"- {line}" for line in [*control_lines(predicate), *claims(predicate)]),
        "",
    ]
    lines += ["## Verdicts", "", *(f"- {line}" for line in legend(predicate))]
    return "\n".join(lines) + "\n"


def _table_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
