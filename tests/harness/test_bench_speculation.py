"""What the benchmark of speculative decoding counts, and the theory that stands beside it."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from harness import bench
from harness.benchmark import one_layer, speculation
from harness.benchmark.speculation import Coins, Effort, accepted_per_verify, expected


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(("depth", "rows"), [(1, 1), (3, 1), (2, 2), (3, 3), (1, 5)])
def test_the_theory_is_the_mean_over_all_outcomes(acceptance, depth, rows):
    mean = 0.0
    for outcome in itertools.product([True, False], repeat=depth * rows):
        chance = 1.0
        for right in outcome:
            chance *= acceptance if right else 1 - acceptance
        each = [outcome[row * depth : (row + 1) * depth] for row in range(rows)]
        mean += chance * min(len([*itertools.takewhile(bool, own)]) for own in each)
    assert expected(acceptance, depth, rows) == pytest.approx(mean, abs=1e-12)


@pytest.mark.parametrize(("acceptance", "kept"), [(1.0, 2), (0.0, 0)])
def test_drafts_that_are_always_or_never_right_are_all_or_none_accepted_however_rows_go_back(
    acceptance, kept
):
    effort = Effort(rows=(3,), acceptances=(acceptance,), depth=2, verifies=3, samples=9)
    (row,) = accepted_per_verify(effort, "cpu")
    assert f"{kept:.2f} (theory {kept:.2f}) and {kept:.2f} (theory {kept:.2f})" in row.note
    assert row.met is None


def test_a_token_that_greedy_decoding_would_not_gain_stops_the_measurement(monkeypatch):
    """A benchmark of wrong tokens would be a good number for nothing."""
    right = speculation.Speculative.step

    def wrong(self, depth):
        verified = right(self, depth)
        verified.tokens[0][0] += 1
        return verified

    monkeypatch.setattr(speculation.Speculative, "step", wrong)
    with pytest.raises(AssertionError, match="row 0 gained"):
        list(accepted_per_verify(Effort(rows=(2,), acceptances=(0.5,), verifies=1, samples=2), "cpu"))


def test_a_draft_is_right_as_often_as_it_was_asked_to_be():
    continuations = torch.zeros(50, 400, dtype=torch.int64)
    coins = Coins(continuations, 0.7, 11)
    drafts = torch.stack([coins.propose(continuations[:, 0], 3) for _ in range(90)])
    assert abs((drafts == 0).double().mean().item() - 0.7) < 0.02  # five standard deviations
    assert coins.at == [360] * 50


@pytest.mark.parametrize("kind", ["sliding", "csa", "hca"])
def test_a_measured_layer_has_published_sizes_unless_it_is_asked_to_be_small(kind):
    sizes = one_layer.config(kind, small=False)
    assert (sizes.hidden_width, sizes.heads, sizes.d, sizes.window, sizes.topk) == (4096, 64, 512, 128, 512)
    assert one_layer.config(kind, small=True).hidden_width < 100


@pytest.mark.parametrize(("command", "target"), [("mtp", "B9"), ("attention", "B10")])
def test_a_quick_run_shows_the_form_and_promises_nothing(command, target, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("sys.argv", ["bench", command, "--quick", "--json", "--reports", str(tmp_path)])
    threads = torch.get_num_threads()
    try:
        with pytest.raises(SystemExit) as left:
            bench.main()
    finally:
        torch.set_num_threads(threads)
    assert left.value.code == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((tmp_path / f"bench-{command}.json").read_text())
    assert {row["target"] for row in shown["rows"]} == {target}
    assert (shown["promised"], len(shown["rows"]) > 1) == (0, True)
