"""A small V4 model with its cache, in float64: what its last queries computed, from the attention to the logits.

The model is production's own, with all three kinds of layer; the reference works the same out from the whole history.
Its window and picks are so small that short histories leave the window and have to choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from harness.caches.protocol import Axis, Geometry
from harness.rows.events import origin
from harness.rows.subject import Array
from harness.subjects.v4_tokens import ARRAYS, ratios
from reference_impl import model as reference
from reference_impl.compressor import rms_norm
from torch_impl.attention import Attention
from torch_impl.cache import Cache
from torch_impl.model import Model, ModelConfig
from torch_impl.refusals import Refusal
from torch_impl.schedule import Kind

QUERIES, VOCABULARY = 8, 509
KINDS: tuple[Kind, ...] = ("sliding", "csa", "hca", "csa")
AXES: dict[str, Axis] = {"kv": "tokens", "comp": "blocks", "index": "blocks"}
SIZES = {
    "schedule": KINDS, "vocab": VOCABULARY, "hidden_width": 24, "intermediate": 16, "heads": 4, "d": 16,
    "rope_width": 8, "window": 8, "q_lora": 12, "o_groups": 2, "o_lora": 6, "index_heads": 16, "index_d": 8, "topk": 2,
}  # fmt: skip
_APART = 37  # events of two sequences that are as many apart share a token


class Watched(Attention):
    """An attention layer that keeps its last output."""

    def __init__(self, attention: Attention) -> None:
        vars(self).update(vars(attention))
        self.last = torch.zeros(0)

    def output(self, read: Tensor, position: Tensor) -> Tensor:
        self.last = super().output(read, position)
        return self.last


class WatchedModel(Model):
    """Production's model, with layers that keep their last output."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
        super().__init__(config, weights)
        self.layers = [Watched(block.attention) for block in self.blocks]
        for block, layer in zip(self.blocks, self.layers, strict=True):
            block.attention = layer


@lru_cache(maxsize=8)
def models(csa: int, hca: int) -> tuple[WatchedModel, reference.Model]:
    """Production's model and the reference's, of the same weights."""
    sizes: Any = {**SIZES, "csa_ratio": csa, "hca_ratio": hca}
    config = reference.ModelConfig(**sizes)
    weights = reference.random_weights(np.random.default_rng(7), config)
    tensors = {name: torch.from_numpy(weight) for name, weight in weights.items()}
    return WatchedModel(ModelConfig(**sizes), tensors), reference.Model(config, weights)


def of_geometry(geometry: Geometry) -> tuple[WatchedModel, reference.Model]:
    """The models of a fixture's geometry."""
    found = ratios(geometry)
    return models(found["csa"], found["hca"])


def words(ids: Array) -> Array:
    """Events to tokens of the vocabulary: neighbours in one sequence, and at one position of two, are different ones."""
    pairs = [origin(int(token)) for token in ids.flat]
    tokens: Array = np.array([(_APART * s + event) % VOCABULARY for s, event in pairs], dtype=np.int64)
    return tokens.reshape(ids.shape)


class V4ModelCache:
    """The cache of a small V4 model, fed through that model.

    Read: the logits and each layer's attention of the last queries, and each layer's stored keys and blocks.
    """

    width = 1
    stream = "ids"
    supports: ClassVar[tuple[str, ...]] = (
        "prefill.ragged", "advance.ragged", "rollback.ragged", "select", "repeat", "split", "assemble", "poison",
        "reference",
    )  # fmt: skip
    axes: ClassVar[Mapping[str, Axis]] = {
        f"l{i}.{name}": AXES[name] for i, kind in enumerate(KINDS) for name in AXES if name in ARRAYS[kind]
    }
    refusal = Refusal

    def __init__(self, geometry: Geometry, rows: int) -> None:
        self.model, self.oracle = of_geometry(geometry)
        self.cache = self.model.cache(rows, geometry.margin)
        self.computed: list[list[Array]] = [self._nothing() for _ in range(rows)]  # row, (logits, layers ...)

    def _nothing(self) -> list[Array]:
        config = self.model.config
        return [np.zeros((0, config.vocab)), *(np.zeros((0, config.hidden_width)) for _ in config.schedule)]

    def _like(self, cache: Cache, computed: list[list[Array]]) -> Self:
        other = object.__new__(type(self))
        other.model, other.oracle = self.model, self.oracle
        other.cache, other.computed = cache, [list(row) for row in computed]
        return other

    def advance(self, xs: Array, n_new: Sequence[int]) -> None:
        logits = self.model.forward(torch.from_numpy(words(xs[..., 0])), self.cache, n_new)
        outputs = [logits, *(each.last for each in self.model.layers)]
        kept = QUERIES + self.cache.margin  # no rollback goes back further
        for row, n in enumerate(n_new):
            new = [output[row, :n].numpy() for output in outputs]
            self.computed[row] = [
                np.concatenate([old, own])[-kept:] for old, own in zip(self.computed[row], new, strict=True)
            ]

    def rollback(self, counts: Sequence[int]) -> None:
        self.cache.rollback_rows(counts)
        self.computed = [
            [array[: len(array) - n] for array in row] for row, n in zip(self.computed, counts, strict=True)
        ]

    def select(self, rows: Sequence[int]) -> None:
        self.cache.select(rows)
        self.computed = [list(self.computed[row]) for row in rows]

    def split(self, row: int) -> Self:
        return self._like(self.cache.split_row(row), self.computed[row : row + 1])

    def assemble(self, parts: Sequence[Self]) -> Self:
        cache = Cache.assemble([part.cache for part in parts])
        return self._like(cache, [row for part in parts for row in part.computed])

    def poison(self) -> None:
        for _, slot in self.cache.slots():
            slot.fill_dead(float("nan"))

    def read(self, row: int) -> Mapping[str, Array]:
        logits, *outputs = (array[-QUERIES:] for array in self.computed[row])
        held = {"model.logits": logits}
        for i, (slots, output) in enumerate(zip(self.cache.layers, outputs, strict=True)):
            run = slots.kv.run(row)
            seen = min(slots.kv.tokens[row], slots.kv.window - 1)
            held |= {f"l{i}.attention": output, f"l{i}.kv": run[len(run) - seen :].numpy()}
            for name, state in (("comp", slots.compressor), ("index", slots.indexer)):
                if state:
                    held[f"l{i}.{name}"] = state.comp(row).numpy()
        return held

    def reference(self, xs: Array) -> Mapping[str, Array]:
        model, tokens = self.oracle, words(xs[:, 0])
        right: dict[str, Array] = {}
        stream: Array = model.embed[tokens]
        for i, block in enumerate(model.blocks):
            normed, layer = rms_norm(stream, block.attn_norm, block.eps), block.attention
            output = layer(normed)
            right |= {
                f"l{i}.attention": output[-QUERIES:],
                f"l{i}.kv": layer.keys(normed)[-layer.window + 1 :],
            }
            if layer.compressor:
                right[f"l{i}.comp"] = layer.blocks(normed)
            if layer.indexer:
                right[f"l{i}.index"] = layer.indexer.compressor.blocks(normed)
            stream = stream + output
            stream = stream + block.mlp(rms_norm(stream, block.mlp_norm, block.eps))
        logits = rms_norm(stream, model.norm, model.config.eps) @ model.head.T
        return {"model.logits": logits[-QUERIES:], **right}
