"""What the harness finds in the Hugging Face cache of DeepSeek-V4, unaided; measured on transformers 5.24.

A finding that is mended upstream turns its test red: then the test becomes a confirmation.
"""

from __future__ import annotations

import pytest

from harness.caches.protocol import load_cache
from harness.caches.results import GREEN, RED, REFUSED, Result, results
from harness.report import caches as report
from harness.rows.fixture import default_folder, load_folder

FIXTURES = load_folder(default_folder())
SELECTED = "harness.subjects.huggingface_v4:HuggingFaceV4Cache"
BEAMS = "harness.subjects.huggingface_v4:HuggingFaceV4Beams"


def played(subject: str, fixture: str) -> tuple[Result, str]:
    [result] = results([FIXTURES[fixture]], load_cache(subject))
    return result, "\n".join(report.messages([result]))


@pytest.mark.parametrize("subject", [SELECTED, BEAMS], ids=["select", "beams"])
@pytest.mark.parametrize(
    "fixture",
    [
        "one_sequence_in_chunks",
        "even_batch_in_chunks",
        "even_batch_in_chunks_ratio_128",
        "single_row_first_block",
    ],
)
def test_one_sequence_and_equal_rows_are_right_in_any_chunks(subject: str, fixture: str):
    result, said = played(subject, fixture)
    assert result.word == GREEN, said
    assert result.trace.compared["compressor@fresh"] > 0


def test_left_padding_is_pooled_into_blocks():
    result, said = played(SELECTED, "unequal_prompts_even_steps")
    assert result.word == RED
    assert "step 0 prefill(3,6,9) · row 0 · compressor" in said
    assert "2 blocks where 0 are right" in said
    assert "batch holds what the row would hold with 6 columns of padding in front of r0:t0" in said
    assert "batch holds what the row would hold with 3 columns of padding in front of r1:t0" in said
    assert "keys" not in result.checks() or result.checks()["keys"] == GREEN  # the window itself is right


def test_crop_below_the_window_leaves_the_drafts_in_the_compressor():
    result, said = played(SELECTED, "even_drafts_dropped_inside_the_window")
    assert result.word == RED
    assert "step 1 verify(+4, accept 2,2) · row 0 · compressor.buffer@fresh" in said
    assert "alone holds what the row would hold if r0:t16, r0:t17, rolled back, were still there" in said
    assert {result.checks()["keys"], result.checks()["keys@fresh"]} == {GREEN}
    assert result.checks()["compressor"] == GREEN  # batch and alone are wrong alike: only a fresh start tells


def test_crop_beyond_the_window_is_refused_by_name():
    result, _ = played(SELECTED, "even_drafts_dropped_inside_the_window_ratio_128")
    assert result.word == REFUSED
    assert result.trace.stopped is not None and "activate_past_recording" in result.trace.stopped.why


@pytest.mark.parametrize("fixture", ["chosen_rows_go_on", "chosen_rows_go_on_ratio_128"])
def test_batch_select_indices_leaves_compressor_rows_where_they_were(fixture: str):
    result, said = played(SELECTED, fixture)
    assert result.word == RED
    assert "step 2 select(2,0) · row 0 · compressor" in said
    assert "batch holds block 0 of r0:t0" in said and "alone holds block 0 of r2:t0" in said
    assert "batch holds what the row would hold if it were r0" in said
    assert result.checks()["keys"] == GREEN


def test_batch_repeat_interleave_repeats_keys_and_no_compressor_row():
    result, said = played(SELECTED, "doubled_rows_go_on")
    assert result.word == RED
    assert "step 2 select(0,0,1,1) · row 1 · compressor" in said
    assert "batch holds what the row would hold if it were r1" in said
    assert "row 2 · read" in said and "out of bounds" in said


@pytest.mark.parametrize(
    "fixture", ["chosen_rows_go_on", "chosen_rows_go_on_ratio_128", "doubled_rows_go_on"]
)
def test_reorder_cache_moves_all_of_a_row(fixture: str):
    result, said = played(BEAMS, fixture)
    assert result.word == GREEN, said
