"""Windowed keys of a batch: every row keeps, forgets and refuses what a slot of its own would."""

from __future__ import annotations

import random

import pytest
import torch

from torch_impl.kv_cache import KVSlot
from torch_impl.kv_ring import KVRing
from torch_impl.refusals import InvariantBroken, Refusal, SelectRefused

WINDOW, MARGIN, POISON = 8, 3, -7


class Pair:
    """A row of a ring and the single-sequence slot that goes through the same."""

    def __init__(self, sequence: int) -> None:
        self.slot = KVSlot(WINDOW, MARGIN, 1, torch.int64)
        self.next_id = 1 + sequence * 10_000

    def new(self, n: int) -> torch.Tensor:
        """n new tokens, never seen before: a rolled-back one and its successor differ."""
        ids = torch.arange(self.next_id, self.next_id + n).view(n, 1)
        self.next_id += n
        return ids


def advance(ring: KVRing, pairs: list[Pair], n_new: list[int]) -> None:
    kv = torch.full((len(pairs), max(n_new), 1), POISON)
    for row, (pair, n) in enumerate(zip(pairs, n_new, strict=True)):
        kv[row, :n] = ids = pair.new(n)
        if n:
            pair.slot.append(ids)
    ring.advance(kv, n_new)


def check(ring: KVRing, pairs: list[Pair]) -> None:
    keys, lead = ring.history()
    for row, pair in enumerate(pairs):
        live = pair.slot.live()
        assert ring.tokens[row] == pair.slot.tokens
        assert torch.equal(ring.run(row), live)
        seen = live[max(len(live) - WINDOW + 1, 0) :]
        assert torch.equal(keys[row, lead[row] :], seen)
        assert not keys[row, : lead[row]].any()
        for n in range(-1, WINDOW + MARGIN + 4):
            ours, theirs = ring.rollback_refusal(row, n), pair.slot.rollback_refusal(n)
            assert (ours and ours.kind) == (theirs and theirs.kind)
    assert lead.min() == 0


def copied(pair: Pair, sequence: int) -> Pair:
    """The same sequence twice; their futures differ."""
    other = Pair(sequence)
    other.slot.columns, other.slot.tokens = pair.slot.columns.clone(), pair.slot.tokens
    return other


@pytest.mark.parametrize("seed", range(12))
def test_over_random_histories_every_row_is_its_own_slot(seed):
    rng = random.Random(seed)
    count = rng.randint(1, 5)
    ring, pairs, sequence = (
        KVRing(WINDOW, MARGIN, count, 1, dtype=torch.int64),
        [Pair(i) for i in range(count)],
        count,
    )
    for _ in range(60):
        do = rng.choice(["advance"] * 4 + ["rollback"] * 2 + ["select", "split", "assemble"])
        if do == "advance":
            advance(ring, pairs, [rng.choice([0, 1, 1, 2, 4, rng.randint(0, 30)]) for _ in pairs])
        elif do == "rollback":
            depths = [rng.randint(0, MARGIN + 2) for _ in pairs]
            allowed = all(p.slot.rollback_refusal(n) is None for p, n in zip(pairs, depths, strict=True))
            if allowed:
                ring.rollback_rows(depths)
                for pair, n in zip(pairs, depths, strict=True):
                    pair.slot.rollback(n)
            else:
                with pytest.raises(Refusal):
                    ring.rollback_rows(depths)
        elif do == "select":
            rows = [rng.randrange(len(pairs)) for _ in range(rng.randint(1, 5))]
            ring.select(rows)
            pairs = [copied(pairs[row], sequence + i) for i, row in enumerate(rows)]
            sequence += len(rows)
        elif do == "split":
            parts = [ring.split_row(row) for row in range(len(pairs))]
            order = rng.sample(range(len(pairs)), len(pairs))
            ring, pairs = KVRing.assemble([parts[row] for row in order]), [pairs[row] for row in order]
        else:
            pair = Pair(sequence)
            sequence += 1
            single = KVRing(WINDOW, MARGIN, 1, 1, dtype=torch.int64)
            advance(single, [pair], [rng.randint(1, 40)])
            ring, pairs = KVRing.assemble([single, ring]), [pair, *pairs]
        ring.fill_dead(POISON)
        check(ring, pairs)


def test_a_row_without_new_tokens_is_not_touched():
    ring = KVRing(WINDOW, MARGIN, 2, 1, dtype=torch.int64)
    ring.advance(torch.arange(1, 41).view(2, 20, 1))
    ring.rollback(0, 2)
    ring.fill_dead(POISON)
    before = ring.storage()["ring"][0].clone(), ring.tokens[0], ring.base[0]
    ring.advance(torch.full((2, 5, 1), 99), [0, 5])
    assert torch.equal(ring.storage()["ring"][0], before[0])
    assert (ring.tokens[0], ring.base[0]) == before[1:]


def test_a_step_writes_only_what_is_kept():
    """A prompt longer than the ring leaves its last window - 1 + margin tokens, each in its own slot."""
    ring = KVRing(WINDOW, MARGIN, 1, 1, dtype=torch.int64)
    ring.advance(torch.arange(1, 101).view(1, 100, 1))
    assert ring.run(0).flatten().tolist() == list(range(100 - WINDOW + 1 - MARGIN + 1, 101))


def test_a_split_row_shares_no_memory_with_its_batch():
    ring = KVRing(WINDOW, MARGIN, 2, 1, dtype=torch.int64)
    ring.advance(torch.arange(1, 13).view(2, 6, 1))
    alone = ring.split_row(1)
    ring.storage()["ring"].fill_(POISON)
    assert alone.run(0).flatten().tolist() == list(range(7, 13))


def test_with_per_row_state_off_equal_rows_hold_the_same_bytes():
    rings = [KVRing(WINDOW, MARGIN, 3, 1, dtype=torch.int64, per_row_state=on) for on in (True, False)]
    for ring in rings:
        ring.advance(torch.arange(1, 61).view(3, 20, 1))
        ring.rollback_rows([2, 2, 2])
        ring.advance(torch.arange(61, 67).view(3, 2, 1))
    on, off = rings
    assert torch.equal(on.storage()["ring"], off.storage()["ring"])
    assert (on.tokens, on.base) == (off.tokens, off.base)


@pytest.mark.parametrize("rows", [[-1], [0, 2]])
def test_a_row_is_never_counted_from_the_end(rows):
    ring = KVRing(WINDOW, MARGIN, 2, 1, dtype=torch.int64)
    for act in (ring.select, lambda rows: ring.split_row(rows[-1]), lambda rows: ring.rollback(rows[-1], 0)):
        with pytest.raises(SelectRefused):
            act(rows)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("tokens", [3, 4, 5], "tokens has 3 rows"),
        ("base", [5, 0], "row 0: base 5"),
        ("tokens", [40, 4], "row 0: keeps tokens 0..39"),
        ("base", [0, 4], "row 1: base 4 lies above 0"),
    ],
)
def test_counts_that_contradict_the_storage_are_an_invariant_broken(name, value, says):
    ring = KVRing(WINDOW, MARGIN, 2, 1, dtype=torch.int64)
    ring.advance(torch.arange(1, 9).view(2, 4, 1))
    setattr(ring, name, value)
    with pytest.raises(InvariantBroken, match=says):
        ring.check_invariants()


@pytest.mark.parametrize("settings", [(0, 1, 1), (4, -1, 1), (4, 1, 0)])
def test_settings_of_no_layer_are_value_errors(settings):
    with pytest.raises(ValueError, match="should"):
        KVRing(*settings, 1, dtype=torch.int64)
