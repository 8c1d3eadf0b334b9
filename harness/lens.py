"""`python -m harness.lens`: what each kind of data can tell apart, from pairs of states and from the catalogue.

    --report        the whole lens: state pairs, and every entry of the catalogue on every stream (the default)
    --pairs         state pairs only: no mutant is run, seconds
    --only ID       these entries only (repeatable); --theme NAME likewise
    -j N            judgements at a time (default: the machine's cores)

Writes reports/lens.json and reports/lens.md. Verifies every `survives_under` of the catalogue: a claim that does not
hold is a finding, with what was measured beside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from .exit_codes import ExitCode, worst
from .mutation import catalogue as catalogue_file
from .mutation import evidence, journal, panel
from .mutation.catalogue import Catalogue, Mutant
from .mutation.decide import Finding
from .mutation.errors import InputRefused, did_you_mean
from .mutation.inputs import tree_digests, versions
from .mutation.run import locked
from .mutation.selection import Selection
from .mutation.settings import Settings, load_settings
from .project import guarded, progress
from .report import console
from .report import lens as report
from .rows import sight, statepairs
from .rows.defaults import ORACLE, SUBJECT
from .rows.fixture import default_folder, load_folder
from .rows.lens import DATA_CHECKS, OPTIONS, VALUES_CHECKS, VALUES_FIXTURES, named_in
from .rows.streams import EVENT_UNIQUE, STREAMS
from .rows.subject import load, load_subject

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
OURS = "tests/identity/"
ITEMS = "tests/lens/test_streams.py"
PROMISES = f"{ITEMS}::test_counts_and_promises"
NAME, MARKDOWN = "lens.json", "lens.md"
CORES = os.cpu_count() or 1


@app.command()
def lens(
    whole: Annotated[bool, typer.Option("--report", help="The whole lens; this is the default.")] = False,
    pairs_only: Annotated[bool, typer.Option("--pairs", help="State pairs only; runs no mutant.")] = False,
    only: Annotated[list[str] | None, typer.Option(metavar="ID", help="These entries only.")] = None,
    theme: Annotated[list[str] | None, typer.Option(metavar="NAME", help="These themes only.")] = None,
    jobs: Annotated[int, typer.Option("-j", "--jobs", min=1, help="Judgements at a time.")] = CORES,
) -> None:
    """Show what each kind of data can tell apart."""
    if pairs_only and (whole or only or theme):
        raise typer.BadParameter("--pairs runs no mutant; it excludes --report, --only and --theme")
    root = Path.cwd()
    settings = load_settings(root)
    found = catalogue_file.load(root, settings)
    problems = found.problems + unknown_streams(found.mutants) + claims_elsewhere(found.mutants)
    if problems:
        raise InputRefused(problems)
    selection = Selection(tuple(only or ()), tuple(theme or ()))
    chosen = [] if pairs_only else selection.pick(found)
    with locked(root, settings):
        data = {"pairs": _pairs(), **_entries(root, settings, found, chosen, jobs)}
        digest = journal.inputs_digest(tree_digests(root, settings), versions(), settings.effective())
        data |= {"inputs": digest, "complete": len(chosen) == len(found.mutants)}
        findings = weigh(data, chosen)
        data["findings"] = [{"exit": int(f.code), "sentence": f.sentence} for f in findings]
        text = json.dumps(data, indent=1) + "\n"
        evidence.write_atomically(root / settings.reports / NAME, text.encode())
        evidence.write_atomically(root / settings.reports / MARKDOWN, report.markdown(data).encode())
    code = worst(finding.code for finding in findings)
    for table in report.tables(data):
        console.print_table(*table)
    console.print_lines(report.sentences(data))
    console.print_findings(findings)
    console.print_last_line(code)
    raise typer.Exit(int(code))


def unknown_streams(mutants: Sequence[Mutant]) -> list[str]:
    """A claim about data that does not exist is refused input."""
    return [
        f"mutant '{mutant.id}': survives_under names '{stream}', which is no stream{did_you_mean(stream, STREAMS)}"
        for mutant in mutants
        for stream in mutant.survives_under
        if stream not in STREAMS
    ]


def looked_at(mutant: Mutant) -> bool:
    """Whether row identity of production is what sees the entry; others judge other caches, or whole layers."""
    return any(test.startswith(OURS) for test in mutant.killed_by)


def claims_elsewhere(mutants: Sequence[Mutant]) -> list[str]:
    """A claim about data that the lens cannot verify is refused input."""
    return [
        f"mutant '{mutant.id}': survives_under is {list(mutant.survives_under)}, and no killer stands in {OURS}; the lens "
        "plays nothing else, so leave the claim out or name a check of row identity"
        for mutant in mutants
        if mutant.survives_under and not looked_at(mutant)
    ]


def _pairs() -> dict[str, Any]:
    torch.set_num_threads(1)
    subject, oracle = load_subject(SUBJECT), load(ORACLE)
    fixtures = list(load_folder(default_folder()).values())
    found = list(statepairs.pairs(fixtures, subject, oracle))
    table = sight.look_at(found, oracle)
    return {
        "fixtures": len({pair.moment.fixture.name for pair in found}),
        "of": len(fixtures),
        "pairs": len(found),
        "lanes": list(sight.LANES),
        "promises": statepairs.PROMISES,
        "faults": {
            name: {
                "theme": theme,
                "says": says,
                "streams": {
                    stream: {lane: vars(cell) for lane, cell in cells.items()}
                    for stream, cells in table.get(name, {}).items()
                },
            }
            for name, (theme, says, _) in statepairs.FAULTS.items()
        },
    }


def _entries(
    root: Path, settings: Settings, found: Catalogue, chosen: Sequence[Mutant], jobs: int
) -> dict[str, Any]:
    """Every chosen entry on every stream; the tests of tests/lens are the eyes."""
    fixtures = load_folder(default_folder())
    listed = "\n".join(test for mutant in found.mutants for test in mutant.killed_by)
    asked = [mutant for mutant in chosen if looked_at(mutant)]
    wanted = {mutant.id: _items(mutant) for mutant in asked}
    answers = panel.ask(root, settings, wanted, asked, jobs, progress()) if asked else {}
    return {
        "streams": dict(STREAMS),
        "catalogue": len(found.mutants),
        "played": {
            "fixtures": [fixture.name for fixture in named_in(listed, fixtures)],
            "of": len(fixtures),
            "options": [" ".join(options.values()) for options in OPTIONS],
            "values": list(VALUES_FIXTURES),
        },
        "entries": {mutant.id: _entry(mutant, answers[mutant.id]) for mutant in asked},
        "elsewhere": [mutant.id for mutant in chosen if not looked_at(mutant)],
    }


def _items(mutant: Mutant) -> list[str]:
    tests = [f"{ITEMS}::test_data[{stream}]" for stream in STREAMS] + [PROMISES]
    if any(_check(test) in VALUES_CHECKS for test in mutant.killed_by):
        tests += [f"{ITEMS}::test_values[{stream}]" for stream in STREAMS]
    return tests


def _check(test: str) -> str:
    """The check that an item of tests/identity asks."""
    return test.rpartition("-")[2].removesuffix("]")


def _entry(mutant: Mutant, answers: Mapping[str, panel.Answer]) -> dict[str, Any]:
    """Where each stream showed the entry first, None where it did not, and the same for counts and promises."""
    data: dict[str, str | None] = {}
    for stream in STREAMS:
        asked = [answers.get(f"{ITEMS}::{test}[{stream}]") for test in ("test_data", "test_values")]
        data[stream] = next((answer.told for answer in asked if answer is not None and answer.red), None)
    promises = answers[PROMISES]
    return {
        "theme": mutant.theme,
        "data": data,
        "promises": promises.told if promises.red else None,
        "values": len(answers) > len(STREAMS) + 1,
        "silent": {test: answer.reading for test, answer in answers.items() if answer.silent},
        "survives_under": list(mutant.survives_under),
    }


def weigh(data: Mapping[str, Any], mutants: Sequence[Mutant]) -> list[Finding]:
    """What the lens found fault with: blind identity, claims that do not hold, entries without an answer."""
    findings = []
    for name, fault in data["pairs"]["faults"].items():
        cells = [fault["streams"][stream]["exact"] for stream in EVENT_UNIQUE if fault["streams"]]
        if not cells:
            findings.append(Finding(ExitCode.ABSENT, f"{name}: no fixture has a history to plant it in"))
        for stream, cell in zip(EVENT_UNIQUE, cells, strict=False):
            if cell["caught"] < cell["of"]:
                blind = f"{cell['of'] - cell['caught']} of {cell['of']} pairs"
                findings.append(Finding(ExitCode.FINDING, f"{name}: {stream} is blind to {blind}"))
    for mutant in mutants:
        if mutant.id in data["entries"]:
            findings += _weighed(mutant, data["entries"][mutant.id])
        elif mutant.id not in data["elsewhere"]:
            findings.append(Finding(ExitCode.ABSENT, f"{mutant.id}: no stream was asked of it"))
    return findings


def _weighed(mutant: Mutant, entry: Mapping[str, Any]) -> list[Finding]:
    if entry["silent"]:
        test, reading = next(iter(entry["silent"].items()))
        told = f"{mutant.id}: {len(entry['silent'])} tests gave no answer: {test} {reading}"
        return [Finding(ExitCode.INCONCLUSIVE, told)]
    findings = []
    holds = [stream for stream, place in entry["data"].items() if place is None]
    for stream in mutant.survives_under:
        place = entry["data"][stream]
        if place is not None:
            findings.append(
                Finding(
                    ExitCode.FINDING,
                    f"{mutant.id}: overclaimed: survives_under names {stream}, but there it dies: {place}; measured: "
                    f"it survives under {', '.join(holds) or 'none'}",
                )
            )
    seeing = [test for test in mutant.killed_by if _check(test) in (*DATA_CHECKS, *VALUES_CHECKS)]
    played = [test for test in seeing if any("-".join(o.values()) in test for o in OPTIONS)]
    if played and not entry["promises"] and not any(entry["data"].values()):
        told = f"{mutant.id}: its killer {played[0]} sees it, and here no stream does"
        findings.append(Finding(ExitCode.FINDING, told))
    return findings


def main() -> None:
    """Entry point of `python -m harness.lens` and `rowproof lens`."""
    guarded(app, "lens")


if __name__ == "__main__":
    main()
