"""A whole layer in float32 whose every product has one row's shape: a row in a batch has the bytes it has alone.

The layer's slots, masks and choices are those of any batch. What they hand to the arithmetic of one query follows from
its own row, so nothing is left that could round otherwise. As in `tests/production/test_invariance.py` the machine is
asked first, in a product of its own, whether bytes or the refusal are due.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_impl.attention import Attention, under
from torch_impl.compressor import Compressor
from torch_impl.invariance import ROWS, same_bytes
from torch_impl.layer import Branch, LayerSlots, step
from torch_impl.model import ModelConfig, random_weights
from torch_impl.refusals import RowInvarianceRefused
from torch_impl.schedule import Kind

KINDS: tuple[Kind, ...] = ("sliding", "csa", "hca")
CONFIG = ModelConfig(
    schedule=KINDS, vocab=5, hidden_width=96, intermediate=8, heads=4, d=32, rope_width=8, window=8, q_lora=24,
    o_groups=2, o_lora=8, index_heads=4, index_d=16, topk=2, csa_ratio=4, hca_ratio=8,
)  # fmt: skip
MARGIN = 8


def one_by_one(act: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """act on each query alone, in memory of its own: inputs [B, T, ...] to [B, T, ...]."""
    rows, columns = inputs[0].shape[:2]
    done = [
        torch.cat(
            [act(*(x[row : row + 1, k : k + 1].clone() for x in inputs)) for k in range(columns)], dim=1
        )
        for row in range(rows)
    ]
    return torch.cat(done)


class RowInvariantIndexer:
    """Each block is scored by itself."""

    def __init__(self, indexer) -> None:
        self.indexer, self.compressor, self.topk = indexer, indexer.compressor, indexer.topk

    def scores(self, hidden: Tensor, residual: Tensor, position: Tensor, keys: Tensor) -> Tensor:
        blocks = keys[:, None].expand(-1, hidden.shape[1], -1, -1)  # [B, T, N, d]

        def each(h: Tensor, q: Tensor, p: Tensor, own: Tensor) -> Tensor:
            scored = [self.indexer.scores(h, q, p, own[0, :, n : n + 1].clone()) for n in range(own.shape[2])]
            return torch.cat(scored, dim=2)

        return one_by_one(each, hidden, residual, position, blocks)


class RowInvariant(Attention):
    """Production's attention, a query at a time, on the keys that it sees and no others."""

    def __init__(self, kind: Kind, weights: Mapping[str, Tensor]) -> None:
        super().__init__(CONFIG, kind, weights, CONFIG.o_groups)
        if self.indexer:
            self.indexer = RowInvariantIndexer(self.indexer)

    def _compressor(self, weights: Mapping[str, Tensor], prefix: str) -> Compressor:
        own = under(weights, prefix)
        return Compressor(
            own["wkv"], own["wgate"], own["bias"], own["gamma"], self.rope, self.eps, row_invariant=True
        )

    def queries(self, hidden: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        made = super().queries
        return tuple(one_by_one(lambda h, p, k=k: made(h, p)[k], hidden, position) for k in (0, 1))

    def keys(self, hidden: Tensor, position: Tensor) -> Tensor:
        return one_by_one(super().keys, hidden, position)

    def attend(self, queries: Tensor, raw: Branch, blocks: Branch | None) -> Tensor:
        branches = [raw] if blocks is None else [raw, blocks]
        read = torch.empty_like(queries)
        for row in range(queries.shape[0]):
            for k in range(queries.shape[1]):
                seen = torch.cat([branch.keys[row, branch.keep[row, k]] for branch in branches])
                # Picks come best first, or in order where all are taken: a sum needs one order.
                seen = seen[sorted(range(len(seen)), key=lambda n, keys=seen: keys[n].tolist())][None]
                alone = Branch(seen, torch.ones(1, 1, seen.shape[1], dtype=torch.bool))
                read[row, k] = super().attend(queries[row : row + 1, k : k + 1].clone(), alone, None)[0, 0]
        return read

    def output(self, read: Tensor, position: Tensor) -> Tensor:
        return one_by_one(super().output, read, position)


def layer(kind: Kind) -> RowInvariant:
    weights = random_weights(CONFIG, seed=3)
    return RowInvariant(kind, under(weights, f"layers.{KINDS.index(kind)}.attn."))


def machine_keeps_bytes() -> bool:
    """Equal rows of a product have equal bytes in all places. All true sums are 0: what is left is their rounding."""
    generator = torch.Generator().manual_seed(9)
    half = CONFIG.hidden_width // 2
    drawn = torch.randn(1 + 2 * CONFIG.d, half, generator=generator)
    twice = torch.cat([drawn, drawn], dim=1)
    twice[1:, half:] *= -1
    twice = twice[:, torch.randperm(2 * half, generator=generator)]
    row, weight = twice[0], twice[1:]
    found = list(F.linear(row.repeat(ROWS, 1), weight))
    for place in range(ROWS):
        tile = torch.randn(ROWS, 2 * half, generator=generator)
        tile[place] = row
        found.append(F.linear(tile, weight)[place])
    return all(same_bytes(one, found[0]) for one in found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_a_ragged_batch_has_the_bytes_that_it_has_alone(kind: Kind):
    if kind != "sliding" and not machine_keeps_bytes():
        with pytest.raises(RowInvarianceRefused, match="leave row_invariant off"):
            layer(kind)
        return
    math, rng = layer(kind), random.Random(kind)
    generator = torch.Generator().manual_seed(1)
    batch = LayerSlots.open(math, 4, CONFIG.window, MARGIN)
    alone = [LayerSlots.open(math, 1, CONFIG.window, MARGIN) for _ in range(4)]
    compared = 0
    for turn in range(8):
        n_new = [7, 30, 12, 1] if not turn else [rng.randint(0, 5) for _ in range(3)] + [5]
        hidden = torch.randn(4, max(n_new), CONFIG.hidden_width, generator=generator)
        together = step(math, batch, hidden, n_new)
        back = [rng.randint(0, n) if turn else 0 for n in n_new]
        for row, n in enumerate(n_new):
            if n:
                found = step(math, alone[row], hidden[row : row + 1, :n])
                assert same_bytes(together[row, :n], found[0]), (turn, row)
                compared += n
            for (_, one), (_, own) in zip(batch.named(), alone[row].named(), strict=True):
                held = [
                    slot.comp(at) if hasattr(slot, "comp") else slot.run(at)
                    for slot, at in ((one, row), (own, 0))
                ]
                assert same_bytes(*held), (turn, row)
                own.rollback(0, back[row])
        for _, slot in batch.named():
            slot.rollback_rows(back)
    assert compared > 80
