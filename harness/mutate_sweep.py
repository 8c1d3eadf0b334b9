"""`python -m harness.mutate sweep PATH...`: faults made by operators, judged by the tests that reach them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from .exit_codes import ExitCode
from .mutation.decide import exit_code
from .mutation.errors import InputRefused, did_you_mean
from .mutation.evidence import canonical, write_atomically
from .mutation.run import locked
from .mutation.settings import load_settings
from .mutation.sweep import run as sweeps
from .report import console
from .report import sweep as shown


def sweep(
    paths: Sequence[str],
    tests: Sequence[str],
    only: Sequence[str],
    only_list: bool,
    jobs: int,
    tell: Callable[[str], None],
) -> ExitCode:
    """Sweep some files or folders and print what is not dead; writes reports/sweep.json."""
    root = Path.cwd()
    settings = load_settings(root)
    missing = [
        f"--tests {path}: does not exist" for path in tests if not (root / path.partition("::")[0]).exists()
    ]
    if missing:
        raise InputRefused(missing)
    sources = sweeps.read_sources(root, settings, paths)
    known = {made.id for source in sources for made in source.made}
    unknown = [
        f"--only {name}: there is no such candidate{did_you_mean(name, known)}"
        for name in only
        if name not in known
    ]
    if unknown:
        raise InputRefused(unknown)
    if only_list:
        for line in shown.listing(sources):
            typer.echo(line)
        return ExitCode.OK
    with locked(root, settings):
        swept = sweeps.sweep(root, settings, sources, tests, only, jobs, tell)
        written = root / settings.reports / sweeps.NAME
        write_atomically(written, canonical(swept.as_data(sources)))
    for line in shown.report(swept, sources):
        typer.echo(line)
    findings = swept.findings
    console.print_findings([each for each in findings if each.code in (ExitCode.INSTRUMENT, ExitCode.ABSENT)])
    code = exit_code(findings)
    console.print_last_line(code)
    return code
