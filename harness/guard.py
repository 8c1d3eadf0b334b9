"""The last resort of a command: whatever escapes it becomes a sentence and a documented exit code."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import typer

from harness.exit_codes import ExitCode


def guarded(command: typer.Typer, name: str) -> None:
    """Run a command. An interrupt ends in 130, a fault of our own in 70 with its traceback; nothing ends in 1."""
    try:
        command(prog_name=name)
    except KeyboardInterrupt:
        print(f"rowproof {name}: interrupted", file=sys.stderr)
        sys.exit(int(ExitCode.INTERRUPTED))
    except Exception as error:  # noqa: BLE001 (the last resort has an exit code of its own)
        traceback.print_exc()
        told = f"internal error: {type(error).__name__}: {error}; please report it with the lines above"
        print(f"rowproof {name}: {told}", file=sys.stderr)
        sys.exit(int(ExitCode.INTERNAL))


def folder_refusal(option: str, folder: Path) -> str | None:
    """Why nothing can be written into a folder, which may not exist yet, in one sentence; None if it can be."""
    nearest = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not nearest.is_dir():
        return (
            f"{option} is {folder}, but {nearest} is a file; it should be a folder, or a name for a new one"
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        return f"{option} is {folder}, and {nearest} cannot be written; name a folder of yours"
    return None
