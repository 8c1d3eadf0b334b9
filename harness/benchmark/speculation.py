"""What a verify step of speculative decoding gains: every row going back by itself, and all going back together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.benchmark.tables import Row
from torch_impl.cache import Cache
from torch_impl.model import Model, ModelConfig, random_weights
from torch_impl.mtp import Speculative, greedy, prefill

# A model only as large as it takes to have all three kinds of layers: gains are counted, not timed.
SMALL = ModelConfig(
    schedule=("sliding", "csa", "hca"),
    vocab=64,
    hidden_width=32,
    intermediate=32,
    heads=2,
    d=16,
    rope_width=8,
    window=128,
    q_lora=16,
    o_groups=1,
    o_lora=16,
    index_heads=2,
    index_d=8,
    topk=16,
)


@dataclass(frozen=True)
class Effort:
    """How much to decode: at least `verifies` steps of every batch, and `samples` rows of all steps together."""

    rows: tuple[int, ...] = (1, 8, 32, 128)
    acceptances: tuple[float, ...] = (0.5, 0.7, 0.9)
    depth: int = 3
    verifies: int = 40
    samples: int = 1200

    def steps(self, rows: int) -> int:
        return max(self.verifies, self.samples // rows)


def expected(acceptance: float, depth: int, rows: int = 1) -> float:
    """Drafts that all of `rows` rows accept, on average, if each draft is right by itself: `sum_j p^(j * rows)`.

    Source: j drafts are kept iff the first j of every row are right; with one row this is per-row decoding.
    """
    return sum(acceptance ** (j * rows) for j in range(1, depth + 1))


class Coins:
    """A draft that knows what the target will choose, and is right in each token with one probability."""

    per_row_positions = True

    def __init__(self, continuations: Tensor, acceptance: float, vocab: int) -> None:
        self.continuations, self.acceptance, self.vocab = continuations, acceptance, vocab
        self.at = [0] * len(continuations)
        self.generator = torch.Generator().manual_seed(len(continuations))

    def propose(self, pending: Tensor, depth: int) -> Tensor:
        """pending [B] to drafts [B, depth]; a wrong one is the right one's neighbour."""
        ahead = torch.tensor(self.at)[:, None] + torch.arange(1, depth + 1)
        right = self.continuations.gather(1, ahead)
        wrong = torch.rand(right.shape, generator=self.generator) >= self.acceptance
        self.at = [at + depth + 1 for at in self.at]
        return ((right + wrong) % self.vocab).to(pending.device)

    def rollback_rows(self, counts: Sequence[int]) -> None:
        self.at = [at - n for at, n in zip(self.at, counts, strict=True)]

    def select(self, rows: Sequence[int]) -> None:
        self.at, self.continuations = [self.at[row] for row in rows], self.continuations[list(rows)]


def accepted_per_verify(effort: Effort, device: str) -> Iterator[Row]:
    """B9: drafts that a verify keeps per row, beside the theory of both ways of going back."""
    model = Model(SMALL, random_weights(SMALL, seed=3, dtype=torch.float64, device=device))
    for rows in effort.rows:
        steps = effort.steps(rows)
        opened = _opened(model, rows)
        continuations = _continuations(model, opened, steps * (effort.depth + 1) + effort.depth)
        for acceptance in effort.acceptances:
            per_row, cohort = (
                _accepted(model, opened, continuations, acceptance, effort.depth, steps, on)
                for on in (True, False)
            )
            theory = expected(acceptance, effort.depth), expected(acceptance, effort.depth, rows)
            yield Row(
                "B9",
                f"B={rows}, acceptance {acceptance}: accepted of {effort.depth} per verify, per row and cohort",
                None,
                "reported",
                None,
                f"{per_row:.2f} (theory {theory[0]:.2f}) and {cohort:.2f} (theory {theory[1]:.2f}); a step gains "
                f"{(1 + per_row) / (1 + cohort):.2f} times the tokens; {steps} verifies",
            )


def _opened(model: Model, rows: int) -> tuple[Cache, Tensor]:
    """Rows after prompts of unequal length, and the tokens that follow."""
    generator = torch.Generator().manual_seed(5)
    lengths = torch.randint(1, 40, (rows,), generator=generator).tolist()
    prompts = torch.randint(0, SMALL.vocab, (rows, max(lengths)), generator=generator)
    cache = model.cache(rows)
    return cache, prefill(model, cache, prompts.to(model.embed.device), lengths)


def _copy(cache: Cache) -> Cache:
    return Cache.assemble([cache.split_row(row) for row in range(cache.rows)])


def _continuations(model: Model, opened: tuple[Cache, Tensor], tokens: int) -> Tensor:
    """What each row is continued with, the pending token first: [B, tokens + 1]."""
    cache, pending = opened
    return torch.cat([pending[:, None], greedy(model, _copy(cache), pending, tokens)], dim=1).cpu()


def _accepted(
    model: Model,
    opened: tuple[Cache, Tensor],
    continuations: Tensor,
    acceptance: float,
    depth: int,
    steps: int,
    per_row_kv: bool,
) -> float:
    """Drafts kept per row and verify. Raises AssertionError if a row gains another token than greedy decoding."""
    cache, pending = opened
    draft = Coins(continuations, acceptance, SMALL.vocab)
    decoding = Speculative(model, _copy(cache), draft, pending, per_row_kv)
    kept = 0
    for _ in range(steps):
        before = list(draft.at)
        verified = decoding.step(depth)
        kept += sum(verified.kept)
        for row, (first, last) in enumerate(zip(before, draft.at, strict=True)):
            right = continuations[row, first + 1 : last + 1].tolist()
            if verified.tokens[row] != right:
                raise AssertionError(
                    f"row {row} gained {verified.tokens[row]}; greedy decoding gains {right}"
                )
    return kept / (steps * cache.rows)
