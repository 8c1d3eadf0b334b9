"""Speculative decoding: the tokens of plain greedy decoding, however rows go back, and an honest word for how they do."""

from __future__ import annotations

import pytest
import torch
from small_models import MARGIN, bytes_of, models, near, padded

from torch_impl.cache import Cache
from torch_impl.kv_cache import KVSlot
from torch_impl.mtp import (
    Cohort,
    DraftChain,
    PerSequence,
    Speculative,
    cache_supports_per_sequence_advance,
    draft_carries_positions,
    greedy,
    kv_advance,
    prefill,
    target_masks_ragged_batches,
    verify,
)
from torch_impl.refusals import AdvanceRefused

PROMPTS = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [3, 1, 4, 1], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4], [5]]
STEPS = 40


def opened(model, prompts=PROMPTS, per_row_state: bool = True) -> tuple[Cache, torch.Tensor]:
    """A cache that has consumed the prompts, and the tokens that follow."""
    cache = model.cache(len(prompts), MARGIN, per_row_state)
    return cache, prefill(model, cache, padded(prompts), [len(p) for p in prompts])


def plain(model, prompts=PROMPTS, steps: int = STEPS) -> list[list[int]]:
    """What each prompt is continued with, alone and token by token."""
    found = []
    for prompt in prompts:
        cache, pending = opened(model, [prompt])
        found.append([int(pending), *greedy(model, cache, pending, steps)[0].tolist()])
    return found


class Knowing:
    """Proposes what the target will choose, except where a fixed pattern makes it stumble: rows accept unequally."""

    def __init__(self, continuations: list[list[int]], per_row_positions: bool = True) -> None:
        self.continuations, self.at = continuations, [0] * len(continuations)
        self.per_row_positions = per_row_positions
        self.turn = 0

    def propose(self, pending: torch.Tensor, depth: int) -> torch.Tensor:
        self.turn += 1
        drafts = []
        for row, (at, tokens) in enumerate(zip(self.at, self.continuations, strict=True)):
            assert int(pending[row]) == tokens[at]
            own = tokens[at + 1 : at + 1 + depth]
            wrong = (self.turn * (row + 2) + row) % (depth + 2)
            drafts.append([(token + (k == wrong)) % 11 for k, token in enumerate(own)])
        self.at = [at + depth + 1 for at in self.at]
        return torch.tensor(drafts)

    def rollback_rows(self, counts) -> None:
        self.at = [at - n for at, n in zip(self.at, counts, strict=True)]

    def select(self, rows) -> None:
        self.continuations, self.at = (
            [self.continuations[row] for row in rows],
            [self.at[row] for row in rows],
        )


@pytest.mark.parametrize("per_row_kv", [True, False])
@pytest.mark.parametrize("depth", [1, 3, MARGIN])
def test_rows_gain_the_tokens_of_plain_greedy_decoding_however_they_go_back(per_row_kv, depth):
    model, _ = models(7)
    right = plain(model)
    cache, pending = opened(model)
    decoding = Speculative(model, cache, Knowing(right), pending, per_row_kv)
    gained = [[int(token)] for token in pending]
    unequal = False
    while max(map(len, gained)) + depth < STEPS:
        verified = decoding.step(depth)
        unequal |= len(set(verified.accepted)) > 1
        for row, tokens in zip(gained, verified.tokens, strict=True):
            row += tokens
        assert cache.tokens == [len(p) + len(own) - 1 for p, own in zip(PROMPTS, gained, strict=True)]
    assert unequal
    assert gained == [own[: len(mine)] for own, mine in zip(right, gained, strict=True)]


def test_the_reference_continues_a_row_with_the_same_tokens():
    model, oracle = models(7)
    assert plain(model, PROMPTS[:1], 12)[0] == oracle.greedy(PROMPTS[0], 13)


