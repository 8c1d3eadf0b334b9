"""`python -m harness.mutate`: run the catalogue and report; parse, call, print, exit code.

Flags of a run; with none of them the whole catalogue is run:

    --report            run the whole catalogue and report
    --check             only read and check the catalogue (at most a second, imports no project code)
    --only ID           judge these entries only; writes reports/partial.json, never the evidence
    --theme NAME        judge these themes only; likewise
    --report-only       print the last evidence again; runs nothing
    --matrix            also judge each entry by every test that executes what it changes; finds twins
    --resume            go on with a run that was killed: its kills count if no input has changed
    --isolation WAY     an audit: judge all by reimport, or all by spawn (an interpreter each); writes
                        reports/partial.json and compares every verdict with the evidence
    --shuffle SEED      judge the entries in another order; the evidence must not change by a byte
    -j N                judgements at a time (default: the machine's cores)

Sub-commands: `list` (all entries with their last verdicts), `show ID` (one entry as a diff), `explain ID`
(what the last run observed of it, killer by killer), and `add FILE` (the uncommitted edit of one file becomes an entry, and the file is put back).
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from .exit_codes import ExitCode
from .mutation import catalogue as catalogue_file
from .mutation.errors import InputRefused, InstrumentBroken, did_you_mean
from .mutation.settings import Settings, load_settings

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=False)
Ids = Annotated[list[str] | None, typer.Option("--only", metavar="ID", help="Judge these entries only.")]
Themes = Annotated[list[str] | None, typer.Option("--theme", metavar="NAME", help="Judge these themes only.")]
Jobs = Annotated[int, typer.Option("-j", "--jobs", min=1, help="Judgements at a time.")]
CORES = os.cpu_count() or 1


class Isolation(StrEnum):
    """Ways of judging that a run can be held to."""

    REIMPORT = "reimport"
    SPAWN = "spawn"


@app.callback(invoke_without_command=True)
def mutate(
    context: typer.Context,
    report: Annotated[bool, typer.Option("--report", help="Run the whole catalogue and report.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only check the catalogue.")] = False,
    only: Ids = None,
    theme: Themes = None,
    report_only: Annotated[bool, typer.Option("--report-only", help="Print the last evidence.")] = False,
    matrix: Annotated[bool, typer.Option("--matrix", help="Also try every listed killer.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was killed.")] = False,
    shuffle: Annotated[int | None, typer.Option(metavar="SEED", help="Judge in another order.")] = None,
    isolation: Annotated[
        Isolation | None, typer.Option(help="Judge by this alone; an audit, compared with the evidence.")
    ] = None,
    jobs: Jobs = CORES,
) -> None:
    """Judge every fault of the catalogue by its named checks."""
    if context.invoked_subcommand is not None:
        return
    if sum((report, check, report_only)) > 1:
        raise typer.BadParameter("--report, --check and --report-only exclude each other; give one")
    if check:
        leave(_check())
    elif report_only:
        leave(_report_only())
    else:
        leave(_run(tuple(only or ()), tuple(theme or ()), jobs, resume, matrix, shuffle, isolation))


@app.command("list")
def list_entries() -> None:
    """Print every entry with its theme, expectation and last verdict."""
    from .report import entries

    root, settings, found = _valid()
    for line in entries.listing(found.mutants, _last_records(root, settings)):
        typer.echo(line)


@app.command()
def show(name: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Print one entry as a diff, with its last outcome and killers."""
    from .report import entries

    root, settings, found = _valid()
    mutant = _named(name, found)
    for line in entries.shown(root, mutant, _last_records(root, settings).get(name)):
        typer.echo(line)


