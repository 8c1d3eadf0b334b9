"""`python -m harness.mutate`: run the catalogue and report; parse, call, print, exit code.

Flags of a run; with none of them the whole catalogue is run:

    --report            run the whole catalogue and report
    --check             only read and check the catalogue (at most a second, imports no project code)
    --only ID           judge these entries only; writes reports/partial.json, never the evidence
    --theme NAME        judge these themes only; likewise
    --report-only       print the last evidence again; runs nothing
    --matrix            also judge each entry by every test that executes what it changes; finds twins
    --resume            go on with a run that was killed: its kills count if no input has changed
    --since REV         judge the entries whose inputs changed since a git revision; likewise
    --shard K/N         judge part K (from 0) of N; writes reports/shard-K-of-N.json, for `gate merge`
    --isolation WAY     an audit: judge all by reimport, or all by spawn (an interpreter each); writes
                        reports/partial.json and compares every verdict with the evidence
    --audit N           the same for N entries, drawn and shuffled by the evidence's seal, by spawn
    --shuffle SEED      judge the entries in another order; the evidence must not change by a byte
    --no-explain        do not look for the reason of each fault that is not seen, which a run does otherwise
    -j N                judgements at a time (default: the machine's cores)

Sub-commands: `list` (all entries with their last verdicts), `show ID` (one entry as a diff), `explain ID`
(what the last run observed of it, killer by killer; and, measured now, how far the fault gets), `study` (what the
last kill matrix says of the checks), `add FILE` (the uncommitted edit of one file becomes an entry, and the file is
put back), and `sweep PATH...` (faults made by operators).
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from .exit_codes import ExitCode, worst
from .mutation import catalogue as catalogue_file
from .mutation.errors import InputRefused, did_you_mean
from .mutation.settings import load_settings
from .project import guarded, last_records, leave, progress, say, valid

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
    audit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Judge a sample of N again, an interpreter each.")
    ] = None,
    shard: Annotated[str | None, typer.Option(metavar="K/N", help="Judge part K (from 0) of N.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="REV", help="Judge what changed since a revision.")
    ] = None,
    no_explain: Annotated[
        bool, typer.Option("--no-explain", help="Do not look for why a fault is not seen.")
    ] = False,
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
        from .mutate_run import Asked, run

        asked = Asked(
            only=tuple(only or ()),
            themes=tuple(theme or ()),
            jobs=jobs,
            resume=resume,
            matrix=matrix,
            shuffle=shuffle,
            isolation=isolation.value if isolation else None,
            audit=audit,
            shard=shard,
            since=since,
            why=not no_explain,
        )
        leave(run(asked, progress()))


@app.command("list")
def list_entries() -> None:
    """Print every entry with its theme, expectation and last verdict."""
    from .report import entries

    root, settings, found = valid()
    for line in entries.listing(found.mutants, last_records(root, settings)):
        typer.echo(line)


@app.command()
def show(name: Annotated[str, typer.Argument(metavar="ID")]) -> None:
    """Print one entry as a diff, with its last outcome and killers."""
    from .report import entries

    root, settings, found = valid()
    mutant = _named(name, found)
    for line in entries.shown(root, mutant, last_records(root, settings).get(name)):
        typer.echo(line)


@app.command()
def explain(
    name: Annotated[str, typer.Argument(metavar="ID")],
    test: Annotated[
        list[str] | None, typer.Option("--test", metavar="NODE", help="Ask this test; default: the killers.")
    ] = None,
    jobs: Jobs = CORES,
) -> None:
    """Print what the last run observed of one entry, and measure how far its fault gets in each test."""
    from .mutation import prepare
    from .mutation.diagnosis import explain as diagnosis
    from .report import entries, why

    root, settings, found = valid()
    mutant = _named(name, found)
    record = last_records(root, settings, partial_too=True).get(name)
    if record is None:
        say([f"{name} was not judged yet; run `rowproof mutate --only {name}`"])
    else:
        stale = record["sources"] != prepare.of_mutant(root, mutant).sources
        for line in entries.explained(mutant, record, stale):
            typer.echo(line)
    told = diagnosis.one(root, settings, mutant, tuple(test or ()), jobs, progress())
    typer.echo("")
    typer.echo(why.heading(name, told))
    for line in why.lines(told):
        typer.echo(line)
    leave(ExitCode.ABSENT if record is None else ExitCode.OK)


@app.command()
def study() -> None:
    """Print what the last kill matrix says of the checks: idle ones, sole killers, smallest sets."""
    import json

    from .mutate_run import print_study
    from .mutation import matrix

    root, settings, found = valid()
    path = root / settings.reports / matrix.NAME
    again = "run `rowproof mutate --matrix`"
    try:
        rows = matrix.Matrix.from_data(json.loads(path.read_text()))
    except FileNotFoundError:
        say([f"there is no {settings.reports}/{matrix.NAME}; {again}"])
        leave(ExitCode.ABSENT)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        say(
            [
                f"{settings.reports}/{matrix.NAME} cannot be read ({type(error).__name__}: {error}); {again} again"
            ]
        )
        leave(ExitCode.ABSENT)
    print_study(root, settings, rows, found)
    leave(worst(finding.code for finding in matrix.findings(rows.rows, found.mutants)))


@app.command()
def sweep(
    paths: Annotated[list[str], typer.Argument(help="Files or folders to make faults in.")],
    tests: Annotated[list[str] | None, typer.Option(metavar="PATH", help="Try these tests only.")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="ID", help="Judge these candidates only.")] = None,
    only_list: Annotated[bool, typer.Option("--list", help="Print the candidates, judge none.")] = False,
    jobs: Jobs = CORES,
) -> None:
    """Make faults by operators (mutmut's and our own) and judge each by the tests that reach it."""
    from . import mutate_sweep

    leave(mutate_sweep.sweep(paths, tests or (), only or (), only_list, jobs, progress()))


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


def _named(name: str, found: catalogue_file.Catalogue) -> catalogue_file.Mutant:
    mutant = found.by_id().get(name)
    if mutant is None:
        raise InputRefused([f"there is no mutant '{name}'{did_you_mean(name, found.by_id())}"])
    return mutant


def _check() -> ExitCode:
    root = Path.cwd()
    found = catalogue_file.load(root, load_settings(root))
    say(found.problems)
    state = f"{len(found.problems)} problems" if found.problems else "no problems"
    typer.echo(f"{len(found.mutants)} valid entries in {found.files} files: {state}")
    return ExitCode.USAGE if found.problems else ExitCode.OK


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
    try:
        notes = json.loads((reports / evidence.RUN).read_bytes())
    except (OSError, ValueError, RecursionError):
        notes = {}
    # Notes of another run, or no notes at all, are not this run's.
    if not isinstance(notes, dict) or notes.get("evidence_seal") != data["seal"]:
        notes = {}
    try:
        findings = weigh(data["predicate"])
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        say([f"{reports.name}/{evidence.EVIDENCE} has observations that cannot be read ({error!r})"])
        return ExitCode.ABSENT
    console.print_report(data["predicate"], notes, findings)
    code = exit_code(findings)
    console.print_last_line(code)
    return code


def main() -> None:
    """Entry point of `python -m harness.mutate` and `rowproof mutate`."""
    guarded(app, "mutate")


if __name__ == "__main__":
    main()
