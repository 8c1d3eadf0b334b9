"""`python -m harness.bench`: what a state step costs, as ratios between things measured in one run."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from harness.benchmark import one_layer, speculation, tables
from harness.benchmark.state import Layer
from harness.benchmark.tables import Effort, Row
from harness.device import refusal
from harness.exit_codes import ExitCode
from harness.guard import folder_refusal, guarded

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)

Device = Annotated[str, typer.Option(help="Where production runs: cpu, cuda.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]
Quick = Annotated[bool, typer.Option(help="Small sizes and few repeats: shows the form, not the numbers.")]
Reports = Annotated[Path, typer.Option(help="Folder for bench.json and bench.md.")]


@app.command("state")
def state_table(
    device: Device = "cpu", as_json: AsJson = False, quick: Quick = False, reports: Reports = Path("reports")
) -> None:
    """The whole table: step against projection, ragged against uniform, flags, loop, context, sizes, memory."""
    effort = _effort(device, quick, reports)
    found = _measured(_state(effort), quick, as_json)
    _write("state", "bench", found, device, as_json, reports)


@app.command("ab")
def ab(
    device: Device = "cpu", as_json: AsJson = False, quick: Quick = False, reports: Reports = Path("reports")
) -> None:
    """The claim of no regression: per-row state off against on, on equal rows, B=1 and B=128."""
    effort = _effort(device, quick, reports)
    rows = (tables.flags(effort, layer, count) for layer in effort.layers[:2] for count in (1, effort.rows))
    found = _measured(rows, quick, as_json)
    judged = [row for row in found if row.met is not None]
    held = f"held in {sum(bool(row.met) for row in judged)} of {len(judged)} measurements"
    claim = [
        f"claim: on equal rows (B=1 and B={effort.rows}) per-row state on costs what it costs off: "
        + (held if judged else "not judged, because the sizes are small"),
        f"rows that differ have no off to compare with, because it refuses them: {tables.refusal(effort)}",
    ]
    _write("ab", "bench-ab", found, device, as_json, reports, claim)


@app.command("mtp")
def mtp(
    device: Device = "cpu", as_json: AsJson = False, quick: Quick = False, reports: Reports = Path("reports")
) -> None:
    """What a verify of drafts gains, every row going back by itself against all together, beside the theory."""
    _refuse(device, reports)
    effort = speculation.Effort()
    if quick:
        effort = speculation.Effort(rows=(1, 8), acceptances=(0.7,), verifies=4, samples=16)
    found = _measured(speculation.accepted_per_verify(effort, device), quick, as_json)
    _write("mtp", "bench-mtp", found, device, as_json, reports)


@app.command("attention")
def attention(
    device: Device = "cpu", as_json: AsJson = False, quick: Quick = False, reports: Reports = Path("reports")
) -> None:
    """One attention layer: rows at unequal tokens against rows that all stand where the longest does."""
    _refuse(device, reports)
    effort = one_layer.Effort()
    if quick:
        effort = one_layer.Effort(sizes=((4, 1), (4, 2)), longest=512, repeats=3, small=True)
    found = _measured(one_layer.ragged_against_uniform(effort, device), quick, as_json)
    _write("attention", "bench-attention", found, device, as_json, reports)


def _state(effort: Effort) -> Iterator[Row]:
    for layer in effort.layers:
        yield from tables.step_against_projection(effort, layer)
        yield from tables.row_invariance(effort, layer)
    for layer in effort.layers[:2]:
        yield from tables.ragged_against_uniform(effort, layer)
        for rows in (1, effort.rows):
            yield tables.flags(effort, layer, rows)
        yield tables.loop_against_batch(effort, layer)
        yield from tables.pool_calls(effort, layer)
        yield tables.against_hugging_face(effort, layer)
        yield from tables.contexts(effort, layer)
        yield tables.batch_sizes(effort, layer)
        yield tables.columns(effort, layer)
        yield from tables.storage(effort, layer)


def _refuse(device: str, reports: Path) -> None:
    """Everything that can be refused is refused here, before minutes go by."""
    refused = refusal(device) or folder_refusal("--reports", reports)
    if refused:
        print(f"rowproof bench: {refused}", file=sys.stderr)
        raise typer.Exit(ExitCode.USAGE)
    torch.set_num_threads(1)


def _effort(device: str, quick: bool, reports: Path) -> Effort:
    """What to measure of the state, and how long."""
    _refuse(device, reports)
    effort = Effort()
    sizes: dict[str, Any] = {"device": device}
    if quick:
        effort = Effort(
            repeats=3, pairs=30, steps=4, rows=8, spreads=(0, 4), contexts=(512, 2048), sizes=(1, 4, 8)
        )
        sizes |= {"hidden": 64, "head": 64}
    effort.layers = tuple(Layer(layer.name, layer.dtype, **sizes) for layer in effort.layers)
    return effort


def _measured(rows: Iterable[Row], quick: bool, as_json: bool) -> list[Row]:
    """All rows, shown as they come. Targets are set for real sizes: at small ones none is met and none missed."""
    found = []
    for row in rows:
        found.append(replace(row, limit="reported", met=None) if quick else row)
        if not as_json:
            print(_line(found[-1]), flush=True)
    return found


def _write(
    what: str,
    name: str,
    found: list[Row],
    device: str,
    as_json: bool,
    reports: Path,
    claim: Sequence[str] = (),
) -> None:
    """The table as files, and what it adds up to on screen."""
    promised = [row for row in found if row.met is not None]
    met = sum(bool(row.met) for row in promised)
    report = {
        "what": what,
        "machine": _machine(device),
        "met": met,
        "promised": len(promised),
        "claim": list(claim),
        "rows": [row.as_json() for row in found],
    }
    text = json.dumps(report, indent=2, sort_keys=True)
    reports.mkdir(parents=True, exist_ok=True)
    (reports / f"{name}.json").write_text(text + "\n")
    (reports / f"{name}.md").write_text(_markdown(report, found))
    if as_json:
        print(text)
        return
    print(
        f"\ntargets met {met} of {len(promised)} · reported {len(found) - len(promised)} · {reports / name}.json"
    )
    print("\n".join(claim))


def _shown(row: Row) -> str:
    if row.ratio is None:
        return row.note
    ratio = f"{row.ratio.median:.3f} [{row.ratio.low:.3f}, {row.ratio.high:.3f}]"
    return f"{ratio} ({row.note})" if row.note else ratio


def _line(row: Row) -> str:
    mark = {True: "met", False: "MISSED", None: ""}[row.met]
    return f"{row.target:6} {row.what:72} {_shown(row)}   {row.limit} {mark}"


def _markdown(report: dict[str, Any], rows: list[Row]) -> str:
    machine = ", ".join(f"{key} {value}" for key, value in report["machine"].items())
    lines = [
        f"# Benchmark: {report['what']}",
        "",
        f"Targets met {report['met']} of {report['promised']}. Ratios are medians of interleaved pairs with a 95 % "
        "interval; milliseconds do not travel between machines.",
        "",
        machine,
        "",
        "| target | what | measured | should be | met |",
        "|---|---|---|---|---|",
    ]
    words = {True: "yes", False: "no", None: ""}
    lines += [f"| {r.target} | {r.what} | {_shown(r)} | {r.limit} | {words[r.met]} |" for r in rows]
    lines += [line for sentence in report["claim"] for line in ("", sentence)]
    return "\n".join(lines) + "\n"


def _machine(device: str) -> dict[str, str]:
    """What the numbers were measured on."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ]
        model = names[0] if names else model
    found = {
        "processor": model,
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }
    if torch.device(device).type == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
    return found


def main() -> None:
    """Entry point of `python -m harness.bench` and `rowproof bench`."""
    guarded(app, "bench")


if __name__ == "__main__":
    main()
