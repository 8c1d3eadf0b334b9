"""The public Hugging Face modules of the same compressor, decoding equal rows: the other side of one ratio.

Needs transformers (extra `oracle`). The indexer is left out of the CSA module, because ours is a slot of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from harness.benchmark.clock import Case
from harness.benchmark.state import Batch, Layer, new_tokens


def available() -> bool:
    """Whether transformers has the modules."""
    try:
        import transformers.models.deepseek_v4  # noqa: F401
    except ImportError:
        return False
    return True


class _NoIndexer(nn.Module):
    """Selects nothing, in no time."""

    def forward(self, hidden_states: Tensor, *others: Any) -> Tensor:
        return torch.zeros(*hidden_states.shape[:2], 1, dtype=torch.int64, device=hidden_states.device)


def decode(batch: Batch, steps: int) -> Case:
    """`steps` decode steps of the module for batch.layer, its cache as if all rows stood at batch.tokens[0]."""
    from transformers import DynamicCache
    from transformers.models.deepseek_v4 import configuration_deepseek_v4, modeling_deepseek_v4

    layer, rows, tokens = batch.layer, len(batch.tokens), batch.tokens[0]
    kind = {"csa": "compressed_sparse_attention", "hca": "heavily_compressed_attention"}[layer.name]
    config = configuration_deepseek_v4.DeepseekV4Config(
        num_hidden_layers=1, layer_types=[kind], hidden_size=layer.hidden, head_dim=layer.head
    )
    classes: Any = modeling_deepseek_v4.COMPRESSOR_CLASSES
    module: Any = classes[kind](config)
    nn.init.normal_(module.position_bias)
    if layer.name == "csa":
        module.indexer = _NoIndexer()
    module.to(layer.device)
    for projection in (module.kv_proj, module.gate_proj):
        projection.to(layer.dtype)
    cache: Any = DynamicCache(config=config)
    _fill(cache.layers[0], layer, rows, tokens)
    xs, position = new_tokens(layer, rows), [tokens]

    @torch.no_grad()
    def run() -> None:
        for _ in range(steps):
            ids = torch.full((rows, 1), position[0], device=layer.device)
            module(xs, None, ids, cache, 0)
            position[0] += 1

    return run


def _fill(state: Any, layer: Layer, rows: int, tokens: int) -> None:
    """The module's own cache in mid-decode: finished blocks, the buffer of the open one, the overlap."""
    blocks, open_tokens = divmod(tokens, layer.geometry.ratio)
    width = layer.geometry.span * layer.head

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=layer.device).to(layer.dtype)

    state.compressed_kv["compressor"] = random(rows, blocks, layer.head)
    state.entry_count["compressor"] = blocks
    for buffer in (state.buffer_kv, state.buffer_gate):
        buffer["compressor"] = random(rows, open_tokens, width)
    if layer.name == "csa":
        for overlap in (state.overlap_kv, state.overlap_gate):
            overlap["compressor"] = random(rows, layer.geometry.ratio, layer.head)
