"""`python -m harness.search`: random schedules, until one breaks row identity; it is shrunk and becomes a fixture."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.caches.protocol import Described, load_cache
from harness.caches.search import NothingPlayed
from harness.caches.search import search as search_cache
from harness.exit_codes import ExitCode
from harness.guard import folder_refusal, guarded
from harness.rows.defaults import ORACLE, SUBJECT
from harness.rows.search import search
from harness.rows.subject import is_subject, load, load_subject


def _usage(message: str) -> typer.Exit:
    print(f"rowproof search: {message}", file=sys.stderr)
    return typer.Exit(ExitCode.USAGE)


def find(
    examples: Annotated[int, typer.Option(help="How many histories to play at most.", min=1)] = 1000,
    seed: Annotated[int, typer.Option(help="The same seed plays the same histories.", min=0)] = 0,
    folder: Annotated[Path, typer.Option(help="Where a failure is written.")] = Path("reports/found"),
    subject: Annotated[str, typer.Option(help="package.module:name of the implementation.")] = SUBJECT,
) -> None:
    """Play random schedules. The first that breaks row identity is shrunk and written as a fixture."""
    refused = folder_refusal("--folder", folder)
    if refused:
        raise _usage(refused)
    try:
        if not is_subject(load(subject)):
            raise _of_a_cache(load_cache(subject), folder, examples, seed)
        implementation, oracle = load_subject(subject), load(ORACLE)
    except ValueError as error:
        raise _usage(str(error)) from None
    arguments = f" --subject {subject}" if subject != SUBJECT else ""
    found = search(implementation, oracle, folder, examples=examples, seed=seed, arguments=arguments)
    if found is not None:
        print(found.message)
        raise typer.Exit(ExitCode.FINDING)
    print(f"{examples} histories at seed {seed}: every row was itself")


def _of_a_cache(cache: Described, folder: Path, histories: int, seed: int) -> typer.Exit:
    arguments = f" --subject {shlex.quote(cache.name)}"
    right = [0]
    try:
        found = search_cache(
            cache, folder, histories=histories, seed=seed, arguments=arguments, played=right.append
        )
    except NothingPlayed as nothing:
        print(f"rowproof search: {nothing}", file=sys.stderr)
        return typer.Exit(ExitCode.FINDING)
    except KeyboardInterrupt:
        print(f"interrupted: {right[-1]} of {histories} histories were played, and right", file=sys.stderr)
        return typer.Exit(ExitCode.INTERRUPTED)
    if found is not None:
        print(found.message)
        return typer.Exit(ExitCode.FINDING)
    print(f"{histories} histories at seed {seed}: every row was itself, in what {cache.name} offers")
    return typer.Exit(ExitCode.OK)


def main() -> None:
    """Entry point of `python -m harness.search` and `rowproof search`."""
    app = typer.Typer(add_completion=False)
    app.command()(find)
    guarded(app, "search")


if __name__ == "__main__":
    main()
