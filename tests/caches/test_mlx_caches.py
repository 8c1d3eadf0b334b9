"""The batch caches of mlx-lm: what is right in them, what the harness finds in them unaided, and faults planted in them.

A finding that is mended upstream turns its test red: then the test becomes a confirmation.
"""

from __future__ import annotations

from typing import Any

import pytest
from mlx_lm.models import cache as mlx
from public import found_in, played

from harness.caches.protocol import load_cache
from harness.caches.results import ABORTED, GREEN, RED, results
from harness.report import caches as report
from harness.rows.fixture import default_folder, load_folder

KV = "harness.subjects.mlx_caches:BatchKV"
ROTATING = "harness.subjects.mlx_caches:BatchRotatingKV"
SINKS = "harness.subjects.mlx_caches:BatchRotatingKVWithSinks"
FIXTURES = load_folder(default_folder())
RIGHT = [
    "permuted_rows",
    "rows_join_and_leave",
    "selected_out_of_a_wider_batch",
    "short_row_beside_long",
    "shrinking_ragged_batch",
    "three_chunks",
    "unequal_prompts_even_steps",
]
BUSY = [
    {"do": "prefill", "lengths": [13, 2, 9]},
    {"do": "advance", "n_new": [1, 1, 1]},
    {"do": "advance", "n_new": [4, 0, 2]},
    {"do": "split", "rows": [1]},
    {"do": "advance", "n_new": [3, 1]},
    {"do": "assemble", "sequences": [1]},
    {"do": "select", "rows": [2, 0]},
    {"do": "advance", "n_new": [2, 5]},
    {"do": "advance", "n_new": [1, 1]},
]


@pytest.mark.parametrize("fixture", [*RIGHT, "even_drafts_dropped_inside_the_window", "idle_rows"])
def test_rows_of_unequal_length_are_right_where_every_token_is_kept(fixture: str):
    [result] = results([FIXTURES[fixture]], load_cache(KV))
    assert result.word == GREEN, "\n".join(report.messages([result]))
    assert result.trace.compared["attended@reference"] > 0


@pytest.mark.parametrize("fixture", [name for name in RIGHT if name != "selected_out_of_a_wider_batch"])
def test_rows_of_unequal_length_are_right_in_a_rotating_window(fixture: str):
    [result] = results([FIXTURES[fixture]], load_cache(ROTATING))
    assert result.word == GREEN, "\n".join(report.messages([result]))
    assert result.trace.compared["attended@reference"] > 0


@pytest.mark.parametrize("subject", [KV, ROTATING])
def test_rows_that_rotate_leave_and_come_back_are_right(subject: str):
    result, said = played(subject, *BUSY)
    assert result.word == GREEN, said


def test_drafts_are_dropped_from_a_window_that_is_not_full():
    result, said = played(
        ROTATING,
        {"do": "prefill", "lengths": [6, 3]},
        {"do": "verify", "width": 3, "accept": [1, 1]},
        {"do": "advance", "n_new": [9, 2]},
    )
    assert result.word == GREEN, said


def test_the_findings_are_of_this_version():
    found_in("mlx-lm", "0.32.2")


def test_a_rotating_batch_cannot_take_one_column_that_a_row_idles_in():
    """`PromptProcessingBatch.generate([[1], [2, 3]])` asks for it, as it feeds all but the last token of each: [0, 1].

    `BatchGenerator` is spared: it takes rows with one token left out of the batch first.
    """
    result, said = played(ROTATING, {"do": "prefill", "lengths": [0, 1]})
    assert result.word == ABORTED
    assert "step 0 prefill(0,1)" in said
    assert "RuntimeError: finalize() should be called before deocoding" in said
    assert played(KV, {"do": "prefill", "lengths": [0, 1]})[0].word == GREEN
    assert played(ROTATING, {"do": "prefill", "lengths": [0, 2]})[0].word == GREEN


def test_a_rotating_batch_cannot_go_on_from_a_file():
    steps: list[dict[str, Any]] = [
        {"do": "prefill", "lengths": [1]},
        {"do": "snapshot", "name": "a"},
        {"do": "restore", "name": "a"},
    ]
    result, said = played(ROTATING, *steps)
    assert result.word in (ABORTED, RED)
    assert "step 2 restore(a)" in said
    assert "'BatchRotatingKVCache' object has no attribute '_lengths'" in said
    result, said = played(KV, *steps, {"do": "advance", "n_new": [1]})
    assert result.word == GREEN, said


