"""The Hugging Face cache of one DeepSeek-V4 attention layer, fed through that layer. Random weights, no download.

Only what the public classes offer is called: left-padded prompts with an attention mask, even steps, `crop`,
`batch_select_indices`, `batch_repeat_interleave`, `reorder_cache`. Needs the extra `oracle`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import DynamicCache
from transformers.masking_utils import create_sliding_window_causal_mask
from transformers.models.deepseek_v4 import configuration_deepseek_v4, modeling_deepseek_v4

from harness.caches.protocol import Axis, Geometry
from harness.rows.subject import Array

_HIDDEN, _HEAD, _ROPE, _WINDOW = 16, 64, 32, 64


class Refused(Exception):
    """What the public cache says it cannot do."""

    kind = "refused-by-the-cache"


@lru_cache(maxsize=8)
def _layer(ratio: int, span: int) -> tuple[Any, Any, Any]:
    """The layer, its rotary embedding and its configuration, with the same weights in every play."""
    kind = "compressed_sparse_attention" if span == 2 else "heavily_compressed_attention"
    config: Any = configuration_deepseek_v4.DeepseekV4Config(
        num_hidden_layers=1,
        layer_types=[kind],
        hidden_size=_HIDDEN,
        num_attention_heads=2,
        head_dim=_HEAD,
        q_lora_rank=16,
        o_groups=2,
        o_lora_rank=8,
        index_n_heads=2,
        index_head_dim=_HEAD,
        sliding_window=_WINDOW,
    )
    config._attn_implementation = "eager"
    config.compress_rates = {**config.compress_rates, kind: ratio}
    rope = {"rope_type": "default", "partial_rotary_factor": _ROPE / _HEAD}
    config.rope_parameters = {
        "main": {**rope, "rope_theta": 10000.0},
        "compress": {**rope, "rope_theta": 160000.0},
    }
    state = torch.get_rng_state()
    torch.manual_seed(5)
    module = modeling_deepseek_v4.DeepseekV4Attention(config, 0)
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0.0, 1.0 if "bias" in name else parameter.shape[-1] ** -0.5)
    torch.nn.init.normal_(module.sinks)
    torch.set_rng_state(state)
    return module.requires_grad_(False), modeling_deepseek_v4.DeepseekV4RotaryEmbedding(config), config


class HuggingFaceV4Cache:
    """A `DynamicCache` with one V4 layer: sliding keys, compressed entries, and what is not compressed yet.

    Prompts of unequal length stand behind left padding, as `generate` places them; after that all rows take
    equally many tokens, because the class keeps one length.
    """

    width = _HIDDEN
    supports: ClassVar[tuple[str, ...]] = ("prefill.ragged", "rollback", "select", "repeat")
    axes: ClassVar[Mapping[str, Axis]] = {
        "keys": "tokens",
        "compressor": "blocks",
        "compressor.buffer": "tokens",
        "indexer": "blocks",
        "indexer.buffer": "tokens",
    }
    refusal = Refused

    def __init__(self, geometry: Geometry, rows: int) -> None:
        self.module, self.rope, self.config = _layer(geometry.ratio, geometry.span)
        self.cache: Any = DynamicCache(config=self.config)
        self.lengths = np.zeros(rows, dtype=np.int64)
        self.mask = torch.zeros(rows, 0, dtype=torch.int64)

    def advance(self, xs: Array, n_new: Sequence[int]) -> None:
        columns = xs.shape[1]
        left_padded = np.stack([np.roll(row, columns - n, axis=0) for row, n in zip(xs, n_new, strict=True)])
        new = torch.tensor([[0] * (columns - n) + [1] * n for n in n_new], dtype=torch.int64)
        self.mask = torch.cat([self.mask, new], dim=1)
        positions = (self.mask.cumsum(1) - 1).clamp(min=0)[:, -columns:]
        hidden = torch.from_numpy(left_padded).float()
        mask = create_sliding_window_causal_mask(
            self.config, hidden, attention_mask=self.mask, cache=self.cache, position_ids=positions
        )
        turns = {label: self.rope(hidden, positions, layer_type=label) for label in ("main", "compress")}
        self.module(hidden, turns, positions, mask, self.cache)
        self.lengths = self.lengths + np.asarray(n_new)

    def rollback(self, counts: Sequence[int]) -> None:
        n = counts[0]
        try:
            self.cache.crop(-n)
        except RuntimeError as error:
            raise Refused(str(error)) from error
        self.lengths = self.lengths - n
        self.mask = self.mask[:, : self.mask.shape[1] - n]

    def select(self, rows: Sequence[int]) -> None:
        self._move(rows)
        self.lengths, self.mask = self.lengths[list(rows)], self.mask[list(rows)]

    def _move(self, rows: Sequence[int]) -> None:
        times = len(rows) // max(len(self.lengths), 1)
        if times > 1 and list(rows) == [row for row in range(len(self.lengths)) for _ in range(times)]:
            self.cache.batch_repeat_interleave(times)
        else:
            self.cache.batch_select_indices(torch.tensor(list(rows)))

    def read(self, row: int) -> Mapping[str, Array]:
        layer = self.cache.layers[0]
        length = int(self.lengths[row])
        if not length:
            return {}
        seen = min(length, _WINDOW - 1)
        held = {"keys": layer.keys[row, 0, layer.keys.shape[2] - seen :]}
        for name, entries in layer.compressed_kv.items():
            held[name] = entries[row]
            held[f"{name}.buffer"] = torch.cat(
                [layer.buffer_kv[name][row], layer.buffer_gate[name][row]], dim=-1
            )
        for name, series in getattr(layer, "overlap_kv", {}).items():
            if series is not None:
                held[f"{name}.overlap"] = torch.cat([series[row], layer.overlap_gate[name][row]], dim=-1)
        return {name: tensor.numpy() for name, tensor in held.items()}


class HuggingFaceV4Beams(HuggingFaceV4Cache):
    """The same, with rows moved by `reorder_cache`, the call of beam search."""

    def _move(self, rows: Sequence[int]) -> None:
        self.cache.reorder_cache(torch.tensor(list(rows)))
