"""A second oracle for a whole attention layer: the public Hugging Face layer of DeepSeek-V4 says what the reference says.

Random weights, nothing is downloaded. Position biases, norms and sinks are drawn as well, since the neutral values that
those modules start with hide where they are read from. The extras `oracle` and `dev` bring transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DynamicCache
from transformers.masking_utils import create_sliding_window_causal_mask
from transformers.models.deepseek_v4 import configuration_deepseek_v4, modeling_deepseek_v4

from reference_impl import attention
from reference_impl.attention import AttentionWeights, Kind
from reference_impl.indexer import gap
from reference_impl.model import ModelConfig, attention_layer, attention_shapes
from reference_impl.rope import inverse_frequencies, rotate

TOLERANCE = 2e-5
HIDDEN, HEAD, ROPE = 96, 128, 64
LAYER_TYPES = {
    "sliding": "sliding_attention",
    "csa": "compressed_sparse_attention",
    "hca": "heavily_compressed_attention",
}
CASES: dict[str, tuple[Kind, int, int]] = {  # kind, topk, tokens
    "sliding": ("sliding", 1, 60),
    "csa-picks-3-of-15": ("csa", 3, 60),
    "csa-picks-1-of-15": ("csa", 1, 60),
    "csa-picks-all": ("csa", 99, 60),
    "hca": ("hca", 1, 300),
}
NAMES = {
    "q_a": "q_a_proj.weight",
    "q_norm": "q_a_norm.weight",
    "q_b": "q_b_proj.weight",
    "kv": "kv_proj.weight",
    "kv_norm": "kv_norm.weight",
    "sink": "sinks",
    "o_a": "o_a_proj.weight",
    "o_b": "o_b_proj.weight",
    "compressor.wkv": "compressor.kv_proj.weight",
    "compressor.wgate": "compressor.gate_proj.weight",
    "compressor.bias": "compressor.position_bias",
    "compressor.gamma": "compressor.kv_norm.weight",
    "indexer.q_b": "compressor.indexer.q_b_proj.weight",
    "indexer.weights": "compressor.indexer.scorer.weights_proj.weight",
    "indexer.compressor.wkv": "compressor.indexer.kv_proj.weight",
    "indexer.compressor.wgate": "compressor.indexer.gate_proj.weight",
    "indexer.compressor.bias": "compressor.indexer.position_bias",
    "indexer.compressor.gamma": "compressor.indexer.kv_norm.weight",
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
    """One public attention layer with random weights, and the reference with the same."""

    module: Any
    config: Any
    reference: AttentionWeights

    def outputs(self, hidden: torch.Tensor, chunks: list[int]) -> np.ndarray:
        """Its outputs [T, H] of one sequence, hidden [T, H], fed in chunks."""
        cache = DynamicCache(config=self.config)
        rope = modeling_deepseek_v4.DeepseekV4RotaryEmbedding(self.config)
        outputs, start = [], 0
        with torch.no_grad():
            for chunk in hidden[None].split(chunks, dim=1):
                positions = torch.arange(start, start + chunk.shape[1])[None]
                mask = create_sliding_window_causal_mask(
                    self.config, chunk, attention_mask=None, cache=cache, position_ids=positions
                )
                turns = {label: rope(chunk, positions, layer_type=label) for label in ("main", "compress")}
                outputs.append(self.module(chunk, turns, positions, mask, cache)[0][0])
                start += chunk.shape[1]
        return torch.cat(outputs).double().numpy()


def public(kind: Kind, topk: int, window: int = 16) -> Public:
    sizes = ModelConfig(
        schedule=(kind,), vocab=1, hidden_width=HIDDEN, intermediate=1, heads=4, d=HEAD, rope_width=ROPE,
        window=window, q_lora=32, o_groups=2, o_lora=24, index_heads=8, index_d=HEAD, topk=topk,
    )  # fmt: skip
    config = configuration_deepseek_v4.DeepseekV4Config(
        num_hidden_layers=1,
        layer_types=[LAYER_TYPES[kind]],
        hidden_size=HIDDEN,
        num_attention_heads=sizes.heads,
        head_dim=HEAD,
        q_lora_rank=sizes.q_lora,
        o_groups=sizes.o_groups,
        o_lora_rank=sizes.o_lora,
        index_n_heads=sizes.index_heads,
        index_head_dim=HEAD,
        index_topk=topk,
        sliding_window=window,
        attn_implementation="eager",
    )
    partial = {"partial_rotary_factor": ROPE / HEAD}
    config.rope_parameters = {
        "main": {"rope_type": "default", "rope_theta": 10000.0, **partial},
        "compress": {**YARN, "rope_theta": 160000.0, **partial},
    }
    torch.manual_seed(11)
    module = modeling_deepseek_v4.DeepseekV4Attention(config, 0)
    for name, parameter in module.named_parameters():
        if name.endswith(("position_bias", "sinks")):
            torch.nn.init.normal_(parameter)
        elif "norm" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.25)
    held = {name: tensor.double().numpy() for name, tensor in module.state_dict().items()}
    ours = {name: held.pop(NAMES[name]) for name in attention_shapes(sizes, kind)}
    assert not held, f"the reference has no place for {sorted(held)}"
    return Public(module, config, attention_layer(sizes, kind, ours))


def stream(tokens: int) -> torch.Tensor:
    return torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("case", CASES)
def test_the_public_layer_says_what_the_reference_says_in_one_shot_and_in_chunks(case: str):
    kind, topk, tokens = CASES[case]
    layer, hidden = public(kind, topk), stream(tokens)
    right = layer.reference(hidden.double().numpy())
    assert np.abs(right).max(axis=1).min() > 0.1
    for chunks in (
        [tokens],
        [1] * tokens,
        [5, tokens - 9, 4],
        [3, 13, 1, tokens - 17],  # the window is exactly full, then one token, then the rest
        [17] * (tokens // 17) + [tokens % 17],
    ):
        assert np.abs(layer.outputs(hidden, chunks) - right).max() < TOLERANCE, chunks


@pytest.mark.parametrize("case", [case for case, (kind, *_) in CASES.items() if kind == "csa"])
def test_no_choice_of_blocks_here_hangs_on_rounding(case: str):
    _, topk, tokens = CASES[case]
    reference, hidden = public("csa", topk).reference, stream(tokens).double().numpy()
    scores = reference.indexer.scores(hidden, reference.residual(hidden))
    assert min(gap(scores[t], (t + 1) // 4, topk) for t in range(tokens)) > 10 * TOLERANCE


def faults(layer: AttentionWeights, hidden: np.ndarray) -> dict[str, np.ndarray]:
    """What the layer would say if one thing were wrong, by the fault."""
    turned = rotate(
        layer.read(hidden),
        np.arange(len(hidden))[:, np.newaxis],
        inverse_frequencies(ROPE, *attention.ROPES[layer.kind]),
    )
    found = {
        "window one short": replace(layer, window=layer.window - 1)(hidden),
        "sinks of other heads": replace(layer, sink=np.roll(layer.sink, 1))(hidden),
        "no sinks": replace(layer, sink=np.full(layer.heads, -1e9))(hidden),
        "output not turned back": layer.output(turned),
        "groups of heads exchanged": layer.output(np.roll(layer.read(hidden), 2, axis=1)),
    }
    if layer.kind == "csa":
        found["one pick more"] = replace(layer, topk=layer.topk + 1)(hidden)
    return found


@pytest.mark.parametrize("case", ["sliding", "csa-picks-3-of-15", "hca"])
def test_a_fault_in_the_layer_is_far_outside_the_agreement(case: str):
    kind, topk, tokens = CASES[case]
    layer, hidden = public(kind, topk), stream(tokens)
    theirs = layer.outputs(hidden, [tokens])
    for fault, said in faults(layer.reference, hidden.double().numpy()).items():
        assert np.abs(said - theirs).max() > 100 * TOLERANCE, fault


@pytest.mark.parametrize("case", ["csa-picks-3-of-15", "csa-picks-all", "hca"])
@pytest.mark.parametrize("off", [-1, 1], ids=["later", "earlier"])
def test_blocks_seen_one_query_too_early_or_too_late_are_far_outside_the_agreement(
    case: str, off: int, monkeypatch: pytest.MonkeyPatch
):
    kind, topk, tokens = CASES[case]
    layer, hidden = public(kind, topk), stream(tokens)
    theirs = layer.outputs(hidden, [tokens])
    right = attention.visible

    def shifted(position: int, *rest: Any) -> attention.Visible:
        seen = right(min(max(position + off, 0), tokens - 1), *rest)
        return replace(right(position, *rest), blocks=seen.blocks)

    monkeypatch.setattr(attention, "visible", shifted)
    assert np.abs(layer.reference(hidden.double().numpy()) - theirs).max() > 100 * TOLERANCE


def test_the_public_cache_forgets_nothing_at_a_window_of_1_and_says_so_to_no_mask():
    """Found in transformers 5.24: it keeps `keys[-window + 1:]`, which at a window of 1 is all of them."""
    layer, hidden = public("sliding", 1, window=1), stream(12)
    right = layer.reference(hidden.double().numpy())
    assert np.abs(layer.outputs(hidden, [12]) - right).max() < TOLERANCE
    in_chunks = np.abs(layer.outputs(hidden, [5, 7]) - right).max(axis=1)
    assert in_chunks[:5].max() < TOLERANCE
    assert in_chunks[5:].min() > 100 * TOLERANCE