@app.command()
def explain(name: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Print what the last run observed of one entry: applied? reached? which assertion failed where?"""
    from .mutation import prepare
    from .report import entries

    root, settings, found = _valid()
    mutant = _named(name, found)
    record = _last_records(root, settings, partial_too=True).get(name)
    if record is None:
        say([f"{name} was not judged yet; run `python -m harness.mutate --only {name}`"])
        leave(ExitCode.ABSENT)
    stale = record["sources"] != prepare.of_mutant(root, mutant).sources
    for line in entries.explained(mutant, record, stale):
        typer.echo(line)


@app.command()
def add(
    file: Annotated[str, typer.Argument(help="The file with the uncommitted edit.")],
    name: Annotated[str, typer.Option("--id", help="The entry's id, in kebab-case.")],
    theme: Annotated[str, typer.Option(help="The catalogue file to append to.")],
    because: Annotated[str, typer.Option(help="One sentence: what would go wrong for a user.")],
    origin: Annotated[str, typer.Option(help="Where the fault was seen.")] = "own",
    tests: Annotated[list[str] | None, typer.Option(help="Where to look for killers.")] = None,
    jobs: Jobs = CORES,
) -> None:
    """Turn the uncommitted edit of one file into an entry, run it once, and put the file back."""
    from .mutation import adding

    root = Path.cwd()
    settings = load_settings(root)
    # The edit may sit on other entries' anchors, so only the ids of the catalogue matter here.
    if name in catalogue_file.load(root, settings).ids or not catalogue_file.ID_FORM.match(name):
        raise InputRefused([f"--id {name}: should be a new id in kebab-case"])
    wanted = adding.Wanted(
        file, name, theme, because, origin, tuple(tests or settings.suite or settings.tests)
    )
    for line in adding.add(root, settings, wanted, jobs):
        typer.echo(line)


def leave(code: ExitCode) -> NoReturn:
    """End the command with an exit code."""
    raise typer.Exit(int(code))


def say(lines: tuple[str, ...] | list[str]) -> None:
    """Print sentences to standard error."""
    for line in lines:
        typer.echo(line, err=True)


def _valid() -> tuple[Path, Settings, catalogue_file.Catalogue]:
    """The project in the current folder; raises InputRefused with every problem of its catalogue."""
    root = Path.cwd()
    settings = load_settings(root)
    found = catalogue_file.load(root, settings)
    if found.problems:
        raise InputRefused(found.problems)
    return root, settings, found


def _named(name: str, found: catalogue_file.Catalogue) -> catalogue_file.Mutant:
    mutant = found.by_id().get(name)
    if mutant is None:
        raise InputRefused([f"there is no mutant '{name}'{did_you_mean(name, found.by_id())}"])
    return mutant


def _last_records(root: Path, settings: Settings, partial_too: bool = False) -> dict[str, Any]:
    """Records by id of the last full run; with `partial_too`, newer ones of a filtered run come first."""
    from .mutation import evidence

    paths = [root / settings.reports / evidence.EVIDENCE]
    if partial_too:
        paths.append(root / settings.reports / evidence.PARTIAL)
    records: dict[str, Any] = {}
    for path in sorted((p for p in paths if p.exists()), key=lambda p: p.stat().st_mtime):
        try:
            data = evidence.load(path, path.name)
        except evidence.EvidenceLost:
            continue
        records |= {record["id"]: record for record in data["predicate"]["mutants"]}
    return records


def _check() -> ExitCode:
    root = Path.cwd()
    found = catalogue_file.load(root, load_settings(root))
    say(found.problems)
    state = f"{len(found.problems)} problems" if found.problems else "no problems"
    typer.echo(f"{len(found.mutants)} valid entries in {found.files} files: {state}")
    return ExitCode.USAGE if found.problems else ExitCode.OK


def _run(
    only: tuple[str, ...],
    themes: tuple[str, ...],
    jobs: int,
    resume: bool,
    whole_matrix: bool,
    shuffle: int | None,
    isolation: Isolation | None,
) -> ExitCode:
    from .mutation import audit, evidence, run
    from .mutation import matrix as kill_matrix
    from .mutation.decide import exit_code
    from .report import console, markdown

    root, settings, found = _valid()
    before = _last_records(root, settings)
    if isolation is not None:
        settings = replace(settings, isolation=isolation.value)
    selection = run.Selection(only, themes, audit=isolation is not None)
    outcome = run.execute(root, settings, found, selection, jobs, _progress(), resume, whole_matrix, shuffle)
    predicate = outcome.predicate
    if predicate["complete"]:
        text = markdown.markdown(predicate, outcome.notes, outcome.findings)
        evidence.write_atomically(root / settings.reports / evidence.MARKDOWN, text.encode())
    console.print_report(predicate, outcome.notes, outcome.findings)
    if outcome.matrix is not None:
        console.print_matrix(outcome.matrix, kill_matrix.study(outcome.matrix.rows, found.mutants))
    findings = list(outcome.findings)
    if isolation is not None:
        different = audit.differences(before, predicate["mutants"])
        console.print_audit(isolation.value, predicate["mutants"], different)
        findings += different
    code = exit_code(findings)
    console.print_last_line(code)
    return code


def _progress() -> Callable[[str], None]:
    """Progress goes to a terminal only, one overwritten line; a log file gets none."""
    if not sys.stderr.isatty():
        return lambda text: None

    def tell(text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text[:100]}\r")
        sys.stderr.flush()

    return tell


def _report_only() -> ExitCode:
    import json

    from .mutation import evidence
    from .mutation.decide import exit_code, weigh
    from .report import console

    root = Path.cwd()
    reports = root / load_settings(root).reports
    try:
        data = evidence.load(reports / evidence.EVIDENCE, f"{reports.name}/{evidence.EVIDENCE}")
    except evidence.EvidenceLost as error:
        say([str(error)])
        return ExitCode.ABSENT
    notes = json.loads((reports / evidence.RUN).read_text()) if (reports / evidence.RUN).exists() else {}
    if notes.get("evidence_seal") != data["seal"]:
        notes = {}
    findings = weigh(data["predicate"])
    console.print_report(data["predicate"], notes, findings)
    code = exit_code(findings)
    console.print_last_line(code)
    return code


def guarded(command: typer.Typer, name: str) -> None:
    """Run a command; refusals become sentences and exit codes, never tracebacks."""
    try:
        command(prog_name=name)
    except InputRefused as error:
        say(error.problems)
        sys.exit(int(ExitCode.USAGE))
    except InstrumentBroken as error:
        say([str(error)])
        sys.exit(int(ExitCode.INSTRUMENT))
    except KeyboardInterrupt:
        say(["interrupted; nothing of this run was written as evidence"])
        sys.exit(int(ExitCode.INTERRUPTED))
    except OSError as error:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        say(
            [
                f"{error.filename or 'the reports'}: {error.strerror}; process {os.getpid()} on {platform.node()} "
                f"gave up at {since}; nothing of this run was written as evidence; mend it and go on with --resume"
            ]
        )
        sys.exit(int(ExitCode.INSTRUMENT))
    except Exception as error:  # noqa: BLE001 - the last resort has an exit code of its own
        import traceback

        traceback.print_exc()
        say([f"internal error: {type(error).__name__}: {error}; please report it with the lines above"])
        sys.exit(int(ExitCode.INTERNAL))


def main() -> None:
    """Entry point of `python -m harness.mutate` and `rowproof mutate`."""
    guarded(app, "mutate")


if __name__ == "__main__":
    main()
