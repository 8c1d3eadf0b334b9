"""A second oracle for the mathematics: the public Hugging Face modules of DeepSeek-V4 say what the reference says.

Random weights, nothing is downloaded; the position bias, which those modules leave at zero, is drawn as well, since a
bias of zero hides every fault of its index. The extras `oracle` and `dev` bring transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache
from transformers.models.deepseek_v4 import configuration_deepseek_v4, modeling_deepseek_v4

from reference_impl import bounds
from reference_impl.compressor import CompressorWeights
from reference_impl.rope import Yarn
from torch_impl import rope as production_rope
from torch_impl.compressor import Compressor
from torch_impl.geometry import Geometry
from torch_impl.xs_rolling import XsRolling

TOLERANCE = 2e-5
HIDDEN, HEAD, ROPE = 96, 128, 64
KINDS = {
    "csa": ("compressed_sparse_attention", "compressor", 4, 2),
    "indexer": ("compressed_sparse_attention", "indexer", 4, 2),
    "hca": ("heavily_compressed_attention", "compressor", 128, 1),
}
YARN = {
    "rope_type": "yarn",
    "factor": 16.0,
    "original_max_position_embeddings": 65536,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "attention_factor": 1.0,  # the compressed layers stretch frequencies and scale nothing
}


@dataclass
class Public:
    """One public module with random weights, and the same weights for our two sides."""

    module: Any
    config: Any
    entry: str
    weights: CompressorWeights
    tensors: list[torch.Tensor]
    yarn: bool

    def blocks(self, hidden: torch.Tensor, chunks: list[int]) -> np.ndarray:
        """The blocks [B, n, d] that its cache holds after hidden [B, T, H], fed in chunks."""
        cache = DynamicCache(config=self.config)
        generator = torch.Generator().manual_seed(3)
        start = 0
        with torch.no_grad():
            for chunk in hidden.split(chunks, dim=1):
                rows, length = chunk.shape[:2]
                positions = torch.arange(start, start + length).expand(rows, -1)
                query = torch.randn(rows, length, self.config.q_lora_rank, generator=generator)
                self.module(chunk, query, positions, cache, 0)
                start += length
        held: torch.Tensor = cache.layers[0].compressed_kv[self.entry]
        return held.double().numpy()

    def ours(self, hidden: torch.Tensor, chunks: list[int]) -> np.ndarray:
        """The same from production, fed alike."""
        rope = production_rope.Rope(ROPE, 160000.0, production_rope.Yarn() if self.yarn else None)
        compressor = Compressor(*self.tensors, rope)
        geometry = Geometry(self.weights.ratio, self.weights.span, 8)
        cache = XsRolling(compressor, geometry, len(hidden), retain="projected")
        for chunk in hidden.split(chunks, dim=1):
            cache.advance(chunk, [chunk.shape[1]] * len(hidden))
        return np.stack([cache.comp(row).double().numpy() for row in range(len(hidden))])


def public(kind: str, yarn: bool) -> Public:
    layer_type, entry, ratio, span = KINDS[kind]
    config = configuration_deepseek_v4.DeepseekV4Config(
        num_hidden_layers=1,
        layer_types=[layer_type],
        hidden_size=HIDDEN,
        head_dim=HEAD,
        index_head_dim=HEAD,
        q_lora_rank=32,
        index_n_heads=2,
    )
    rotated = {"rope_theta": 160000.0, "partial_rotary_factor": ROPE / HEAD}
    config.rope_parameters = {
        "main": {"rope_type": "default", **rotated},
        "compress": {**(YARN if yarn else {"rope_type": "default"}), **rotated},
    }
    torch.manual_seed(11)
    module = modeling_deepseek_v4.COMPRESSOR_CLASSES[layer_type](config)
    owner = module.indexer if entry == "indexer" else module
    for each in module.modules():
        if hasattr(each, "position_bias"):
            torch.nn.init.normal_(each.position_bias)
            torch.nn.init.normal_(each.kv_norm.weight, 1.0, 0.25)
    tensors = [
        owner.kv_proj.weight, owner.gate_proj.weight, owner.position_bias, owner.kv_norm.weight,
    ]  # fmt: skip
    tensors = [tensor.detach() for tensor in tensors]
    weights = CompressorWeights(
        *(tensor.double().numpy() for tensor in tensors),
        ratio=ratio,
        span=span,
        rope_width=ROPE,
        yarn=Yarn() if yarn else None,
        eps=config.rms_norm_eps,
    )
    return Public(module, config, entry, weights, tensors, yarn)


@pytest.mark.parametrize("yarn", [False, True], ids=["plain", "yarn"])
@pytest.mark.parametrize("kind", KINDS)
def test_three_implementations_agree_on_one_shot_and_on_chunks(kind: str, yarn: bool):
    case = public(kind, yarn)
    tokens = 3 * case.weights.ratio + 2
    hidden = torch.randn(2, tokens, HIDDEN, generator=torch.Generator().manual_seed(5))
    right = [bounds.blocks(case.weights, row.double().numpy(), bounds.FLOAT32) for row in hidden]
    shown = np.stack([each.value for each in right])
    assert shown.shape == (2, 3, HEAD) and np.abs(shown).max() > 1
    for chunks in ([tokens], [1] * tokens, [5, tokens - 9, 4]):
        theirs, ours = case.blocks(hidden, chunks), case.ours(hidden, chunks)
        assert np.abs(theirs - shown).max() < TOLERANCE
        assert np.abs(ours - shown).max() < TOLERANCE
        assert all(bounds.share(row, each) < 1 for row, each in zip(theirs, right, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_bias_one_slot_off_or_a_block_at_its_index_is_seen_by_the_second_oracle(kind: str):
    case = public(kind, yarn=False)
    hidden = torch.randn(1, 3 * case.weights.ratio, HIDDEN, generator=torch.Generator().manual_seed(5))
    theirs = case.blocks(hidden, [hidden.shape[1]])[0]
    w = case.weights
    for wrong in (
        CompressorWeights(
            w.wkv, w.wgate, np.roll(w.bias, 1, axis=0), w.gamma, ratio=w.ratio, span=w.span,
            rope_width=ROPE, yarn=None, eps=w.eps,
        ).blocks(hidden[0].numpy()),
        np.stack([w.finish(pooled, 0) for pooled in w.pooled(hidden[0].numpy())]),
    ):  # fmt: skip
        assert np.abs(theirs - wrong).max() > 100 * TOLERANCE
