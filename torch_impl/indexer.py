"""The lightning indexer: which of its visible blocks a query of a CSA layer attends to."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_impl.compressor import Compressor
from torch_impl.rope import Rope

UNREACHED = -1

_AGREEMENT_ELEMENTS = 1 << 26
"""Scores of single heads that are held at a time: at 65,536 tokens of context a step of 128 rows would need 2 GiB."""


def pick(scores: Tensor, visible: Tensor, k: int) -> Tensor:
    """The k best visible blocks of each query, best first: int64 [B, T, k], -1 where there are fewer.

    scores  : [B, T, N], any values where a block is not visible
    visible : bool [B, T, N], each row's own
    Of equal scores the lower block comes first, on every device: relu makes many scores exactly 0.
    """
    ranked = scores.masked_fill(~visible, -torch.inf)
    best = ranked.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    picks = best.masked_fill(~visible.gather(-1, best), UNREACHED)
    return F.pad(picks, (0, k - picks.shape[-1]), value=UNREACHED)


class Indexer:
    """Scores of one CSA layer's blocks, from keys that a compressor of its own makes of the same tokens.

    q_b     : [heads * index_d, q_lora], from the low-rank queries that the attention shares
    weights : [heads, H]
    """

    def __init__(self, weights: Mapping[str, Tensor], compressor: Compressor, rope: Rope, topk: int) -> None:
        self.q_b, self.weights = weights["q_b"].detach(), weights["weights"].detach()
        self.compressor = compressor
        self.rope = rope
        self.topk = topk

    def scores(self, hidden: Tensor, residual: Tensor, position: Tensor, keys: Tensor) -> Tensor:
        """`sum_h w_h relu(q_h . k_b)`: hidden [B, T, H], residual [B, T, q_lora], keys [B, N, index_d] to [B, T, N].

        Queries are rotated at position [B, T], keys were at their blocks'. Scaled by index_d^-1/2 and heads^-1/2.
        """
        heads, d = len(self.weights), keys.shape[2]
        queries = F.linear(residual.flatten(0, 1), self.q_b).view(*position.shape, heads, d)
        queries = self.rope.rotate(queries, position)
        weight = F.linear(hidden.flatten(0, 1), self.weights).view(*position.shape, 1, heads)
        per_chunk = max(_AGREEMENT_ELEMENTS // max(keys.shape[1] * heads * position.shape[1], 1), 1)
        rows = zip(queries.split(per_chunk), weight.split(per_chunk), keys.split(per_chunk), strict=True)
        scores = torch.cat([self._weighed(q, w, k) for q, w, k in rows])  # [B, T, 1, N]
        return scores.squeeze(2) * (d * heads) ** -0.5

    def _weighed(self, queries: Tensor, weight: Tensor, keys: Tensor) -> Tensor:
        """queries [b, T, heads, d], weight [b, T, 1, heads], keys [b, N, d] to [b, T, 1, N]."""
        agreement = (queries.flatten(1, 2) @ keys.mT).relu_()  # [b, T * heads, N]
        return weight @ agreement.unflatten(1, queries.shape[1:3])
