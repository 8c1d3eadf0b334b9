"""A run of `python -m harness.mutate`, as the command line asked for it: choose, execute, print, exit code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from .exit_codes import ExitCode
from .mutation import audit, catalogue, evidence, shards, since
from .mutation import matrix as kill_matrix
from .mutation import run as runs
from .mutation.decide import Finding, exit_code
from .mutation.errors import InputRefused
from .mutation.selection import Selection
from .mutation.settings import Settings, load_settings
from .project import last_records, say
from .report import console, markdown
from .report import matrix as matrix_report


@dataclass(frozen=True)
class Asked:
    """The flags of a run."""

    only: tuple[str, ...]
    themes: tuple[str, ...]
    jobs: int
    resume: bool
    matrix: bool
    shuffle: int | None
    isolation: Literal["reimport", "spawn"] | None
    audit: int | None
    shard: str | None
    since: str | None
    why: bool


def run(asked: Asked, tell: Callable[[str], None]) -> ExitCode:
    """Judge what was asked for and print the report."""
    _demand_sense(asked)
    root = Path.cwd()
    settings = load_settings(root)
    found = catalogue.load(root, settings)
    selection = Selection(asked.only, asked.themes, audit=asked.isolation is not None)
    if asked.shard is not None:
        costs = shards.read_costs(root, settings)
        selection = replace(selection, shard=shards.parse(asked.shard), costs=costs)
    if asked.since is not None:
        changed = since.choose(root, settings, found, asked.since)
        console.print_since(asked.since, changed, len(found.mutants))
        if not changed.why and not found.problems:
            console.print_last_line(ExitCode.ABSENT)
            return ExitCode.ABSENT
        selection = replace(selection, ids=frozenset(changed.why))
    if asked.isolation is not None:
        settings = replace(settings, isolation=asked.isolation)
    if asked.audit is not None:
        try:
            data = evidence.load(
                root / settings.reports / evidence.EVIDENCE, f"{settings.reports}/{evidence.EVIDENCE}"
            )
        except evidence.EvidenceLost as error:
            say([f"--audit compares with the evidence: {error}"])
            return ExitCode.ABSENT
        ids, order = audit.sample(data["seal"], [mutant.id for mutant in found.mutants], asked.audit)
        selection = replace(selection, ids=ids, audit=True)
        settings = replace(settings, isolation="spawn")
        asked = replace(asked, shuffle=order)
    return _execute(root, settings, found, selection, asked, tell)


def _execute(
    root: Path,
    settings: Settings,
    found: catalogue.Catalogue,
    selection: Selection,
    asked: Asked,
    tell: Callable[[str], None],
) -> ExitCode:
    before = last_records(root, settings)
    outcome = runs.execute(
        root,
        settings,
        found,
        selection,
        asked.jobs,
        tell,
        asked.resume,
        asked.matrix,
        asked.shuffle,
        why=asked.why and not selection.audit,
    )
    predicate = outcome.predicate
    if predicate["complete"]:
        text = markdown.markdown(predicate, outcome.notes, outcome.findings)
        evidence.write_atomically(root / settings.reports / evidence.MARKDOWN, text.encode())
    console.print_report(predicate, outcome.notes, outcome.findings)
    if outcome.matrix is not None:
        print_study(root, settings, outcome.matrix, found)
    findings = list(outcome.findings)
    if selection.audit:
        findings += _compare(settings, before, predicate)
    code = exit_code(findings)
    console.print_last_line(code)
    return code


def print_study(root: Path, settings: Settings, rows: kill_matrix.Matrix, found: catalogue.Catalogue) -> None:
    """What a kill matrix says of the checks, on screen and as reports/matrix.md."""
    seen = kill_matrix.study(rows, found.mutants)
    console.print_matrix(rows, seen)
    text = matrix_report.markdown(rows, seen)
    evidence.write_atomically(root / settings.reports / kill_matrix.MARKDOWN, text.encode())


def _compare(settings: Settings, before: dict[str, Any], predicate: dict[str, Any]) -> list[Finding]:
    different = audit.differences(before, predicate["mutants"])
    console.print_audit(settings.isolation, predicate["mutants"], different)
    return different


def _demand_sense(asked: Asked) -> None:
    """Ways of choosing exclude each other where their product would be nobody's question."""
    given = {
        "--shard": asked.shard is not None,
        "--since": asked.since is not None,
        "--audit": asked.audit is not None,
        "--isolation": asked.isolation is not None,
    }
    if asked.audit is not None and asked.shuffle is not None:
        raise InputRefused(["--audit shuffles by the evidence's seal; drop --shuffle"])
    named = [name for name, wanted in given.items() if wanted]
    if len(named) > 1:
        raise InputRefused([f"{' and '.join(named)} exclude each other; give one"])
    others = {"--only": asked.only, "--theme": asked.themes, "--matrix": asked.matrix}
    mixed = [name for name, wanted in others.items() if wanted]
    if asked.shard is not None and mixed:
        raise InputRefused([f"--shard judges its part of the whole catalogue; drop {' and '.join(mixed)}"])
