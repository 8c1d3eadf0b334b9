"""Windowed K/V slots: what they keep, how far they go back, and how unequal ones are brought side by side."""

from __future__ import annotations

import random
from collections import deque

import pytest
import torch

from harness.subjects.token_compressor import TokenCompressor
from torch_impl.geometry import Geometry
from torch_impl.kv_cache import (
    KVSlot,
    drop_dead_prefix,
    first_mismatched_cache_len,
    front_align_batch,
    front_pad_kv_cache,
)
from torch_impl.refusals import AlignRefused, RollbackRefused
from torch_impl.xs_rolling import XsRolling

WINDOW, MARGIN = 8, 3
KEPT = WINDOW - 1 + MARGIN

# Layers of V4-Flash: 2 sliding, 21 CSA and 20 HCA. All 43 have a K/V slot; each CSA layer also has an indexer.
CSA, HCA = 21, 20


def ids(first: int, n: int) -> torch.Tensor:
    """Columns that say which token they are; none is zero, so that a dead column is no token."""
    return torch.arange(first + 1, first + n + 1).view(-1, 1)


def slot(tokens: int = 0, window: int = WINDOW, margin: int = MARGIN) -> KVSlot:
    made = KVSlot(window, margin, 1, torch.int64)
    made.append(ids(0, tokens))
    return made


def compressor_slot(tokens: int, ratio: int = 4, span: int = 2, **settings) -> XsRolling:
    cache = XsRolling(TokenCompressor(ratio, span), Geometry(ratio, span), 1, **settings)
    cache.advance(torch.arange(tokens).view(1, -1, 1))
    return cache


def v4_flash(tokens: int, **settings) -> list[KVSlot | XsRolling]:
    """The slots of one sequence as the model lists them: K/V first, then compressors, then indexers."""
    compressors = [compressor_slot(tokens, 4, 2, **settings) for _ in range(CSA)]
    compressors += [compressor_slot(tokens, 128, 1, **settings) for _ in range(HCA)]
    indexers = [compressor_slot(tokens, 4, 2, **settings) for _ in range(CSA)]
    return [slot(tokens, 128, 16) for _ in range(2 + CSA + HCA)] + compressors + indexers


@pytest.mark.parametrize("chunk", [1, 2, 5, 9, 10, 11, 40])
def test_a_slot_keeps_one_token_less_than_its_window_and_the_margin(chunk):
    kept = slot()
    for first in range(0, 40, chunk):
        n = min(chunk, 40 - first)
        kept.append(ids(first, n))
        assert kept.tokens == first + n
        assert kept.live_len == min(first + n, KEPT)
        assert torch.equal(kept.live(), ids(first + n - kept.live_len, kept.live_len))


@pytest.mark.parametrize("tokens", [0, 1, WINDOW - 1, WINDOW, KEPT - 1, KEPT, KEPT + 1, 40])
def test_a_rollback_of_up_to_the_margin_leaves_all_that_the_next_query_sees(tokens):
    for n in range(min(MARGIN, tokens) + 1):
        kept = slot(tokens)
        kept.rollback(n)
        left = tokens - n
        sees = min(left, WINDOW - 1)
        assert kept.tokens == left
        assert torch.equal(kept.live()[kept.live_len - sees :], ids(left - sees, sees))


@pytest.mark.parametrize("tokens", [KEPT + 1, 40])
def test_a_deeper_rollback_of_a_full_slot_is_refused_by_name(tokens):
    for n in range(MARGIN + 1, tokens + 1):
        kept = slot(tokens)
        with pytest.raises(RollbackRefused) as refused:
            kept.rollback(n)
        assert refused.value.kind == "rollback-below-window"
        assert (kept.tokens, kept.live_len) == (tokens, KEPT)


@pytest.mark.parametrize("tokens", [0, 1, KEPT])
def test_a_slot_that_has_forgotten_nothing_goes_back_to_its_start(tokens):
    kept = slot(tokens)
    kept.rollback(tokens)
    assert (kept.tokens, kept.live_len) == (0, 0)
    assert kept.rollback_refusal(1).kind == "rollback-below-zero"


