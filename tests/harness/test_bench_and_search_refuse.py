"""`harness.bench` and `harness.search` refuse bad input at once; what the bench cannot measure or claim, it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from harness import bench, search
from harness.benchmark.clock import Ratio
from harness.benchmark.state import Layer
from harness.benchmark.tables import Effort, Row, row_invariance
from harness.exit_codes import ExitCode
from torch_impl import invariance


def said(command, arguments, capsys, monkeypatch) -> tuple[int, str, str]:
    """What a command answers to its arguments: exit code, output, and complaint."""
    monkeypatch.setattr(sys, "argv", ["rowproof", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        command.main()
    shown = capsys.readouterr()
    return int(left.value.code or 0), shown.out, shown.err


@pytest.mark.parametrize(
    ("command", "arguments", "sentence"),
    [
        (bench, ["ab", "--device", "cuda:99"], "--device is cuda:99; it should be cpu, or cuda where torch"),
        (bench, ["state", "--device", "meta"], "a meta device is none of those"),
        (bench, ["state", "--device", "gpu"], "--device is gpu; it should be cpu, or cuda"),
        (bench, ["mtp", "--device", "gpu"], "--device is gpu; it should be cpu, or cuda"),
        (bench, ["attention", "--device", "meta"], "a meta device is none of those"),
        (bench, ["ab", "--reports", __file__], "is a file; it should be a folder"),
        (bench, ["mtp", "--reports", __file__], "is a file; it should be a folder"),
        (bench, ["attention", "--reports", __file__], "is a file; it should be a folder"),
        (bench, ["state", "--reports", Path(__file__) / "new"], "is a file; it should be a folder"),
        (search, ["--folder", Path(__file__) / "new"], "is a file; it should be a folder"),
        (search, ["--subject", "harness.exit_codes:__doc__"], "a subject should have the methods"),
        (
            search,
            ["--subject", "harness.bench:app"],
            "it should be a factory that takes a geometry and a number of",
        ),
        (search, ["--examples", "0"], "should be greater than or equal to 1"),
        (bench, ["ba"], "No such command 'ba'"),
    ],
)
def test_bad_input_is_refused_before_anything_is_played(command, arguments, sentence, capsys, monkeypatch):
    code, out, err = said(command, arguments, capsys, monkeypatch)
    assert (code, out) == (ExitCode.USAGE, "")
    assert sentence in " ".join(err.split())
    assert "Traceback" not in err


def test_what_escapes_the_bench_is_an_internal_error_and_no_finding(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(bench.tables, "flags", lambda *_: 1 / 0)
    code, _, err = said(bench, ["ab", "--reports", tmp_path], capsys, monkeypatch)
    assert code == ExitCode.INTERNAL
    assert "rowproof bench: internal error: ZeroDivisionError" in err


def measured(effort: Effort, layer, rows: int) -> Row:
    """A measurement that took no time: held for one row, not held for more."""
    return Row("B3", f"{layer.short}, B={rows}", Ratio(1.0, 1.0, 1.0, 30), "holds 1.00", rows == 1)


def test_ab_says_how_often_its_claim_held_and_quotes_the_refusal(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(bench.tables, "flags", measured)
    code, out, _ = said(bench, ["ab", "--reports", tmp_path / "new" / "folder"], capsys, monkeypatch)
    assert code == ExitCode.OK
    claim = json.loads((tmp_path / "new" / "folder" / "bench-ab.json").read_text())["claim"]
    assert claim[0].endswith(
        "(B=1 and B=128) per-row state on costs what it costs off: held in 2 of 4 measurements"
    )
    assert "advance-ragged: rows stand at tokens [64, 64]" in claim[1]
    assert all(sentence in out for sentence in claim)
    assert all(sentence in (tmp_path / "new" / "folder" / "bench-ab.md").read_text() for sentence in claim)


def test_small_sizes_judge_no_claim(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(bench.tables, "flags", measured)
    _, out, _ = said(bench, ["ab", "--quick", "--reports", tmp_path], capsys, monkeypatch)
    assert "not judged, because the sizes are small" in out
    assert "targets met 0 of 0 · reported 4" in out


@pytest.mark.parametrize(
    ("machine", "rows", "words"),
    [
        (None, ["B=1", "B=2"], "ms a step"),
        (
            "two rows differ",
            ["row-invariant / plain step"],
            "two rows differ; a row should have the same bytes",
        ),
    ],
)
def test_the_cost_of_row_invariance_is_a_ratio_without_a_target_or_the_refusal(
    machine, rows, words, monkeypatch
):
    monkeypatch.setattr(invariance, "probe", lambda compressor: machine)
    layer = Layer("csa", torch.float32, hidden=16, head=64)
    found = list(row_invariance(Effort(repeats=2, steps=1, rows=2), layer))
    assert [row.what.endswith(end) for row, end in zip(found, rows, strict=True)] == [True] * len(rows)
    assert all(
        (row.met, row.limit, row.ratio is None) == (None, "reported", machine is not None) for row in found
    )
    assert all(words in row.note for row in found)
