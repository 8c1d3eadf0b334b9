"""What the commands about mutants share: the project in the current folder, sentences, and the last resort."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import typer

from .exit_codes import ExitCode
from .mutation import catalogue as catalogue_file
from .mutation.errors import InputRefused, InstrumentBroken
from .mutation.settings import Settings, load_settings


def leave(code: ExitCode) -> NoReturn:
    """End the command with an exit code."""
    raise typer.Exit(int(code))


def say(lines: tuple[str, ...] | list[str]) -> None:
    """Print sentences to standard error."""
    for line in lines:
        typer.echo(line, err=True)


def valid() -> tuple[Path, Settings, catalogue_file.Catalogue]:
    """The project in the current folder; raises InputRefused with every problem of its catalogue."""
    root = Path.cwd()
    settings = load_settings(root)
    found = catalogue_file.load(root, settings)
    if found.problems:
        raise InputRefused(found.problems)
    return root, settings, found


def last_records(root: Path, settings: Settings, partial_too: bool = False) -> dict[str, Any]:
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


def progress() -> Callable[[str], None]:
    """Progress goes to a terminal only, one overwritten line; a log file gets none."""
    if not sys.stderr.isatty():
        return lambda text: None

    def tell(text: str) -> None:
        sys.stderr.write(f"\r\x1b[K{text[:100]}\r")
        sys.stderr.flush()

    return tell


def _outlive_the_reader() -> None:
    """A reader that has left (`| head -1`) must not change the exit code: go on, and write to nobody."""
    stream: Any = sys.stdout
    if stream is None:
        return

    def quietly(action: Callable[..., Any]) -> Callable[..., Any]:
        def act(*given: Any) -> Any:
            try:
                return action(*given)
            except BrokenPipeError:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)
                return 0

        return act

    stream.write, stream.flush = quietly(stream.write), quietly(stream.flush)


def guarded(command: typer.Typer, name: str) -> None:
    """Run a command; refusals become sentences and exit codes, never tracebacks."""
    _outlive_the_reader()
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