def test_the_margin_is_spent_by_rollbacks_and_earned_again_by_tokens():
    kept = slot(40)
    kept.rollback(2)
    assert kept.rollback_refusal(1) is None
    assert kept.rollback_refusal(2).kind == "rollback-below-window"
    kept.append(ids(38, 1))
    assert kept.rollback_refusal(2) is None
    assert kept.rollback_refusal(3).kind == "rollback-below-window"


def test_any_history_of_a_slot_is_that_of_a_list_with_a_bound():
    choose = random.Random(2)
    for window in (1, 2, 5, 8):
        for margin in (0, 1, 3, 9):
            kept, history, run, event = slot(0, window, margin), [], deque(maxlen=window - 1 + margin), 0
            for _ in range(60):
                if choose.random() < 0.6:
                    n = choose.randint(0, 4)
                    kept.append(ids(event, n))
                    for each in range(event + 1, event + n + 1):
                        history.append(each)
                        run.append(each)
                    event += n
                else:
                    n = choose.randint(0, min(margin + 2, len(history)))
                    sees = min(len(history) - n, window - 1)
                    assert (kept.rollback_refusal(n) is None) == (len(run) - n >= sees)
                    if kept.rollback_refusal(n) is None:
                        kept.rollback(n)
                        for _ in range(n):
                            history.pop()
                            run.pop()
                if choose.random() < 0.3:
                    front_pad_kv_cache(kept, kept.live_len + choose.randint(0, 5))
                assert kept.tokens == len(history)
                assert kept.live().flatten().tolist() == list(run)


def test_what_a_slot_was_fed_can_be_changed_without_changing_the_slot():
    fed = ids(0, 4)
    kept = KVSlot(WINDOW, MARGIN, 1, torch.int64)
    kept.append(fed)
    fed.zero_()
    assert torch.equal(kept.live(), ids(0, 4))


def test_a_slot_holds_on_to_no_autograd_graph():
    kept = KVSlot(WINDOW, MARGIN, 2, torch.float32)
    kept.append(torch.zeros(3, 2, requires_grad=True))
    assert not kept.columns.requires_grad


def test_a_padded_run_ends_at_the_target_behind_as_many_dead_columns_as_it_is_short():
    padded = slot(3)
    assert front_pad_kv_cache(padded, 7) == 4
    assert (padded.lead, padded.live_len, padded.tokens) == (4, 3, 3)
    assert padded.columns.flatten().tolist() == [0, 0, 0, 0, 1, 2, 3]


def test_padding_twice_is_padding_once():
    padded = slot(3)
    for target in (7, 7, 9, 9, 5, 3):
        assert front_pad_kv_cache(padded, target) == target - 3
        assert len(padded.columns) == target
        assert torch.equal(padded.live(), ids(0, 3))


def test_a_dropped_prefix_leaves_the_run_and_nothing_else():
    padded = slot(3)
    front_pad_kv_cache(padded, 9)
    drop_dead_prefix(padded)
    assert (padded.lead, padded.live_len) == (0, 3)
    assert torch.equal(padded.columns, ids(0, 3))
    drop_dead_prefix(padded)
    assert torch.equal(padded.columns, ids(0, 3))


@pytest.mark.parametrize("drop", [True, False], ids=["dropped", "kept"])
def test_no_dead_prefix_grows_over_20_rebatchings(drop):
    short, long = slot(2, 128, 16), slot(9, 128, 16)
    for step in range(20):
        assert front_align_batch([[short], [long]]) == [7, 0]
        assert len(short.columns) == len(long.columns) == 9 + step
        for each in (short, long):
            each.append(ids(each.tokens, 1))
            if drop:
                drop_dead_prefix(each)
    assert short.columns.flatten().tolist()[short.lead :] == list(range(1, 23))