@pytest.mark.parametrize("per_row_kv", [True, False])
def test_a_chain_of_another_model_drafts_and_nothing_but_the_speed_depends_on_it(per_row_kv):
    target, _ = models(7)
    right = plain(target)
    drafter, _ = models(8, schedule=("csa", "hca"))
    cache, pending = opened(target)
    chain = DraftChain(drafter, opened(drafter)[0])
    decoding, gained = Speculative(target, cache, chain, pending, per_row_kv), [[int(t)] for t in pending]
    for _ in range(8):
        for row, tokens in zip(gained, decoding.step(3).tokens, strict=True):
            row += tokens
        assert chain.cache.tokens == cache.tokens
    assert gained == [own[: len(mine)] for own, mine in zip(right, gained, strict=True)]


def test_a_chain_of_the_target_itself_is_always_right():
    model, _ = models(7)
    cache, pending = opened(model)
    decoding = Speculative(model, cache, DraftChain(model, opened(model)[0]), pending)
    for _ in range(4):
        verified = decoding.step(3)
        assert verified.accepted == verified.kept == [3] * len(PROMPTS)
        assert verified.back == [0] * len(PROMPTS)


def test_a_step_without_drafts_is_a_greedy_step_for_target_and_chain():
    model, _ = models(7)
    right = plain(model, steps=4)
    cache, pending = opened(model)
    chain = DraftChain(model, opened(model)[0])
    decoding = Speculative(model, cache, chain, pending)
    for at, depth in ((1, 0), (2, 1), (4, 0)):
        assert decoding.step(depth).tokens == [own[at : at + depth + 1] for own in right]
        assert chain.cache.tokens == cache.tokens


def test_each_row_keeps_its_own_and_a_cohort_keeps_the_least():
    model, _ = models(7)
    right = plain(model)
    drafts = torch.tensor([own[1:4] for own in right])
    drafts[1, 1] = (drafts[1, 1] + 1) % 11
    drafts[2, 0] = (drafts[2, 0] + 1) % 11
    for advance, kept in ((PerSequence(), [3, 1, 0, 3]), (Cohort("asked for"), [0, 0, 0, 0])):
        cache, pending = opened(model)
        before = list(cache.tokens)
        verified = verify(model, cache, pending, drafts, advance)
        assert verified.accepted == [3, 1, 0, 3]
        assert verified.kept == kept
        assert verified.per_row == isinstance(advance, PerSequence)
        assert cache.tokens == [t + 1 + k for t, k in zip(before, kept, strict=True)]
        assert verified.tokens == [own[1 : k + 2] for own, k in zip(right, kept, strict=True)]


def test_a_cohort_in_which_all_accept_as_many_is_still_no_success_of_the_per_row_path():
    model, _ = models(7)
    right = plain(model)
    cache, pending = opened(model)
    drafts = torch.tensor([own[1:4] for own in right])
    verified = verify(model, cache, pending, drafts, Cohort("asked for"))
    assert verified.kept == verified.accepted == [3] * 4
    assert not verified.per_row


def test_a_row_without_drafts_takes_one_token_beside_rows_with_drafts():
    model, _ = models(7)
    right = plain(model)
    cache, pending = opened(model)
    before = list(cache.tokens)
    # The filler is what row 1 would accept, if anybody counted it.
    drafts = torch.tensor([own[1:4] for own in right])
    verified = verify(model, cache, pending, drafts, PerSequence(), depths=[3, 0, 2, 3])
    assert verified.accepted == [3, 0, 2, 3]
    assert verified.back == [0, 0, 0, 0]
    assert cache.tokens == [t + 1 + k for t, k in zip(before, (3, 0, 2, 3), strict=True)]


def test_rows_leave_and_change_places_in_mid_decode():
    model, _ = models(7)
    right = plain(model)
    cache, pending = opened(model)
    decoding = Speculative(model, cache, Knowing(right), pending)
    at = [len(tokens) for tokens in decoding.step(3).tokens]
    decoding.select([3, 0])
    verified = decoding.step(3)
    for row, tokens in zip((3, 0), verified.tokens, strict=True):
        assert tokens == right[row][at[row] + 1 : at[row] + 1 + len(tokens)]


