"""`identity --subject` for a cache of somebody else's: play what it can play, report what it does not offer."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import typer

from harness.caches.protocol import Described
from harness.caches.results import holds, results
from harness.exit_codes import ExitCode
from harness.report import caches as report
from harness.rows.schedule import Fixture


def play_cache(
    fixtures: Sequence[Fixture],
    cache: Described,
    *,
    row: int | None,
    until: int | None,
    folder: Path | None,
    as_json: bool,
    written: bool,
) -> typer.Exit:
    """Play the fixtures and print; returns the exit."""
    if not as_json:
        print(report.heading(cache))
    found = []
    for result in results(fixtures, cache, until):
        found.append(result)
        if not as_json and report.shown(result):
            print(report.line(result), flush=True)
    text = json.dumps(report.as_json(found, cache), indent=2, sort_keys=True)
    if as_json:
        print(text)
    else:
        arguments = "" if folder is None else f" --fixtures {shlex.quote(str(folder))}"
        print(report.summary(found, cache, row, f"{arguments} --subject {shlex.quote(cache.name)}"))
    if written:
        Path("reports").mkdir(exist_ok=True)
        Path("reports", "identity-subject.json").write_text(text + "\n")
    return typer.Exit(ExitCode.OK if holds(found) else ExitCode.FINDING)
