"""`python -m harness.gate`: does reports/evidence.json hold for the tree as it is now? Runs nothing."""

from __future__ import annotations

from pathlib import Path

import typer

from .mutate import guarded, leave

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def gate() -> None:
    """Check the evidence of the last full run against the tree, and derive every verdict again."""
    from .mutation import catalogue
    from .mutation.decide import counts, exit_code
    from .mutation.gate import examine
    from .mutation.settings import load_settings
    from .report import console

    root = Path.cwd()
    settings = load_settings(root)
    findings, data = examine(root, settings, catalogue.load(root, settings))
    code = exit_code(findings)
    if data is not None and "mutants" in data["predicate"] and "catalogue" in data["predicate"]:
        typer.echo(counts(data["predicate"]))
    console.print_findings(findings)
    console.print_last_line(code)
    leave(code)


def main() -> None:
    """Entry point of `python -m harness.gate` and `rowproof gate`."""
    guarded(app, "gate")


if __name__ == "__main__":
    main()
