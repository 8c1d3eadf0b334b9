"""Speculative decoding of a batch: drafts are verified in one step, and each row keeps what it accepted itself.

A step appends every row's pending token and its drafts. Row i keeps the pending one and the accepted[i] drafts that
follow it as the target would have chosen them; the rest is rolled back. Where some part can hold only one length for
the whole batch, all rows go back to the least: correct, slower, and never called by the name of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from torch_impl.cache import Cache
from torch_impl.refusals import AdvanceRefused


class Target(Protocol):
    """What is asked of a model: `torch_impl.model.Model` is one."""

    masks_ragged_batches: bool

    def forward(
        self, tokens: Tensor, cache: Cache, n_new: Sequence[int] | None = None, mask: Tensor | None = None
    ) -> Tensor: ...


class Draft(Protocol):
    """Whatever proposes tokens. per_row_positions: it knows each row's own position."""

    per_row_positions: bool

    def propose(self, pending: Tensor, depth: int) -> Tensor:
        """What may follow the pending tokens [B]: int64 [B, depth]."""
        ...

    def rollback_rows(self, counts: Sequence[int]) -> None:
        """Forget the last counts[i] of the tokens that row i has been given or has proposed."""
        ...

    def select(self, rows: Sequence[int]) -> None: ...


@dataclass(frozen=True)
class PerSequence:
    """Each row goes back to what it accepted itself."""


@dataclass(frozen=True)
class Cohort:
    """All rows go back to the least that any row accepted, because of `reason`."""

    reason: str


KVAdvance = PerSequence | Cohort


@dataclass(frozen=True)
class Answer:
    """Yes, or no and why not."""

    because: str = ""

    def __bool__(self) -> bool:
        return not self.because


def cache_supports_per_sequence_advance(cache: Cache) -> Answer:
    """Can every slot carry its own length per row? If not, the first kind of slot that cannot is named."""
    for name, slot in cache.slots():
        if not getattr(slot, "per_row_state", False):
            return Answer(f"{name} ({type(slot).__name__}) holds one length for all rows")
    return Answer()


def target_masks_ragged_batches(target: Target) -> Answer:
    """Does the model mask each row at its own position?"""
    if getattr(target, "masks_ragged_batches", False):
        return Answer()
    return Answer(f"{type(target).__name__} masks all rows at one position")


def draft_carries_positions(draft: Draft) -> Answer:
    """Does the draft chain continue each row from its own position?"""
    if getattr(draft, "per_row_positions", False):
        return Answer()
    return Answer(f"{type(draft).__name__} drafts for all rows at one position")


def kv_advance(target: Target, cache: Cache, draft: Draft, per_row_kv: bool = True) -> KVAdvance:
    """How rows may go back after a verify: each by itself, or as a cohort with the first reason why not."""
    if not per_row_kv:
        return Cohort("per_row_kv is off")
    answers = (
        cache_supports_per_sequence_advance(cache),
        target_masks_ragged_batches(target),
        draft_carries_positions(draft),
    )
    return next((Cohort(answer.because) for answer in answers if not answer), PerSequence())


@dataclass(frozen=True)
class Verified:
    """One verify of B rows.

    advance  : how the rows went back
    accepted : how many drafts of each row the target would have chosen itself
    kept     : how many of them each row kept; equal to accepted for PerSequence, the least of them for a Cohort
    tokens   : what each row has gained, kept[i] + 1 tokens; the last one is now pending
    back     : how many tokens each row was rolled back
    """

    advance: KVAdvance
    accepted: list[int]
    kept: list[int]
    tokens: list[list[int]]
    back: list[int]

    @property
    def per_row(self) -> bool:
        """Whether every row kept what it accepted because it may, not because all happened to accept as many."""
        return isinstance(self.advance, PerSequence)


def verify(
    target: Target,
    cache: Cache,
    pending: Tensor,
    drafts: Tensor,
    advance: KVAdvance,
    depths: Sequence[int] | None = None,
) -> Verified:
    """Append each row's pending token [B] and its first depths[i] drafts [B, depth] (all, if None); keep what is right.

    Raises AdvanceRefused, before anything is touched, for more drafts than the cache can go back.
    """
    depth = drafts.shape[1]
    counts = [depth] * len(pending) if depths is None else list(depths)
    check_depth(cache, depth)
    step = torch.cat([pending[:, None], drafts], dim=1)  # [B, depth + 1]
    logits = target.forward(step, cache, [n + 1 for n in counts])  # [B, depth + 1, V]
    choice = logits.argmax(dim=-1)  # [B, depth + 1]; choice k follows token k
    accepted = _agreement(choice, drafts, counts)
    kept = accepted if isinstance(advance, PerSequence) else [min(accepted)] * len(accepted)
    back = [n - k for n, k in zip(counts, kept, strict=True)]
    cache.rollback_rows(back)
    tokens = [row[: k + 1] for row, k in zip(choice.tolist(), kept, strict=True)]
    return Verified(advance, accepted, kept, tokens, back)