def test_a_merged_rotating_batch_lets_go_of_the_tokens_that_it_should_keep():
    """`make_prompt_cache(max_kv_size=...)` keeps the first 4 tokens for ever; `merge` makes a batch that does not.

    So `BatchGenerator(max_kv_size=...)` goes on differently from `generate_step(max_kv_size=...)`, even with one row.
    """
    result, said = played(SINKS, {"do": "prefill", "lengths": [11]}, {"do": "advance", "n_new": [1]})
    assert result.word == RED
    assert {check for check, word in result.checks().items() if word == RED} == {
        "attended@reference", "keys@reference", "values@reference",
    }  # fmt: skip
    assert "step 1 advance(+1) · row 0 · keys@reference" in said
    assert "first wrong cell: column 0 of 11   alone holds r0:t1   reference says r0:t0" in said
    assert "alone holds what the row would hold without its oldest token" in said


def test_a_row_of_a_batch_that_saw_nothing_cannot_be_extracted():
    result, said = played(KV, {"do": "prefill", "lengths": [0]}, {"do": "split", "rows": [0]})
    assert result.word == ABORTED
    assert "step 1 split(0)" in said and "TypeError: 'NoneType' object is not subscriptable" in said


def test_a_short_row_stays_unable_to_drop_drafts_after_its_long_neighbour_left():
    result, said = played(
        ROTATING,
        {"do": "prefill", "lengths": [12, 2]},
        {"do": "select", "rows": [1]},
        {"do": "rollback", "row": 0, "n": 1},
    )
    assert result.word == RED
    assert "batch refuses (is_trimmable() is False), alone accepts" in said


@pytest.mark.parametrize("kind, subject", [(mlx.BatchKVCache, KV), (mlx.BatchRotatingKVCache, ROTATING)])
def test_rows_that_filter_mixes_up_are_named(monkeypatch: pytest.MonkeyPatch, kind: Any, subject: str):
    right = kind.filter
    monkeypatch.setattr(kind, "filter", lambda self, rows: right(self, [*rows[1:], rows[0]]))
    result, said = played(subject, {"do": "prefill", "lengths": [5, 3]}, {"do": "select", "rows": [1, 0]})
    assert result.word == RED
    assert "step 1 select(1,0) · row 0 · " in said
    assert "batch holds what the row would hold if it were r0" in said
    assert "batch holds what the row would hold if it were r1" in said


@pytest.mark.parametrize("kind, subject", [(mlx.BatchKVCache, KV), (mlx.BatchRotatingKVCache, ROTATING)])
def test_drafts_that_trim_leaves_behind_are_named(monkeypatch: pytest.MonkeyPatch, kind: Any, subject: str):
    monkeypatch.setattr(kind, "trim", lambda self, n: n)
    result, said = played(
        subject,
        {"do": "prefill", "lengths": [5, 3]},
        {"do": "verify", "width": 3, "accept": [1, 1]},
    )
    assert result.word == RED
    assert "step 1 verify(+3, accept 1,1) · row 0 · attended@fresh" in said
    assert "alone holds what the row would hold if r0:t6, r0:t7, rolled back, were still there" in said
    assert "alone holds what the row would hold if r1:t4, r1:t5, rolled back, were still there" in said


@pytest.mark.parametrize("kind, subject", [(mlx.BatchKVCache, KV), (mlx.BatchRotatingKVCache, ROTATING)])
def test_tokens_that_trim_drops_at_the_wrong_end_are_named(
    monkeypatch: pytest.MonkeyPatch, kind: Any, subject: str
):
    def oldest(self: Any, n: int) -> int:
        self.left_padding += n
        self.offset = self.offset - n
        return n

    monkeypatch.setattr(kind, "trim", oldest)
    result, said = played(
        subject, {"do": "prefill", "lengths": [5]}, {"do": "verify", "width": 3, "accept": [1]}
    )
    assert result.word == RED
    assert "alone holds r0:t2   fresh holds r0:t0" in said
    assert (
        "alone holds what the row would hold if its oldest 2 tokens had been dropped instead of its newest"
        in said
    )


def test_a_mask_that_shows_the_padding_is_seen_though_every_entry_is_right(
    monkeypatch: pytest.MonkeyPatch,
):
    right = mlx.BatchKVCache.make_mask

    def unpadded(self: Any, *args: Any, **options: Any) -> Any:
        padding, self.left_padding = self.left_padding, self.left_padding * 0
        mask = right(self, *args, **options)
        self.left_padding = padding
        return mask

    monkeypatch.setattr(mlx.BatchKVCache, "make_mask", unpadded)
    result, said = played(KV, {"do": "prefill", "lengths": [5, 3]})
    assert {check for check, word in result.checks().items() if word == RED} == {"attended"}
    assert "row 1 · attended" in said and "row 0" not in said