def test_what_was_rolled_back_leaves_no_trace_in_the_logits():
    model, oracle = models(7)
    right = plain(model)
    cache, pending = opened(model)
    decoding = Speculative(model, cache, Knowing(right), pending)
    at = [1] * 4
    for _ in range(5):
        at = [n + len(tokens) for n, tokens in zip(at, decoding.step(3).tokens, strict=True)]
    logits = model.forward(decoding.pending[:, None], cache)
    for row, prompt in enumerate(PROMPTS):
        assert near(logits[row], oracle.logits(prompt + right[row][: at[row]])[-1:])


class TestDecision:
    """kv_advance: who must say yes, and whose no is told."""

    def setup_method(self) -> None:
        self.model, _ = models(7)
        self.cache, self.pending = opened(self.model)
        self.draft = Knowing(plain(self.model, steps=1))

    def test_all_yes_is_per_sequence(self) -> None:
        assert kv_advance(self.model, self.cache, self.draft) == PerSequence()

    def test_a_flag_that_is_off_is_a_cohort(self) -> None:
        assert kv_advance(self.model, self.cache, self.draft, per_row_kv=False) == Cohort("per_row_kv is off")

    def test_the_first_slot_with_one_length_for_all_rows_is_named(self) -> None:
        self.cache.layers[1].indexer.per_row_state = False
        self.cache.layers[2].compressor.per_row_state = False
        answer = cache_supports_per_sequence_advance(self.cache)
        assert answer.because == "layers.2.compressor (XsRolling) holds one length for all rows"
        assert kv_advance(self.model, self.cache, self.draft) == Cohort(answer.because)

    def test_a_slot_of_another_kind_is_named(self) -> None:
        self.cache.layers[3].kv = KVSlot(6, MARGIN, 16, torch.float64)
        answer = cache_supports_per_sequence_advance(self.cache)
        assert answer.because == "layers.3.kv (KVSlot) holds one length for all rows"

    def test_a_model_that_masks_all_rows_at_one_position_is_named(self) -> None:
        class Scalar:
            masks_ragged_batches = False

        for target in (Scalar(), object()):
            assert not target_masks_ragged_batches(target)
            advance = kv_advance(target, self.cache, self.draft)
            assert advance == Cohort(f"{type(target).__name__} masks all rows at one position")

    def test_a_draft_that_knows_one_position_is_named(self) -> None:
        self.draft.per_row_positions = False
        assert not draft_carries_positions(self.draft)
        advance = kv_advance(self.model, self.cache, self.draft)
        assert advance == Cohort("Knowing drafts for all rows at one position")

    def test_a_chain_knows_positions_if_its_own_cache_and_model_do(self) -> None:
        assert DraftChain(self.model, self.cache).per_row_positions
        scalar = self.model.cache(4, MARGIN, per_row_state=False)
        assert not DraftChain(self.model, scalar).per_row_positions


def test_on_a_uniform_batch_the_flag_changes_no_byte():
    """Equal rows accept as many: the old scalar cache and decision, and the per-row ones, leave the same bytes."""
    model, _ = models(7)
    prompts = [PROMPTS[0]] * 3
    right = plain(model, prompts)
    outcomes = []
    for on in (True, False):
        cache, pending = opened(model, prompts, per_row_state=on)
        draft = Knowing(right)
        draft.propose = lambda pending, depth, own=draft, ask=draft.propose: ask(pending, depth)[:1].repeat(
            3, 1
        )
        decoding, gained = Speculative(model, cache, draft, pending, per_row_kv=on), []
        for _ in range(6):
            verified = decoding.step(3)
            assert verified.per_row == on
            gained.append(verified.tokens)
        assert any(len(tokens[0]) < 4 for tokens in gained)
        outcomes.append((gained, bytes_of(cache)))
    assert outcomes[0] == outcomes[1]


def test_more_drafts_than_the_margin_are_refused_before_anything_moves():
    model, _ = models(7)
    cache, pending = opened(model)
    draft = Knowing(plain(model, steps=1))
    before = bytes_of(cache)
    with pytest.raises(AdvanceRefused) as refused:
        Speculative(model, cache, draft, pending).step(MARGIN + 1)
    assert refused.value.kind == "advance-beyond-margin"
    assert (bytes_of(cache), draft.at) == (before, [0] * 4)