def check_depth(cache: Cache, depth: int) -> None:
    """Raise AdvanceRefused for more drafts than the cache can go back."""
    if depth > cache.margin:
        raise AdvanceRefused(
            f"{depth} drafts are to be verified, of which all may be wrong; there should be {cache.margin} at most, the "
            "cache's margin; draft less, or open the cache with a larger margin",
            "advance-beyond-margin",
        )


def _agreement(choice: Tensor, drafts: Tensor, counts: Sequence[int]) -> list[int]:
    """How many of its drafts each row's target chose itself, counted up to the first that it did not."""
    real = (
        torch.arange(drafts.shape[1], device=drafts.device)
        < torch.tensor(counts, device=drafts.device)[:, None]
    )
    agrees = (choice[:, :-1] == drafts) & real
    return agrees.int().cumprod(dim=1).sum(dim=1).tolist()


class DraftChain:
    """A model that drafts token by token, each row from its own position in a cache of its own."""

    def __init__(self, model: Target, cache: Cache) -> None:
        self.model, self.cache = model, cache

    @property
    def per_row_positions(self) -> bool:
        return bool(
            cache_supports_per_sequence_advance(self.cache) and target_masks_ragged_batches(self.model)
        )

    def propose(self, pending: Tensor, depth: int) -> Tensor:
        """Greedy drafts [B, depth]. The last one is fed as well: the chain then stands where the target will."""
        drafts = greedy(self.model, self.cache, pending, depth)
        last = drafts[:, -1:] if depth else pending[:, None]
        self.model.forward(last, self.cache)
        return drafts

    def rollback_rows(self, counts: Sequence[int]) -> None:
        """Forget the drafts that were not kept. Raises RollbackRefused."""
        self.cache.rollback_rows(counts)

    def select(self, rows: Sequence[int]) -> None:
        """Keep exactly `rows`, in that order."""
        self.cache.select(rows)


def greedy(model: Target, cache: Cache, pending: Tensor, steps: int) -> Tensor:
    """The tokens that follow pending [B], each the likeliest, int64 [B, steps]; the last one is not consumed."""
    tokens = [pending]
    for _ in range(steps):
        logits = model.forward(tokens[-1][:, None], cache)  # [B, 1, V]
        tokens.append(logits[:, 0].argmax(dim=-1))
    return torch.stack(tokens, dim=1)[:, 1:]


def prefill(model: Target, cache: Cache, prompts: Tensor, n_new: Sequence[int]) -> Tensor:
    """Feed right-padded prompts [B, T] of n_new[i] tokens each, at least one; the tokens that follow, int64 [B]."""
    logits = model.forward(prompts, cache, n_new)  # [B, T, V]
    last = torch.tensor(n_new, device=logits.device) - 1
    return logits[torch.arange(len(last), device=logits.device), last].argmax(dim=-1)


class Speculative:
    """A batch in speculative decoding: a target, a draft, the cache, and each row's pending token [B]."""

    def __init__(
        self, target: Target, cache: Cache, draft: Draft, pending: Tensor, per_row_kv: bool = True
    ) -> None:
        self.target, self.cache, self.draft, self.pending = target, cache, draft, pending
        self.per_row_kv = per_row_kv

    def step(self, depth: int) -> Verified:
        """Draft, verify, go back: every row gains at least one token. Raises AdvanceRefused before anything moves."""
        check_depth(self.cache, depth)
        advance = kv_advance(self.target, self.cache, self.draft, self.per_row_kv)
        drafts = self.draft.propose(self.pending, depth)
        verified = verify(self.target, self.cache, self.pending, drafts, advance)
        self.draft.rollback_rows(verified.back)
        self.pending = self.pending.new_tensor([row[-1] for row in verified.tokens])
        return verified

    def select(self, rows: Sequence[int]) -> None:
        """Keep exactly `rows`, in that order, everywhere. Raises SelectRefused."""
        self.cache.select(rows)
        self.draft.select(rows)
        self.pending = self.pending[list(rows)]