def test_tokens_that_arrive_and_leave_while_a_slot_is_padded_leave_its_lead_alone():
    padded = slot(3)
    front_pad_kv_cache(padded, 6)
    padded.append(ids(3, 2))
    assert padded.columns.flatten().tolist() == [0, 0, 0, 1, 2, 3, 4, 5]
    padded.rollback(4)
    assert padded.columns.flatten().tolist() == [0, 0, 0, 1]
    padded.append(ids(1, 20))
    assert (padded.lead, padded.live_len) == (3, KEPT)


def test_the_lead_is_that_of_the_kv_slots_though_compressor_slots_come_last():
    sequences = [v4_flash(tokens) for tokens in (5, 130, 40)]
    assert [sum(isinstance(each, KVSlot) for each in slots) for slots in sequences] == [43] * 3
    assert [len(slots) for slots in sequences] == [43 + 41 + 21] * 3
    before = [[cache.tail().clone() for cache in slots[43:]] for slots in sequences]
    assert front_align_batch(sequences) == [125, 0, 90]
    for slots, tails in zip(sequences, before, strict=True):
        assert {len(each.columns) for each in slots[:43]} == {130}
        assert all(torch.equal(cache.tail(), tail) for cache, tail in zip(slots[43:], tails, strict=True))


def test_the_target_is_the_longest_kv_run_and_never_a_wider_tail():
    """At ratio 128 a compressor's tail is longer than the K/V run of a small window."""
    sequences = [[slot(20), compressor_slot(100, 128, 1)], [slot(4), compressor_slot(100, 128, 1)]]
    assert front_align_batch(sequences) == [0, KEPT - 4]


def test_full_windows_have_no_lead_however_far_apart_their_rows_stand():
    sequences = [[slot(1000, 128, 16)], [slot(5000, 128, 16)], [slot(143, 128, 16)]]
    assert front_align_batch(sequences) == [0, 0, 0]


def test_layers_of_one_sequence_that_differ_are_refused_before_any_slot_moves():
    even, uneven = [slot(3), slot(3)], [slot(9), slot(2)]
    with pytest.raises(AlignRefused):
        front_align_batch([even, uneven])
    assert [each.lead for each in (*even, *uneven)] == [0] * 4


def test_a_batch_of_no_sequences_has_no_leads():
    assert front_align_batch([]) == []


@pytest.mark.parametrize("per_row_state", [True, False])
def test_equal_sequences_have_no_mismatched_slot(per_row_state):
    assert first_mismatched_cache_len([v4_flash(40), v4_flash(40)], per_row_state) is None
    assert first_mismatched_cache_len([v4_flash(40)], per_row_state) is None
    assert first_mismatched_cache_len([], per_row_state) is None


def test_compressor_slots_are_exempt_under_per_row_state_and_only_there():
    """Full windows at 1000 and 1001 tokens; the tails differ by a token."""
    sequences = [v4_flash(1000), v4_flash(1001)]
    assert first_mismatched_cache_len(sequences, per_row_state=True) is None
    assert first_mismatched_cache_len(sequences, per_row_state=False) == 43


def test_kv_slots_are_never_exempt():
    for per_row_state in (True, False):
        sequences = [v4_flash(100), v4_flash(100)]
        sequences[1][7].append(ids(100, 1))
        assert first_mismatched_cache_len(sequences, per_row_state) == 7


def test_the_first_of_several_mismatched_slots_is_named():
    sequences = [[slot(3), slot(4), compressor_slot(4)], [slot(3), slot(5), compressor_slot(5)]]
    assert first_mismatched_cache_len(sequences, per_row_state=True) == 1
    assert first_mismatched_cache_len(sequences, per_row_state=False) == 1


def test_a_slot_that_only_some_sequences_have_as_compressor_slot_is_not_exempt():
    assert first_mismatched_cache_len([[slot(3)], [compressor_slot(5)]], per_row_state=True) == 0


def test_a_dead_prefix_does_not_make_unequal_runs_equal():
    sequences = [[slot(2)], [slot(5)]]
    front_align_batch(sequences)
    assert first_mismatched_cache_len(sequences, per_row_state=True) == 0
