"""The choice of blocks, against sorting in plain Python."""

from __future__ import annotations

import random

import pytest
import torch

import torch_impl.indexer
from torch_impl.indexer import UNREACHED, Indexer, pick
from torch_impl.rope import Rope


def picked(scores: list[float], visible: list[bool], k: int) -> list[int]:
    blocks = sorted((b for b, seen in enumerate(visible) if seen), key=lambda b: (-scores[b], b))[:k]
    return blocks + [UNREACHED] * (k - len(blocks))


@pytest.mark.parametrize("k", [1, 3, 8, 20])
def test_a_query_picks_its_best_visible_blocks_the_lower_one_of_equals(k):
    rng = random.Random(k)
    rows, columns, blocks = 4, 3, 12
    # Few distinct scores: most picks are decided between equals.
    scores = [
        [[rng.choice([0.0, 0.0, 1.0, -1.0, 2.5]) for _ in range(blocks)] for _ in range(columns)]
        for _ in range(rows)
    ]
    visible = [[[rng.random() < 0.6 for _ in range(blocks)] for _ in range(columns)] for _ in range(rows)]
    picks = pick(torch.tensor(scores), torch.tensor(visible), k)
    assert picks.shape == (rows, columns, k)
    for row in range(rows):
        for t in range(columns):
            assert picks[row, t].tolist() == picked(scores[row][t], visible[row][t], k)


def test_whatever_stale_blocks_score_they_are_never_picked():
    scores = torch.tensor([[[1.0, torch.inf, torch.nan, 0.5]]])
    visible = torch.tensor([[[True, False, False, True]]])
    assert pick(scores, visible, 3).tolist() == [[[0, 3, UNREACHED]]]


def test_a_query_that_sees_nothing_picks_nothing():
    assert pick(torch.zeros(1, 1, 4), torch.zeros(1, 1, 4, dtype=torch.bool), 2).tolist() == [[[-1, -1]]]


def test_many_equal_scores_are_picked_in_order():
    """relu makes many scores exactly 0; an unstable choice among them would differ from batch to batch."""
    picks = pick(torch.zeros(1, 1, 5000), torch.ones(1, 1, 5000, dtype=torch.bool), 512)
    assert picks.flatten().tolist() == list(range(512))


def test_scores_in_chunks_of_rows_are_the_scores_of_all_rows(monkeypatch: pytest.MonkeyPatch):
    generator = torch.Generator().manual_seed(2)
    drawn = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
    weights = {"q_b": drawn(12, 5), "weights": drawn(3, 6)}
    indexer = Indexer(weights, None, Rope(4, 10000.0), topk=2)  # type: ignore[arg-type]
    hidden, residual, keys = drawn(7, 2, 6), drawn(7, 2, 5), drawn(7, 9, 4)
    position = torch.arange(14).view(7, 2)
    whole = indexer.scores(hidden, residual, position, keys)
    monkeypatch.setattr(torch_impl.indexer, "_AGREEMENT_ELEMENTS", 2 * 9 * 3 * 2)  # two rows at a time
    assert (indexer.scores(hidden, residual, position, keys) - whole).abs().max() < 1e-12
