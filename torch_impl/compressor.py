"""The DeepSeek-V4 compressor: hidden states to payloads (`project`), windows of payloads to blocks (`pool`).

CSA has span 2 (a block pools its own group of tokens and the group before), HCA span 1; the lightning
indexer's compressor is a CSA compressor of head width 128. A group's tokens serve the block that follows
with series 0 (Ca) and their own block with the last series (Cb).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_impl import invariance
from torch_impl.refusals import RowInvarianceRefused
from torch_impl.rope import Rope

# One chunk of a pool call stays near the cache: 2^20 elements are 8 windows of 128 tokens at d=512.
_POOL_CHUNK_ELEMENTS = 2**20


class Compressor:
    """One layer's compressor.

    wkv, wgate : [span * d, H], in the model dtype; rows 0..d-1 are series Ca, the last d are Cb
    bias       : [ratio, span * d], added to the gate by slot (t mod ratio)
    norm       : [d], the RMSNorm's gamma
    Gate sum, softmax, weighted sum, norm and rotation run in float32, or float64 if the model does.
    row_invariant : payloads and blocks have the same bytes whatever else a call holds, at one number of threads.
                    Raises RowInvarianceRefused on a machine where that cannot be promised.
    """

    def __init__(
        self,
        wkv: Tensor,
        wgate: Tensor,
        bias: Tensor,
        norm: Tensor,
        rope: Rope,
        eps: float = 1e-6,
        *,
        row_invariant: bool = False,
    ) -> None:
        width, hidden = wkv.shape
        d = norm.shape[0]
        span, rest = divmod(width, d)
        if (
            rest
            or span not in (1, 2)
            or wgate.shape != wkv.shape
            or bias.dim() != 2
            or bias.shape[1] != width
        ):
            raise ValueError(
                f"weights are wkv {tuple(wkv.shape)}, wgate {tuple(wgate.shape)}, bias {tuple(bias.shape)}, "
                f"norm {tuple(norm.shape)}; they should be wkv and wgate [span * d, H], bias [ratio, span * d], "
                "norm [d] with span 1 or 2; pass the weights of one layer"
            )
        self.ratio, self.span = bias.shape[0], span
        self.hidden_width, self.block_width = hidden, d
        self.series_width = 2 * d
        self.block_dtype = wkv.dtype
        self.payload_dtype = torch.promote_types(wkv.dtype, torch.float32)
        self.rope = rope
        self.eps = eps
        # One GEMM for everything a token needs, the halves of one series side by side: [span, 2 * d, H].
        # A state outlives the step that fed it, so it must never hold on to an autograd graph: detach.
        halves = [wkv.detach().view(span, d, hidden), wgate.detach().view(span, d, hidden)]
        self.weight = torch.stack(halves, dim=1).flatten(1, 2)
        bias = bias.detach().to(self.payload_dtype).view(self.ratio, span, d)
        self.bias = bias.transpose(0, 1).flatten(0, 1)  # [span * ratio, d], a row for each slot of a window
        self.norm = norm.detach().to(self.payload_dtype)
        self.row_invariant = row_invariant
        if row_invariant:
            self._threads = torch.get_num_threads()
            differs = invariance.probe(self)
            if differs:
                raise RowInvarianceRefused(
                    f"{differs}; a row should have the same bytes wherever it stands; leave row_invariant off, or "
                    "choose another number of threads",
                    "invariance-machine",
                )

    def describe(self) -> dict[str, str]:
        """What a stored state must share with this compressor, as text."""
        return {
            "rope": repr(self.rope),
            "hidden_width": str(self.hidden_width),
            "row_invariant": str(self.row_invariant),
        }

    def project(self, hidden: Tensor, series: int | None = None) -> Tensor:
        """hidden [N, H] to payloads [N, span, 2 * d], or [N, 2 * d] of one series: kv, then z without bias.

        Needs no position. Call it on contiguous 2-D rows: a 3-D slice goes through a batched product that is
        2 to 80 times slower.
        """
        if self.row_invariant:
            every = range(self.span) if series is None else [series]
            parts = [self._project_in_tiles(hidden, each) for each in every]
            return torch.stack(parts, dim=1) if series is None else parts[0]
        if series is not None:
            return F.linear(hidden, self.weight[series]).to(self.payload_dtype)
        projected = F.linear(hidden, self.weight.flatten(0, 1)).to(self.payload_dtype)
        return projected.view(-1, self.span, self.series_width)

    def product(self, tile: Tensor, weight: Tensor) -> Tensor:
        """tile [invariance.ROWS, H] by weight [2 * d, H] in the model dtype: the one product row-invariant rows meet."""
        return F.linear(tile, weight)

    def _project_in_tiles(self, hidden: Tensor, series: int) -> Tensor:
        """One series of hidden [N, H] in products of one shape, the last filled with zeros: [N, 2 * d].

        A BLAS chooses the order of a sum by the shape of its call, so only the shape may not depend on N.
        """
        if torch.get_num_threads() != self._threads:
            raise RowInvarianceRefused(
                f"torch runs on {torch.get_num_threads()} threads; the machine was asked about {self._threads}, and both "
                "should be equal; set the number of threads before the compressor is built",
                "invariance-threads",
            )
        tiles = max(-(-len(hidden) // invariance.ROWS), 1)
        # Memory of our own: where the caller's rows lie may not matter either.
        rows = hidden.new_zeros(tiles * invariance.ROWS, self.hidden_width)
        rows[: len(hidden)] = hidden
        products = [self.product(tile, self.weight[series]) for tile in rows.split(invariance.ROWS)]
        return torch.cat(products)[: len(hidden)].to(self.payload_dtype)

    def pool(self, windows: Tensor, block: Tensor) -> Tensor:
        """windows [N, span, ratio, 2 * d] to blocks [N, d]; block [N] is each window's absolute index, int64 on the CPU.

        The windows are working memory: what they held is lost. With span 2 the window of block 0 has no
        predecessor: whatever its first group holds, it gets value 0 and logit -inf, so weight exactly 0.
        """
        per_chunk = max(_POOL_CHUNK_ELEMENTS // windows.shape[1:].numel(), 1)
        if (
            self.row_invariant
        ):  # vector and scalar code round apart, and N decides which of them an element meets
            per_chunk = 1
        if len(windows) <= per_chunk:
            return self._pool(windows, block)
        pairs = zip(windows.split(per_chunk), block.split(per_chunk), strict=True)
        return torch.cat([self._pool(w, b) for w, b in pairs])

    def _pool(self, windows: Tensor, block: Tensor) -> Tensor:
        value, gate = windows.flatten(1, 2).chunk(2, dim=-1)  # each [N, slots, d]
        # In place throughout: memory that a step has not touched yet costs it as much as the arithmetic.
        logit = gate.add_(self.bias)
        if self.span == 2 and not block.all():
            opening = (block == 0).nonzero().squeeze(1).to(windows.device)
            value[opening, : self.ratio] = 0
            logit[opening, : self.ratio] = -torch.inf
        # Softmax over the slots, per channel; the division is done once, on the sum.
        weight = logit.sub_(logit.amax(dim=1, keepdim=True)).exp_()
        total = weight.sum(dim=1)
        pooled = weight.mul_(value).sum(dim=1) / total
        scale = (pooled.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()
        normed = self.norm * pooled * scale
        position = (block * self.ratio).to(windows.device)
        return self.rope.rotate(normed, position).to(self.block_dtype)
