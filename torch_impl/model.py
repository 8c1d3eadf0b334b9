"""A small model of DeepSeek-V4 style layers, batched: a plain residual stream around attention and a dense SwiGLU.

Mixtures of experts and hyper-connections hold no state per sequence and are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_impl import layer, masks
from torch_impl.attention import Attention, linear, rms_norm, under
from torch_impl.cache import Cache
from torch_impl.layer import LayerSlots
from torch_impl.refusals import AdvanceRefused
from torch_impl.row_invariant import RowInvariantAttention, one_by_one
from torch_impl.schedule import SPANS, AttentionConfig, Kind

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ModelConfig(AttentionConfig):
    """The sizes of a whole model."""

    vocab: int
    intermediate: int
    q_lora: int
    o_groups: int
    o_lora: int
    eps: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.o_groups < 1 or self.heads % self.o_groups:
            raise ValueError(f"o_groups is {self.o_groups}; it should divide the {self.heads} heads")

    def shapes(self) -> dict[str, Shape]:
        """Every weight by name; those of layer i start with `layers.i.`."""
        h, i = self.hidden_width, self.intermediate
        found: dict[str, Shape] = {"embed": (self.vocab, h), "norm": (h,), "head": (self.vocab, h)}
        for index, kind in enumerate(self.schedule):
            block: dict[str, Shape] = {
                "attn_norm": (h,),
                "mlp_norm": (h,),
                "gate": (i, h),
                "up": (i, h),
                "down": (h, i),
            }
            block |= {f"attn.{name}": shape for name, shape in self._attention(kind).items()}
            found |= {f"layers.{index}.{name}": shape for name, shape in block.items()}
        return found

    def _attention(self, kind: Kind) -> dict[str, Shape]:
        h, d, low = self.hidden_width, self.d, self.o_groups * self.o_lora
        found: dict[str, Shape] = {
            "q_a": (self.q_lora, h), "q_norm": (self.q_lora,), "q_b": (self.heads * d, self.q_lora),
            "kv": (d, h), "kv_norm": (d,), "sink": (self.heads,),
            "o_a": (low, self.heads * d // self.o_groups), "o_b": (h, low),
        }  # fmt: skip
        if kind != "sliding":
            found |= self._compressor("compressor.", kind, d)
        if kind == "csa":
            found["indexer.q_b"] = (self.index_heads * self.index_d, self.q_lora)
            found["indexer.weights"] = (self.index_heads, h)
            found |= self._compressor("indexer.compressor.", kind, self.index_d)
        return found

    def _compressor(self, prefix: str, kind: Kind, d: int) -> dict[str, Shape]:
        width, h = SPANS[kind] * d, self.hidden_width
        shapes = {"wkv": (width, h), "wgate": (width, h), "bias": (self.ratio(kind), width), "gamma": (d,)}
        return {prefix + name: shape for name, shape in shapes.items()}


def random_weights(
    config: ModelConfig, seed: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Weights of unit gain from a fixed seed; no norm, bias or sink is neutral."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in config.shapes().items():
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name.endswith(("norm", "gamma")):
            drawn = 1 + 0.25 * drawn
        elif not name.endswith(("embed", "bias", "sink")):
            drawn = drawn * shape[-1] ** -0.5
        weights[name] = drawn.to(device, dtype)
    return weights


class Block:
    """One layer of the stream: pre-norm attention, then a pre-norm SwiGLU."""

    def __init__(
        self, config: ModelConfig, kind: Kind, weights: Mapping[str, Tensor], row_invariant: bool = False
    ) -> None:
        made = RowInvariantAttention if row_invariant else Attention
        self.attention = made(config, kind, under(weights, "attn."), config.o_groups, config.eps)
        self.each = one_by_one if row_invariant else all_at_once
        self.attn_norm, self.mlp_norm = weights["attn_norm"].detach(), weights["mlp_norm"].detach()
        self.gate, self.up, self.down = (weights[name].detach() for name in ("gate", "up", "down"))
        self.eps = config.eps

    def __call__(
        self, stream: Tensor, slots: LayerSlots, n_new: Sequence[int] | None, mask: Tensor | None
    ) -> Tensor:
        """stream [B, T, H] to [B, T, H]; the layer's slots take the step."""
        normed = self.each(lambda x: rms_norm(x, self.attn_norm, self.eps), stream)
        stream = stream + layer.step(self.attention, slots, normed, n_new, mask)
        return stream + self.each(self._mlp, stream)

    def _mlp(self, stream: Tensor) -> Tensor:
        normed = rms_norm(stream, self.mlp_norm, self.eps)
        return linear(F.silu(linear(normed, self.gate)) * linear(normed, self.up), self.down)


