"""Two cache layers of transformers: what is right in them, what the harness finds unaided, and faults planted in them.

A finding that is mended upstream turns its test red: then the test becomes a confirmation.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from public import found_in, played
from transformers.cache_utils import DynamicSlidingWindowLayer, LinearAttentionAndFullAttentionLayer

from harness.caches.protocol import load_cache
from harness.caches.results import GREEN, RED, results
from harness.report import caches as report
from harness.rows.fixture import default_folder, load_folder

SLIDING = "harness.subjects.transformers_caches:SlidingWindow"
HYBRID = "harness.subjects.transformers_caches:Hybrid"
BEAMS = "harness.subjects.transformers_caches:HybridBeams"
FIXTURES = load_folder(default_folder())


@pytest.mark.parametrize(
    "subject, fixture",
    [
        (SLIDING, "chosen_rows_go_on"),
        (SLIDING, "doubled_rows_go_on"),
        (SLIDING, "even_batch_in_chunks"),
        (SLIDING, "even_drafts_dropped_inside_the_window"),
        (SLIDING, "uniform_after_deep_rollback"),
        (HYBRID, "even_batch_in_chunks"),
        (HYBRID, "one_sequence_in_chunks"),
        (BEAMS, "chosen_rows_go_on"),
        (BEAMS, "doubled_rows_go_on"),
    ],
)
def test_equal_rows_are_right(subject: str, fixture: str):
    [result] = results([FIXTURES[fixture]], load_cache(subject))
    assert result.word == GREEN, "\n".join(report.messages([result]))


def test_the_findings_are_of_this_version():
    found_in("transformers", "5.24.0")


def test_batch_select_indices_leaves_the_convolution_and_the_recurrent_state_where_they_were():
    result, said = played(HYBRID, {"do": "prefill", "lengths": [1, 1]}, {"do": "select", "rows": [1]})
    assert result.word == RED
    assert {check for check, word in result.checks().items() if word == RED} == {"conv", "state"}
    assert "step 1 select(1) · row 0 · conv" in said
    assert "batch holds r0:t0   alone holds r1:t0" in said
    assert "batch holds what the row would hold if it were r0" in said


def test_batch_repeat_interleave_leaves_them_as_many_as_they_were():
    result, said = played(
        HYBRID, {"do": "prefill", "lengths": [1, 1]}, {"do": "select", "rows": [0, 0, 1, 1]}
    )
    assert result.word == RED
    assert "step 1 select(0,0,1,1) · row 1 · conv" in said
    assert "batch holds r1:t0   alone holds r0:t0" in said
    assert "batch raises IndexError where this row is read" in said


def test_a_second_crop_silently_shortens_a_window_that_the_first_one_cut_to_size():
    prompt = {"do": "prefill", "lengths": [13]}
    drop = {"do": "rollback", "row": 0, "n": 1}
    result, said = played(SLIDING, prompt, drop, drop)
    assert result.word == RED
    assert "step 2 rollback(row 0, -1) · row 0 · keys@fresh" in said
    assert "10 tokens where 11 are right" in said
    assert "alone holds what the row would hold without its oldest token" in said
    assert played(SLIDING, prompt, {"do": "rollback", "row": 0, "n": 2})[0].word == GREEN


def test_a_window_whose_past_is_not_recorded_refuses_to_crop(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(DynamicSlidingWindowLayer, "activate_past_recording", lambda self: None)
    result, _ = played(SLIDING, {"do": "prefill", "lengths": [12]}, {"do": "rollback", "row": 0, "n": 1})
    assert result.played is not None and result.played.refused
    assert "activate_past_recording" in result.trace.stopped.why


def test_rows_that_are_selected_in_the_wrong_order_are_named(monkeypatch: pytest.MonkeyPatch):
    right = DynamicSlidingWindowLayer.batch_select_indices
    monkeypatch.setattr(
        DynamicSlidingWindowLayer, "batch_select_indices", lambda self, rows: right(self, rows.flip(0))
    )
    result, said = played(SLIDING, {"do": "prefill", "lengths": [3, 3]}, {"do": "select", "rows": [1, 0]})
    assert result.word == RED
    assert "step 1 select(1,0) · row 0 · keys" in said
    assert "batch holds r0:t0   alone holds r1:t0" in said
    assert "batch holds what the row would hold if it were r0" in said


@pytest.mark.parametrize(
    "kept, explained",
    [
        (lambda entries, n: entries, "if r0:t4, r0:t5, rolled back, were still there"),
        (
            lambda entries, n: entries[..., n:, :],
            "if its oldest 2 tokens had been dropped instead of its newest",
        ),
    ],
    ids=["stale-draft", "wrong-end"],
)
def test_a_crop_that_keeps_the_wrong_tokens_is_explained(
    monkeypatch: pytest.MonkeyPatch, kept: Any, explained: str
):
    def crop(self: Any, n: int) -> None:
        self.keys, self.values = kept(self.keys, -n), kept(self.values, -n)

    monkeypatch.setattr(DynamicSlidingWindowLayer, "crop", crop)
    result, said = played(
        SLIDING, {"do": "prefill", "lengths": [3]}, {"do": "verify", "width": 3, "accept": [1]}
    )
    assert result.word == RED
    assert "step 1 verify(+3, accept 1) · row 0 · keys@fresh" in said
    assert f"alone holds what the row would hold {explained}" in said


def test_a_recurrent_state_that_takes_its_neighbours_tokens_is_explained(monkeypatch: pytest.MonkeyPatch):
    right = LinearAttentionAndFullAttentionLayer.update_recurrent_state
    monkeypatch.setattr(
        LinearAttentionAndFullAttentionLayer,
        "update_recurrent_state",
        lambda self, states: right(self, torch.roll(states, 1, 0)),
    )
    result, said = played(HYBRID, {"do": "prefill", "lengths": [3, 3]})
    assert {check for check, word in result.checks().items() if word == RED} == {"state"}
    assert "step 0 prefill(3,3) · row 0 · state" in said
    assert "batch holds what the row would hold if it were r1" in said
