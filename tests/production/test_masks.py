"""Masks of ragged batches against closed forms in plain Python, one query and one column at a time."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch

from torch_impl import masks
from torch_impl.kv_ring import KVRing
from torch_impl.masks import Positions
from torch_impl.refusals import MaskRefused

WINDOW = 8


def seen_raw(start: int, n_new: int, k: int, window: int = WINDOW) -> set[int]:
    """The absolute tokens that query k of a row sees, itself included."""
    t = start + k
    return {j for j in range(t + 1) if t - window < j} if k < n_new else set()


def raw_of(starts: list[int], n_new: list[int], columns: int) -> tuple[torch.Tensor, int]:
    """The raw mask of rows that have consumed `starts` tokens one by one, and how wide their history is."""
    ring = KVRing(WINDOW, 3, len(starts), 1, dtype=torch.int64)
    ring.advance(torch.zeros(len(starts), max([*starts, 1]), 1, dtype=torch.int64), starts)
    keys, lead = ring.history()
    positions = Positions.of(starts, n_new, columns)
    return masks.raw(positions, lead, keys.shape[1], WINDOW), keys.shape[1]


@pytest.mark.parametrize(
    ("starts", "n_new"),
    [
        ([0], [1]),
        ([5], [4]),
        ([0, 1, 7, 8, 9, 300], [1, 1, 1, 1, 1, 1]),
        ([1000, 5000], [1, 1]),
        ([0, 3, 6, 7, 40], [5, 1, 0, 4, 12]),
        ([0, 0], [20, 13]),
    ],
)
def test_the_raw_branch_is_the_window_of_each_rows_own_tokens(starts, n_new):
    columns = max(n_new)
    keep, history = raw_of(starts, n_new, columns)
    for row, (start, n) in enumerate(zip(starts, n_new, strict=True)):
        for k in range(columns):
            # Column c is the token that lies history - c before the row's start.
            seen = {start - history + c for c in keep[row, k].nonzero().flatten().tolist()}
            assert seen == seen_raw(start, n, k), (row, k)


@pytest.mark.parametrize("ratio", [4, 8, 128])
def test_the_compressed_branch_ends_at_each_rows_own_last_block(ratio):
    starts = [0, 1, ratio - 2, ratio - 1, ratio, 3 * ratio - 1, 1000]
    n_new = [2, 5, 1, 5, 0, 3, 4]
    keep = masks.compressed(Positions.of(starts, n_new, 5), 260, ratio)
    for row, k in itertools.product(range(len(starts)), range(5)):
        # A block is seen once its last token is the query's own or lies before it.
        complete = [b for b in range(260) if (b + 1) * ratio - 1 <= starts[row] + k]
        assert keep[row, k].nonzero().flatten().tolist() == (complete if k < n_new[row] else [])


def test_the_query_that_completes_a_block_sees_it_and_the_one_before_does_not():
    keep = masks.compressed(Positions.of([2], None, 2), 1, 4)
    assert keep.tolist() == [[[False], [True]]]


def test_a_row_in_a_batch_sees_what_it_sees_alone():
    rng = random.Random(5)
    for _ in range(40):
        rows, columns = rng.randint(2, 6), rng.randint(1, 9)
        starts = [rng.choice([0, rng.randint(0, 12), rng.randint(0, 400)]) for _ in range(rows)]
        n_new = [rng.randint(0, columns) for _ in range(rows)]
        keep, history = raw_of(starts, n_new, columns)
        blocks = masks.compressed(Positions.of(starts, n_new, columns), 100, 4)
        for row in range(rows):
            alone, own = raw_of(starts[row : row + 1], n_new[row : row + 1], columns)
            assert not keep[row, :, : history - own].any()
            assert torch.equal(keep[row, :, history - own :], alone[0])
            one = Positions.of(starts[row : row + 1], n_new[row : row + 1], columns)
            assert torch.equal(blocks[row], masks.compressed(one, 100, 4)[0])


def test_full_windows_at_unequal_positions_have_no_dead_column():
    """The lead comes from the slots, not from the distance between positions."""
    keep, history = raw_of([1000, 5000], [1, 1], 1)
    assert history == WINDOW - 1
    assert keep.all()


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_a_callers_mask_takes_away_and_never_adds(rank):
    generator = torch.Generator().manual_seed(rank)
    keep = torch.rand(3, 5, 11, generator=generator) < 0.5
    shape = {2: (5, 11), 3: (3, 5, 11), 4: (3, 1, 5, 11)}[rank]
    mask = torch.rand(shape, generator=generator) < 0.5
    composed = masks.compose(keep, mask)
    for row, k, c in itertools.product(range(3), range(5), range(11)):
        at = {2: (k, c), 3: (row, k, c), 4: (row, 0, k, c)}[rank]
        assert bool(composed[row, k, c]) == (bool(keep[row, k, c]) and bool(mask[at]))


def test_a_mask_of_raw_columns_leaves_blocks_as_they_are():
    raw, blocks = torch.ones(2, 3, 7, dtype=torch.bool), torch.ones(2, 3, 4, dtype=torch.bool)
    near, far = masks.compose_branches(raw, blocks, torch.zeros(3, 7, dtype=torch.bool))
    assert not near.any()
    assert far.all()


def test_a_mask_of_both_branches_is_cut_between_them():
    raw, blocks = torch.ones(2, 3, 7, dtype=torch.bool), torch.ones(2, 3, 4, dtype=torch.bool)
    mask = torch.rand(2, 3, 11, generator=torch.Generator().manual_seed(1)) < 0.5
    near, far = masks.compose_branches(raw, blocks, mask)
    assert torch.equal(torch.cat([near, far], dim=2), mask)


@pytest.mark.parametrize("shape", [(), (7,), (2, 2, 3, 7), (1, 2, 1, 3, 7)])
def test_a_mask_of_no_known_rank_is_refused(shape):
    keep = torch.ones(2, 3, 7, dtype=torch.bool)
    with pytest.raises(MaskRefused) as refused:
        masks.compose_branches(keep, keep[..., :0], torch.ones(shape, dtype=torch.bool))
    assert refused.value.kind == "mask-rank"


@pytest.mark.parametrize("shape", [(1, 3, 7), (1, 1, 3, 7), (3, 3, 7)])
def test_a_mask_that_was_made_for_another_batch_is_never_broadcast(shape):
    with pytest.raises(MaskRefused) as refused:
        masks.compose(torch.ones(2, 3, 7, dtype=torch.bool), torch.ones(shape, dtype=torch.bool))
    assert refused.value.kind == "mask-batch"


@pytest.mark.parametrize(
    ("start", "n_new"), [([1, 2], [1]), ([1, -1], [1, 1]), ([1, 2], [1, 4]), ([1, 2], [-1, 1])]
)
def test_counts_that_do_not_fit_the_batch_are_refused(start, n_new):
    with pytest.raises(MaskRefused) as refused:
        Positions.of(start, n_new, 3)
    assert refused.value.kind == "mask-positions"


@pytest.mark.parametrize("lead", [[0], [0, 8], [-1, 0]])
def test_a_lead_that_is_not_one_of_each_row_is_refused(lead):
    with pytest.raises(MaskRefused) as refused:
        masks.raw(Positions.of([4, 9], None, 1), np.array(lead), 7, WINDOW)
    assert refused.value.kind == "mask-lead"
