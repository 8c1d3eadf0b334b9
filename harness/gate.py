"""`python -m harness.gate`: does reports/evidence.json hold for the tree as it is now? Runs nothing.

`python -m harness.gate merge FILE...` first makes that evidence out of the shards of one run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .project import guarded, leave

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def gate(context: typer.Context) -> None:
    """Check the evidence of the last full run against the tree, and derive every verdict again."""
    if context.invoked_subcommand is not None:
        return
    from .mutation import catalogue
    from .mutation.decide import counts, exit_code
    from .mutation.gate import examine
    from .mutation.settings import load_settings
    from .report import console

    root = Path.cwd()
    settings = load_settings(root)
    findings, data = examine(root, settings, catalogue.load(root, settings))
    code = exit_code(findings)
    if data is not None:
        typer.echo(counts(data["predicate"]))
    console.print_findings(findings)
    console.print_last_line(code)
    leave(code)


@app.command()
def merge(files: Annotated[list[Path], typer.Argument(help="shard-K-of-N.json, every K once.")]) -> None:
    """Put the shards of one run together: reports/evidence.json, byte for byte that of one machine."""
    from .mutation import catalogue, evidence, merging
    from .mutation.decide import exit_code
    from .mutation.settings import load_settings
    from .report import console, markdown

    root = Path.cwd()
    settings = load_settings(root)
    merged = merging.merge(root, settings, catalogue.load(root, settings), files)
    if merged.statement is None:
        console.print_findings(merged.findings)
        typer.echo("nothing was merged, and nothing was written")
    else:
        reports, predicate = root / settings.reports, merged.statement["predicate"]
        text = markdown.markdown(predicate, merged.notes, merged.findings)
        evidence.write_atomically(reports / evidence.RUN, evidence.canonical(merged.notes))
        evidence.write_atomically(reports / evidence.MARKDOWN, text.encode())
        evidence.write_atomically(reports / evidence.EVIDENCE, evidence.canonical(merged.statement))
        console.print_report(predicate, merged.notes, merged.findings)
    code = exit_code(merged.findings)
    console.print_last_line(code)
    leave(code)


def main() -> None:
    """Entry point of `python -m harness.gate` and `rowproof gate`."""
    guarded(app, "gate")


if __name__ == "__main__":
    main()
