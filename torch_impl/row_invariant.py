"""Attention in which a row has the same bytes in every batch: each query by itself, on the keys that it sees.

A product's order of summation follows from its shape, and a batch shapes every product of many rows. Here no shape
follows from anything but the row: one query, and as many keys as it sees. Slots, masks and picks are those of any
batch. It is for whoever must reproduce a row exactly, and costs a call for every query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from torch_impl.attention import Attention, under
from torch_impl.compressor import Compressor
from torch_impl.indexer import Indexer
from torch_impl.layer import Branch


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


class RowInvariantIndexer(Indexer):
    """Each block is scored by itself."""

    def scores(self, hidden: Tensor, residual: Tensor, position: Tensor, keys: Tensor) -> Tensor:
        blocks = keys[:, None].expand(-1, hidden.shape[1], -1, -1)  # [B, T, N, d]
        score = super().scores

        def each(h: Tensor, q: Tensor, p: Tensor, own: Tensor) -> Tensor:
            return torch.cat(
                [score(h, q, p, own[0, :, n : n + 1].clone()) for n in range(own.shape[2])], dim=2
            )

        return one_by_one(each, hidden, residual, position, blocks)


class RowInvariantAttention(Attention):
    """Attention with row-invariant arithmetic. Raises RowInvarianceRefused where the machine cannot keep a row's bytes."""

    def _compressor(self, weights: Mapping[str, Tensor], prefix: str) -> Compressor:
        own = under(weights, prefix)
        return Compressor(
            own["wkv"], own["wgate"], own["bias"], own["gamma"], self.rope, self.eps, row_invariant=True
        )

    def _indexer(self, weights: Mapping[str, Tensor]) -> Indexer:
        return RowInvariantIndexer(
            weights, self._compressor(weights, "compressor."), self.rope, self.config.topk
        )

    def queries(self, hidden: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        made = super().queries
        queries, residual = (one_by_one(lambda h, p, k=k: made(h, p)[k], hidden, position) for k in (0, 1))
        return queries, residual

    def keys(self, hidden: Tensor, position: Tensor) -> Tensor:
        return one_by_one(super().keys, hidden, position)

    def attend(self, queries: Tensor, raw: Branch, blocks: Branch | None) -> Tensor:
        """Each query with the keys that it sees side by side, oldest first, and no others."""
        branches = [raw] if blocks is None else [raw, blocks]
        read = torch.zeros_like(queries)
        for row, k in (torch.cat([branch.keep for branch in branches], dim=2).any(dim=2)).nonzero().tolist():
            seen = torch.cat([branch.keys[row, branch.keep[row, k]] for branch in branches])[
                None
            ]  # [1, n, d]
            alone = Branch(seen, seen.new_ones(1, 1, seen.shape[1], dtype=torch.bool))
            read[row, k] = super().attend(queries[row : row + 1, k : k + 1].clone(), alone, None)[0, 0]
        return read

    def output(self, read: Tensor, position: Tensor) -> Tensor:
        return one_by_one(super().output, read, position)
