"""`python -m harness.identity`: play the fixtures, compare every row with itself alone and with the reference."""

from __future__ import annotations

import difflib
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import torch
import typer

from harness.caches.protocol import load_cache
from harness.device import refusal
from harness.exit_codes import ExitCode
from harness.guard import guarded
from harness.identity_cache import play_cache
from harness.report import facts
from harness.report import identity as report
from harness.rows.calibration import require_told_apart
from harness.rows.defaults import ORACLE, PLANS, RETAINS, SUBJECT
from harness.rows.exact import Proof
from harness.rows.fixture import FixtureError, default_folder, load_folder
from harness.rows.results import Result, holds, results
from harness.rows.schedule import Fixture, Values
from harness.rows.subject import is_subject, load, load_subject


def _usage(message: str) -> typer.Exit:
    print(f"rowproof identity: {message}", file=sys.stderr)
    return typer.Exit(ExitCode.USAGE)


def _choose(names: list[str], folder: Path) -> list[Fixture]:
    try:
        fixtures = load_folder(folder)
    except FixtureError as error:
        raise _usage(
            "the fixtures cannot be played\n" + "\n".join(f"  {p}" for p in error.problems)
        ) from None
    unknown = [name for name in names if name not in fixtures]
    if unknown:
        close = difflib.get_close_matches(unknown[0], fixtures, 1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise _usage(f"there is no fixture {unknown[0]!r} in {folder}; {hint}there are {', '.join(fixtures)}")
    return [fixtures[name] for name in names] if names else list(fixtures.values())


def _one_of(name: str, given: str | None, allowed: tuple[str, ...]) -> tuple[str, ...]:
    if given is not None and given not in allowed:
        raise _usage(f"--{name} is {given!r}; it should be one of {', '.join(allowed)}")
    return allowed if given is None else (given,)


def identity(
    fixture: Annotated[list[str] | None, typer.Option(help="Play this fixture only (repeatable).")] = None,
    row: Annotated[int | None, typer.Option(help="Show mismatches of this batch row only.")] = None,
    until: Annotated[int | None, typer.Option(help="Stop after this step.", min=0)] = None,
    retain: Annotated[str | None, typer.Option(help="Payload: hidden or projected. Default: both.")] = None,
    plan: Annotated[str | None, typer.Option(help="Pool plan: grouped or gathered. Default: both.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    tabled: Annotated[
        bool, typer.Option("--report", help="Also show facts by fixtures, and write identity.json and .md.")
    ] = False,
    device: Annotated[str, typer.Option(help="Where production runs: cpu, cuda.")] = "cpu",
    poison: Annotated[bool, typer.Option(help="Overwrite dead memory before every comparison.")] = True,
    fixtures: Annotated[Path | None, typer.Option(help="Folder of fixture files.")] = None,
    subject: Annotated[str, typer.Option(help="package.module:name of the implementation.")] = SUBJECT,
) -> None:
    """Play every fixture three ways and compare row by row."""
    retains, plans = _one_of("retain", retain, RETAINS), _one_of("plan", plan, PLANS)
    chosen = _choose(fixture or [], fixtures or default_folder())
    refused = refusal(device)
    if refused:
        raise _usage(refused)
    torch.set_num_threads(1)  # plays are products of a few numbers: two threads would wait for each other
    longest = max(len(each.step) for each in chosen)
    if until is not None and until >= longest:
        raise _usage(f"--until is {until}; the chosen fixtures have steps 0..{longest - 1}")
    try:
        oracle = load(ORACLE)
        if not is_subject(load(subject)):
            _only_for_ours(retain=retain, plan=plan, device=device != "cpu", no_poison=not poison)
            cache = load_cache(subject)
            raise play_cache(
                chosen, cache, row=row, until=until, folder=fixtures, as_json=as_json, written=tabled
            )
        implementation = load_subject(subject)
    except ValueError as error:
        raise _usage(str(error)) from None
    try:
        margins = {each.name: require_told_apart(each, oracle) for each in chosen if each.values != Values()}
    except FixtureError as error:
        raise _usage("a fixture is not calibrated\n" + "\n".join(f"  {p}" for p in error.problems)) from None
    if not as_json:
        print(report.legend(chosen))
    played: list[Result] = []
    for result in results(
        chosen, implementation, oracle, retains, plans, until=until, poison=poison, device=device
    ):
        played.append(result)
        if not as_json:
            print(report.line(result, chosen), flush=True)
    if as_json:
        print(json.dumps(report.as_json(played, margins), indent=2, sort_keys=True))
    else:
        arguments = _arguments(fixtures, subject, device, poison)
        if tabled:
            print("\n".join(facts.lines(played)))
        print(report.summary(played, row, arguments, margins, until is None and not fixture))
    if tabled:
        _write(played, margins)
    raise typer.Exit(ExitCode.OK if holds(played) else ExitCode.FINDING)


def _only_for_ours(**given: object) -> None:
    """Payload, plan, device and poison are settings of our own state; another cache has its own."""
    for option, value in given.items():
        if value:
            raise _usage(
                f"--{option.replace('_', '-')} is for row state of ours; leave it out where --subject names a cache"
            )


def _write(played: list[Result], margins: Mapping[str, float | Proof]) -> None:
    """Both reports, in the folder that every command writes to."""
    folder = Path("reports")
    folder.mkdir(exist_ok=True)
    text = json.dumps(report.as_json(played, margins), indent=2, sort_keys=True) + "\n"
    (folder / "identity.json").write_text(text)
    (folder / "identity.md").write_text(facts.markdown(played))


def _arguments(fixtures: Path | None, subject: str, device: str, poison: bool) -> str:
    """What a replay line must repeat, so that it shows the same."""
    given = [] if fixtures is None else ["--fixtures", str(fixtures)]
    given += [] if subject == SUBJECT else ["--subject", subject]
    given += [] if device == "cpu" else ["--device", device]
    given += [] if poison else ["--no-poison"]
    return "".join(f" {shlex.quote(word)}" for word in given)


def main() -> None:
    """Entry point of `python -m harness.identity` and `rowproof identity`."""
    app = typer.Typer(add_completion=False)
    app.command()(identity)
    guarded(app, "identity")


if __name__ == "__main__":
    main()
