"""Small models twice, production's and the reference's, from the same weights; and rows that live through a schedule."""

from __future__ import annotations

import random

import numpy as np
import torch

from reference_impl import model as reference
from torch_impl.cache import Cache
from torch_impl.model import Model, ModelConfig

# Windows, ratios and picks are small, so that short histories leave windows, complete blocks and have to choose.
SIZES = {
    "schedule": ("sliding", "csa", "hca", "csa"),
    "vocab": 11,
    "hidden_width": 24,
    "intermediate": 20,
    "heads": 4,
    "d": 16,
    "rope_width": 8,
    "window": 6,
    "q_lora": 12,
    "o_groups": 2,
    "o_lora": 6,
    "index_heads": 3,
    "index_d": 8,
    "topk": 3,
    "csa_ratio": 4,
    "hca_ratio": 8,
}
MARGIN = 5


def models(seed: int, dtype: torch.dtype = torch.float64, **sizes) -> tuple[Model, reference.Model]:
    config = reference.ModelConfig(**SIZES | sizes)
    weights = reference.random_weights(np.random.default_rng(seed), config)
    tensors = {name: torch.from_numpy(weight).to(dtype) for name, weight in weights.items()}
    return Model(ModelConfig(**SIZES | sizes), tensors), reference.Model(config, weights)


def padded(rows: list[list[int]], filler: int = -1) -> torch.Tensor:
    """Right-padded; the filler is no token, so that whoever reads it fails."""
    width = max(len(row) for row in rows)
    return torch.tensor([row + [filler] * (width - len(row)) for row in rows], dtype=torch.int64)


def poison(cache: Cache, value: float = torch.nan) -> None:
    """Overwrite all memory that no row promises."""
    for _, slot in cache.slots():
        slot.fill_dead(value)


def bytes_of(cache: Cache) -> list[object]:
    """Everything a cache holds, dead memory included."""
    held = []
    for name, slot in cache.slots():
        stored = {key: bytes(t.reshape(-1).view(torch.uint8).tolist()) for key, t in slot.storage().items()}
        held.append((name, list(slot.tokens), list(slot.base), stored))
    return held


class Rows:
    """Sequences in a cache, each beside the list of its own tokens."""

    def __init__(self, model: Model, count: int, seed: int) -> None:
        self.model, self.rng = model, random.Random(seed)
        self.cache = model.cache(count, MARGIN)
        self.sequences: list[list[int]] = [[] for _ in range(count)]

    def step(self, n_new: list[int]) -> list[torch.Tensor]:
        """New random tokens for every row; each row's own logits [n_new[i], V]."""
        new = [[self.rng.randrange(self.model.config.vocab) for _ in range(n)] for n in n_new]
        poison(self.cache)
        logits = self.model.forward(padded(new), self.cache, n_new)
        self.sequences = [old + own for old, own in zip(self.sequences, new, strict=True)]
        return [logits[row, :n] for row, n in enumerate(n_new)]

    def rollback(self, counts: list[int]) -> None:
        self.cache.rollback_rows(counts)
        self.sequences = [s[: len(s) - n] for s, n in zip(self.sequences, counts, strict=True)]

    def select(self, rows: list[int]) -> None:
        self.cache.select(rows)
        self.sequences = [list(self.sequences[row]) for row in rows]

    def join(self, other: Rows) -> None:
        self.cache = Cache.assemble([self.cache, other.cache])
        self.sequences += other.sequences

    def leave(self, row: int) -> Cache:
        alone = self.cache.split_row(row)
        self.select([i for i in range(len(self.sequences)) if i != row])
        return alone


def near(ours: torch.Tensor, theirs, within: float = 1e-9) -> bool:
    """Whether two arrays are equal to `within` of the largest value."""
    theirs = torch.as_tensor(theirs, dtype=torch.float64)
    return bool((ours.double() - theirs).abs().max() <= within * theirs.abs().max())
