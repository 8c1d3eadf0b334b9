"""The arithmetic of one DeepSeek-V4 attention layer: projections, norms, rotations and one softmax over two branches."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_impl.compressor import Compressor
from torch_impl.indexer import Indexer
from torch_impl.layer import Branch
from torch_impl.schedule import AttentionConfig, Kind


def rms_norm(x: Tensor, gamma: Tensor | None, eps: float) -> Tensor:
    """`gamma * x / sqrt(mean(x^2) + eps)` over the last axis, in float32 or wider; without gamma the scale is 1."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = wide * (wide.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    return (normed if gamma is None else gamma * normed).to(x.dtype)


class Attention:
    """One layer. Its keys are its values: one head, [d], for all query heads.

    Weights by name: q_a [q_lora, H], q_norm [q_lora], q_b [heads * d, q_lora] make the queries; kv [d, H] and
    kv_norm [d] the keys; sink [heads]; o_a [groups * o_lora, heads * d / groups] projects each group of heads by
    itself, o_b [H, groups * o_lora] mixes them. compressor.* and, in CSA layers, indexer.* are those of the parts.
    """

    def __init__(
        self,
        config: AttentionConfig,
        kind: Kind,
        weights: Mapping[str, Tensor],
        groups: int,
        eps: float = 1e-6,
    ) -> None:
        self.config, self.groups, self.eps = config, groups, eps
        self.rope = config.rope(kind)
        self.q_a, self.q_norm, self.q_b = (weights[name].detach() for name in ("q_a", "q_norm", "q_b"))
        self.kv, self.kv_norm = weights["kv"].detach(), weights["kv_norm"].detach()
        self.sink = weights["sink"].detach()
        self.o_b = weights["o_b"].detach()
        self.o_a = weights["o_a"].detach().unflatten(0, (groups, -1))  # [groups, o_lora, heads * d / groups]
        self.key_width, self.key_dtype = config.d, self.kv.dtype
        self.compressor = self._compressor(weights, "compressor.") if kind != "sliding" else None
        self.indexer: Indexer | None = None
        if kind == "csa":
            self.indexer = self._indexer(under(weights, "indexer."))

    def _indexer(self, weights: Mapping[str, Tensor]) -> Indexer:
        return Indexer(weights, self._compressor(weights, "compressor."), self.rope, self.config.topk)

    def _compressor(self, weights: Mapping[str, Tensor], prefix: str) -> Compressor:
        own = under(weights, prefix)
        return Compressor(own["wkv"], own["wgate"], own["bias"], own["gamma"], self.rope, self.eps)

    def queries(self, hidden: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """hidden [B, T, H] to queries [B, T, heads, d], rotated at position [B, T], and the residual [B, T, q_lora]."""
        residual = rms_norm(linear(hidden, self.q_a), self.q_norm, self.eps)  # [B, T, q_lora]
        heads = linear(residual, self.q_b).unflatten(2, (self.config.heads, -1))  # [B, T, heads, d]
        return self.rope.rotate(rms_norm(heads, None, self.eps), position), residual

    def keys(self, hidden: Tensor, position: Tensor) -> Tensor:
        """hidden [B, T, H] to raw keys [B, T, d], rotated at position [B, T]."""
        return self.rope.rotate(rms_norm(linear(hidden, self.kv), self.kv_norm, self.eps), position)

    def attend(self, queries: Tensor, raw: Branch, blocks: Branch | None) -> Tensor:
        """queries [B, T, heads, d] to what they read [B, T, heads, d].

        One softmax of `q . k / sqrt(d)` over both branches and the sink, a logit per head that takes its share of
        the mass and gives nothing back.
        """
        branches = [raw] if blocks is None else [raw, blocks]
        flat = queries.flatten(1, 2)  # [B, T * heads, d]
        logits = [self._logits(flat @ branch.keys.mT, branch.keep) for branch in branches]
        sink = self.sink.to(logits[0].dtype)[:, None].expand(*queries.shape[:3], 1)
        weight = torch.cat([*logits, sink], dim=-1).softmax(dim=-1).to(queries.dtype)  # [B, T, heads, N + 1]
        shares = weight.flatten(1, 2).split([branch.keys.shape[1] for branch in branches] + [1], dim=-1)
        read = sum(share @ branch.keys for share, branch in zip(shares, branches, strict=False))
        return read.view_as(queries)

    def _logits(self, scores: Tensor, keep: Tensor) -> Tensor:
        """scores [B, T * heads, N] to logits [B, T, heads, N], in float32 or wider."""
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        logits = wide.unflatten(1, (keep.shape[1], self.config.heads)) * self.config.d**-0.5
        return logits.masked_fill(~keep[:, :, None], -torch.inf)

    def output(self, read: Tensor, position: Tensor) -> Tensor:
        """read [B, T, heads, d] to [B, T, H].

        A value arrives turned by its own position. Turned back by the query's, it says how far apart they are.
        """
        turned = self.rope.rotate(read, -position)
        grouped = turned.flatten(2).unflatten(2, (self.groups, -1))  # [B, T, groups, heads * d / groups]
        low = grouped.flatten(0, 1).transpose(0, 1) @ self.o_a.mT  # [groups, B * T, o_lora]
        return linear(low.transpose(0, 1).flatten(1).unflatten(0, position.shape), self.o_b)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [B, T, in] to [B, T, out], as one product of contiguous 2-D rows: a 3-D slice would take a slow path."""
    return F.linear(x.flatten(0, 1), weight).unflatten(0, x.shape[:2])


def under(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The weights whose names start with `prefix`, by the rest of the name."""
    return {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
