"""Which blocks a query picks, and by which scores."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from reference_impl.compressor import CompressorWeights
from reference_impl.indexer import IndexerWeights, gap, picks, reached


def indexer(heads: int = 3, q_lora: int = 5, rope_width: int = 4, seed: int = 0) -> IndexerWeights:
    rng = np.random.default_rng(seed)
    keys = CompressorWeights.random(rng, hidden_width=6, d=4, ratio=3, span=2, rope_width=rope_width)
    return IndexerWeights(
        rng.standard_normal((heads * 4, q_lora)), rng.standard_normal((heads, 6)), keys
    )  # fmt: skip


def test_the_best_come_first_and_the_lower_of_equals_before_the_higher():
    assert picks([1.0, 5.0, 3.0, 5.0, 3.0], visible=5, k=4) == [1, 3, 2, 4]


def test_a_block_that_is_not_visible_is_never_picked():
    assert picks([1.0, 2.0, 9.0], visible=2, k=1) == [1]


@pytest.mark.parametrize("visible", range(5))
def test_with_at_most_k_visible_blocks_all_are_picked_and_the_rest_is_minus_1(visible):
    picked = picks([-3.0, 0.0, -7.0, 2.0, 1.0], visible, k=4)
    assert len(picked) == 4
    assert picked.count(-1) == 4 - visible
    assert reached(picked) == list(range(visible))


def test_the_gap_is_what_parts_the_last_pick_from_the_best_block_left_out():
    assert gap([1.0, 5.0, 3.5, 2.0, 9.0], visible=4, k=2) == 1.5
    assert gap([1.0, 1.0], visible=2, k=1) == 0.0
    assert gap([1.0, 5.0], visible=2, k=2) == math.inf


@pytest.mark.parametrize("arguments, sentence", [
    (([1.0], 1, 0), "k is 0"), (([1.0], 2, 1), "2 blocks are visible"), (([[1.0]], 1, 1), "one query's scores"),
])  # fmt: skip
def test_impossible_picks_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        picks(*arguments)


def test_scores_are_those_of_scalar_loops():
    weights = indexer(rope_width=0)
    rng = np.random.default_rng(1)
    hidden, residual = rng.standard_normal((7, 6)), rng.standard_normal((7, 5))
    keys = weights.compressor.blocks(hidden)
    scores = weights.scores(hidden, residual)
    assert scores.shape == (7, 2)
    for t in range(7):
        for b in range(2):
            total = 0.0
            for h in range(3):
                query = [math.fsum(weights.q_b[4 * h + c] * residual[t]) for c in range(4)]
                weight = math.fsum(weights.weights[h] * hidden[t]) / math.sqrt(3)
                total += weight * max(math.fsum(query * keys[b]), 0.0) / math.sqrt(4)
            assert scores[t, b] == pytest.approx(total, rel=1e-12, abs=1e-13)


def test_a_head_that_disagrees_counts_for_nothing_and_one_of_negative_weight_against():
    # One head, query residual e0, key direction read off the block itself: agreement is +|k|, then -|k|, cut to 0.
    base = indexer(heads=1, q_lora=1, rope_width=0)
    hidden = np.random.default_rng(2).standard_normal((3, 6))
    key = base.compressor.blocks(hidden)[0]
    weight = hidden[2] / (hidden[2] @ hidden[2])
    square = float(key @ key)
    for sign, of_head, expected in ((1, 1, square / 2), (-1, 1, 0.0), (1, -1, -square / 2)):
        weights = replace(base, q_b=sign * key[:, np.newaxis], weights=of_head * weight[np.newaxis])
        assert weights.scores(hidden, np.ones((3, 1)))[2, 0] == pytest.approx(expected, rel=1e-12, abs=1e-15)


def test_a_query_turns_with_its_position():
    weights = indexer()
    hidden, residual = np.tile(np.random.default_rng(3).standard_normal(6), (6, 1)), np.ones((6, 5))
    scores = weights.scores(hidden, residual)
    # Same token everywhere: rows differ by the query's position alone. Block 0 has no predecessor, but all its values
    # are equal; block 1 mixes two series, so only rows are compared.
    assert np.abs(np.diff(scores[:, 0])).min() > 1e-6
    unturned = replace(weights, compressor=replace(weights.compressor, rope_width=0))
    assert np.abs(np.diff(unturned.scores(hidden, residual)[:, 0])).max() < 1e-12


def test_there_are_no_scores_before_the_first_block():
    assert indexer().scores(np.zeros((2, 6)), np.zeros((2, 5))).shape == (2, 0)


def test_weights_that_do_not_fit_are_refused():
    weights = indexer()
    with pytest.raises(ValueError, match="q_b has shape"):
        replace(weights, q_b=weights.q_b.T)
    with pytest.raises(ValueError, match="weights has shape"):
        replace(weights, weights=weights.weights.T)
