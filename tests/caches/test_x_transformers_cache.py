"""The cache of x-transformers: what is right in it, what the harness finds in it unaided, and faults planted in it.

A finding that is mended upstream turns its test red: then the test becomes a confirmation.
"""

from __future__ import annotations

from typing import Any

import pytest
from public import found_in, played

from harness.caches.protocol import load_cache
from harness.caches.results import GREEN, RED, Result, results
from harness.report import caches as report
from harness.rows.fixture import default_folder, load_folder
from harness.subjects import x_transformers_cache

PLAIN = "harness.subjects.x_transformers_cache:XTransformersCache"
WINDOW = "harness.subjects.x_transformers_cache:XTransformersWindow"
HYBRID = "harness.subjects.x_transformers_cache:XTransformersHybrid"
FIXTURES = load_folder(default_folder())


def red(result: Result) -> set[str]:
    return {check for check, word in result.checks().items() if word == RED}


@pytest.mark.parametrize(
    "subject, fixture",
    [
        (PLAIN, "chosen_rows_go_on"),
        (PLAIN, "doubled_rows_go_on"),
        (PLAIN, "shrinking_ragged_batch"),
        (PLAIN, "unequal_prompts_even_steps"),
        (WINDOW, "doubled_rows_go_on"),
        (WINDOW, "even_batch_in_chunks"),
        (HYBRID, "even_batch_in_chunks"),
        (HYBRID, "one_sequence_in_chunks"),
    ],
)
def test_left_padded_rows_and_equal_rows_beyond_the_window_are_right(subject: str, fixture: str):
    [result] = results([FIXTURES[fixture]], load_cache(subject))
    assert result.word == GREEN, "\n".join(report.messages([result]))
    assert result.trace.compared["attended"] > 0


def test_the_findings_are_of_this_version():
    found_in("x-transformers", "2.31.10")


def test_a_window_that_moves_hides_tokens_of_a_left_padded_row():
    """`generate(prompt_lens=...)` beyond `max_seq_len` drops the oldest column, and not from `seq_start_pos`."""
    result, said = played(WINDOW, {"do": "prefill", "lengths": [12, 11]})
    assert red(result) == {"attended", "keys", "values"}
    assert "step 0 prefill(12,11) · row 1 · attended" in said
    assert "batch holds what the row would hold without its oldest token" in said
    assert "row 0" not in said


def test_a_recurrent_unit_takes_left_padding_for_tokens():
    """So `generate(prompt_lens=...)` goes on differently from the same prompt alone."""
    result, said = played(HYBRID, {"do": "prefill", "lengths": [2, 1]})
    assert red(result) == {"attended", "hidden"}
    assert "step 0 prefill(2,1) · row 1 · hidden" in said
    assert "batch holds what the row would hold with 1 column of padding in front of r1:t0" in said
    assert "row 0" not in said


def test_rows_moved_as_by_beam_search_leave_the_hidden_state_of_the_unit_behind():
    result, said = played(HYBRID, {"do": "prefill", "lengths": [2, 2]}, {"do": "select", "rows": [1, 0]})
    assert red(result) == {"attended", "hidden"}
    assert "step 1 select(1,0) · row 0 · hidden" in said
    assert "batch holds what the row would hold if it were r0" in said
    result, said = played(HYBRID, {"do": "prefill", "lengths": [2]}, {"do": "select", "rows": [0, 0]})
    assert result.word == RED  # more than one beam cannot go on at all
    assert "Expected hidden size (1, 2, 32), got [1, 1, 32]" in said


def test_values_that_stay_where_they_were_are_named(monkeypatch: pytest.MonkeyPatch):
    def keys_only(cache: Any, chosen: Any) -> None:
        for layer in cache.attn_intermediates:
            if layer.cached_kv is not None:
                layer.cached_kv = [chosen(layer.cached_kv[0]), layer.cached_kv[1]]

    monkeypatch.setattr(x_transformers_cache, "modify_cached_kv", keys_only)
    result, said = played(PLAIN, {"do": "prefill", "lengths": [3, 3]}, {"do": "select", "rows": [1, 0]})
    assert red(result) == {"attended", "values"}
    assert "batch holds r0:t0   alone holds r1:t0" in said
    assert "batch holds what the row would hold if it were r0" in said


def test_a_start_that_is_not_moved_with_its_row_is_explained(monkeypatch: pytest.MonkeyPatch):
    def select(self: Any, rows: Any) -> None:
        x_transformers_cache.modify_cached_kv(self.cache, lambda entries: entries[list(rows)])

    monkeypatch.setattr(x_transformers_cache.XTransformersCache, "select", select)
    result, said = played(PLAIN, {"do": "prefill", "lengths": [4, 2]}, {"do": "select", "rows": [1, 0]})
    assert red(result) == {"attended", "keys", "values"}
    assert "batch holds what the row would hold with 2 columns of padding in front of r1:t0" in said
    assert "batch holds what the row would hold without its oldest 2 tokens" in said
