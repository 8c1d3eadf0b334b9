"""`rowproof COMMAND ...`, the same as `python -m harness.COMMAND ...`; imports only what it runs."""

from __future__ import annotations

import importlib
import os
import sys

from .exit_codes import ExitCode

COMMANDS = {
    "identity": "is every row of a batch itself? plays the fixtures",
    "search": "is there a history that breaks a row? random schedules; a failure becomes a fixture",
    "mutate": "does every listed fault die by its named checks? runs the catalogue",
    "lens": "which data can see which fault? zeros, ramps, random, ids",
    "bench": "what does a state step cost? ratios between things measured in one run",
    "gate": "does the evidence of the last run hold for the tree as it is now?",
}

# Judging mutants needs none of these, so a project without arrays need not install them.
OF_ROWS = ("torch", "numpy", "safetensors")

# These load an implementation by its dotted name, which often stands in the current folder; `python -m` looks there too.
BY_NAME = ("identity", "search")


def main() -> None:
    """Dispatch to the command's own module."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        usage = "\n".join(f"  rowproof {command:<9} {what}" for command, what in COMMANDS.items())
        wanted = "" if name in ("", "-h", "--help") else f"'{name}' is no command; "
        print(f"{wanted}the commands are:\n{usage}", file=sys.stderr)
        sys.exit(int(ExitCode.OK if name in ("-h", "--help") else ExitCode.USAGE))
    del sys.argv[1]
    try:
        command = importlib.import_module(f"harness.{name}")
    except ModuleNotFoundError as error:
        if error.name not in OF_ROWS:
            raise
        print(
            f"rowproof {name} needs {error.name}, which is not installed; install rowproof with its extra 'rows'",
            file=sys.stderr,
        )
        sys.exit(int(ExitCode.USAGE))
    if name in BY_NAME:
        sys.path.append(os.getcwd())
    command.main()


if __name__ == "__main__":
    main()