def all_at_once(act: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """act on the whole batch: inputs [B, T, ...] to [B, T, ...]."""
    return act(*inputs)


class Model:
    """Weights by name as `ModelConfig.shapes` lists them. Raises ValueError for others.

    row_invariant : a row's logits have the same bytes in every batch, at one number of threads; a call per query.
                    Raises RowInvarianceRefused on a machine where that cannot be promised.

    masks_ragged_batches : its masks are made from each row's own position, so rows need not stand at one token.
    """

    masks_ragged_batches = True

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Tensor], *, row_invariant: bool = False
    ) -> None:
        found = {name: tuple(weight.shape) for name, weight in weights.items()}
        wrong = sorted(name for name, _ in found.items() ^ config.shapes().items())
        if wrong:
            raise ValueError(
                f"weights {sorted(set(wrong))[:5]} are missing, unknown or of another shape; they should be those of "
                "the configuration's shapes; check schedule and prefixes"
            )
        self.config = config
        self.embed, self.norm, self.head = (weights[name].detach() for name in ("embed", "norm", "head"))
        self.blocks = [
            Block(config, kind, under(weights, f"layers.{i}."), row_invariant)
            for i, kind in enumerate(config.schedule)
        ]
        self.each = one_by_one if row_invariant else all_at_once

    def cache(self, rows: int, margin: int = 16, per_row_state: bool = True) -> Cache:
        """An empty cache for `rows` sequences."""
        layers = [block.attention for block in self.blocks]
        return Cache.open(layers, rows, self.config.window, margin, per_row_state)

    @torch.no_grad()
    def forward(
        self, tokens: Tensor, cache: Cache, n_new: Sequence[int] | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Logits [B, T, V] after each of the new tokens, int64 [B, T]; row i takes the first n_new[i] of them.

        What stands in the padding is not read, and its logits mean nothing. mask: a caller's keep-mask over the raw
        columns, for all layers. Raises AdvanceRefused and MaskRefused before the cache is touched.
        """
        padding = self._padding(tokens, cache, n_new)
        if mask is not None:
            self._check_mask(tokens, cache, mask)
        stream = self.embed[tokens.masked_fill(padding, 0)]  # [B, T, H]
        for block, slots in zip(self.blocks, cache.layers, strict=True):
            stream = block(stream, slots, n_new, mask)
        cache.check_invariants()
        return self.each(self._logits, stream)

    def _logits(self, stream: Tensor) -> Tensor:
        return linear(rms_norm(stream, self.norm, self.config.eps), self.head)

    def _padding(self, tokens: Tensor, cache: Cache, n_new: Sequence[int] | None) -> Tensor:
        """Which of the tokens [B, T] are padding, bool. Raises AdvanceRefused for a step that cannot be made."""
        if tokens.dim() != 2 or tokens.shape[0] != cache.rows or tokens.dtype != torch.int64:
            raise AdvanceRefused(
                f"tokens are {tokens.dtype} {list(tokens.shape)}; they should be int64 [{cache.rows}, T]: one "
                "right-padded block of new tokens per row; pad to the longest",
                "advance-shape",
            )
        refusal = cache.step_refusal(tokens.shape[1], n_new)
        if refusal:
            raise refusal
        counts = [tokens.shape[1]] * cache.rows if n_new is None else list(n_new)
        column = torch.arange(tokens.shape[1], device=tokens.device)
        padding = column >= torch.tensor(counts, device=tokens.device)[:, None]
        strangers = tokens[~padding & ((tokens < 0) | (tokens >= self.config.vocab))]
        if len(strangers):
            raise AdvanceRefused(
                f"tokens hold {strangers[:5].tolist()}; they should lie in 0..{self.config.vocab - 1}; encode them with "
                "the model's own vocabulary",
                "advance-vocabulary",
            )
        return padding

    def _check_mask(self, tokens: Tensor, cache: Cache, mask: Tensor) -> None:
        """Raise MaskRefused now, not in the second layer."""
        seen = max(min(t, self.config.window - 1) for t in cache.tokens)
        masks.compose(torch.ones(*tokens.shape, seen + tokens.shape[1], dtype=torch.bool), mask)
