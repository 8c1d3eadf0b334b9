"""A whole small model of DeepSeek-V4 style layers for one sequence, stateless: every logit from the whole history.

Attention, compressor and indexer are those of the public model. Around them stand a plain residual stream and a dense
SwiGLU; mixtures of experts and hyper-connections hold no state per sequence and are left out.

Shape words: T tokens, V vocabulary, H hidden size, I intermediate size. All arrays are float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reference_impl.attention import ROPES, SPANS, AttentionWeights, Kind
from reference_impl.compressor import CompressorWeights, rms_norm
from reference_impl.indexer import IndexerWeights

Array = NDArray[np.float64]
Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of a model. `schedule` holds the kind of each layer, from the input on.

    Raises ValueError for sizes that no model has.
    """

    schedule: tuple[Kind, ...]
    vocab: int
    hidden_width: int
    intermediate: int
    heads: int
    d: int
    rope_width: int
    window: int
    q_lora: int
    o_groups: int
    o_lora: int
    index_heads: int
    index_d: int
    topk: int
    csa_ratio: int = 4
    hca_ratio: int = 128
    eps: float = 1e-6

    def __post_init__(self) -> None:
        strangers = sorted(set(self.schedule) - set(ROPES))
        if strangers or not self.schedule:
            raise ValueError(
                f"schedule is {self.schedule}; it should name at least one layer, each {', '.join(ROPES)}"
            )
        for name in (
            "vocab", "hidden_width", "intermediate", "heads", "d", "window", "q_lora", "o_groups", "o_lora",
            "index_heads", "index_d", "topk", "csa_ratio", "hca_ratio",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it should be at least 1")
        if self.heads % self.o_groups:
            raise ValueError(f"o_groups is {self.o_groups}; it should divide the {self.heads} heads")
        if self.rope_width > min(self.d, self.index_d) or self.rope_width % 2:
            raise ValueError(
                f"rope_width is {self.rope_width}; it should be even and at most d={self.d} and "
                f"index_d={self.index_d}: heads and index heads turn alike"
            )

    def ratio(self, kind: Kind) -> int:
        """Tokens of a block in a layer of that kind; 0 for a sliding layer."""
        return {"sliding": 0, "csa": self.csa_ratio, "hca": self.hca_ratio}[kind]


def shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every weight of such a model by name, with its shape; a layer's names start with `layers.INDEX.`."""
    h, i = config.hidden_width, config.intermediate
    found: dict[str, Shape] = {"embed": (config.vocab, h), "norm": (h,), "head": (config.vocab, h)}
    block: dict[str, Shape] = {
        "attn_norm": (h,), "mlp_norm": (h,), "gate": (i, h), "up": (i, h), "down": (h, i),
    }  # fmt: skip
    for index, kind in enumerate(config.schedule):
        found |= {f"layers.{index}.{name}": shape for name, shape in block.items()}
        found |= {
            f"layers.{index}.attn.{name}": shape for name, shape in attention_shapes(config, kind).items()
        }
    return found


def attention_shapes(config: ModelConfig, kind: Kind) -> dict[str, Shape]:
    """The weights of one attention layer of that kind, by name."""
    h, d = config.hidden_width, config.d
    found: dict[str, Shape] = {
        "q_a": (config.q_lora, h),
        "q_norm": (config.q_lora,),
        "q_b": (config.heads * d, config.q_lora),
        "kv": (d, h),
        "kv_norm": (d,),
        "sink": (config.heads,),
        "o_a": (config.o_groups * config.o_lora, config.heads * d // config.o_groups),
        "o_b": (h, config.o_groups * config.o_lora),
    }
    if kind != "sliding":
        found |= _compressor_shapes("compressor", config, kind, d)
    if kind == "csa":
        found["indexer.q_b"] = config.index_heads * config.index_d, config.q_lora
        found["indexer.weights"] = config.index_heads, h
        found |= _compressor_shapes("indexer.compressor", config, kind, config.index_d)
    return found


def random_weights(rng: np.random.Generator, config: ModelConfig) -> dict[str, Array]:
    """Weights under which every part matters: projections keep unit size, and no norm, sink or bias is neutral.

    A bias of zero or a norm of ones would hide that it is read from the wrong place.
    """
    weights = {}
    for name, shape in shapes(config).items():
        drawn = rng.standard_normal(shape)
        if name.endswith(("norm", "gamma")):
            drawn = 1.0 + 0.25 * drawn
        elif not name.endswith(("embed", "bias", "sink")):
            drawn /= np.sqrt(shape[-1])
        weights[name] = drawn
    return weights


def attention_layer(config: ModelConfig, kind: Kind, weights: Mapping[str, ArrayLike]) -> AttentionWeights:
    """One attention layer of that kind from its weights, named as `attention_shapes` names them.

    Raises ValueError for a weight that is missing, unknown or of another shape.
    """
    arrays = _checked(weights, attention_shapes(config, kind))
    own = {name: arrays[name] for name in ("q_a", "q_norm", "q_b", "kv", "kv_norm", "sink", "o_a", "o_b")}
    compressor = _compressor("compressor", config, kind, arrays) if kind != "sliding" else None
    indexer = None
    if kind == "csa":
        keys = _compressor("indexer.compressor", config, kind, arrays)
        indexer = IndexerWeights(arrays["indexer.q_b"], arrays["indexer.weights"], keys)
    return AttentionWeights(
        **own,
        kind=kind,
        window=config.window,
        rope_width=config.rope_width,
        groups=config.o_groups,
        compressor=compressor,
        indexer=indexer,
        topk=config.topk if kind == "csa" else 0,
        eps=config.eps,
    )


@dataclass(frozen=True, eq=False)
class Block:
    """One layer of the residual stream: `attn_norm[H]`, attention, `mlp_norm[H]`, `gate` and `up[I, H]`, `down[H, I]`."""

    attn_norm: Array
    attention: AttentionWeights
    mlp_norm: Array
    gate: Array
    up: Array
    down: Array
    eps: float

    def __call__(self, hidden: Array) -> Array:
        """The stream `[T, H]` after this layer."""
        attended = hidden + self.attention(rms_norm(hidden, self.attn_norm, self.eps))
        return attended + self.mlp(rms_norm(attended, self.mlp_norm, self.eps))

    def mlp(self, x: Array) -> Array:
        """SwiGLU of `x[T, H]`: `down (silu(gate x) * up x)` with `silu(a) = a / (1 + exp(-a))`."""
        gate = x @ self.gate.T
        mixed: Array = (gate / (1.0 + np.exp(-gate)) * (x @ self.up.T)) @ self.down.T
        return mixed


class Model:
    """A model from its configuration and its weights, named as `shapes` names them.

    Raises ValueError for a weight that is missing, unknown or of another shape.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, ArrayLike]) -> None:
        arrays = _checked(weights, shapes(config))
        self.config = config
        self.embed, self.norm, self.head = arrays["embed"], arrays["norm"], arrays["head"]
        self.blocks = [self._block(index, kind, arrays) for index, kind in enumerate(config.schedule)]

    def hidden(self, tokens: Sequence[int]) -> Array:
        """The stream `[T, H]` after the last layer and before the final norm, from all T tokens of a sequence.

        Raises ValueError for a token that is not in the vocabulary.
        """
        ids = np.asarray(tokens, dtype=np.int64)
        strangers = ids[(ids < 0) | (ids >= self.config.vocab)]
        if ids.ndim != 1 or strangers.size:
            raise ValueError(
                f"tokens have shape {ids.shape} and hold {strangers[:5].tolist()}; they should be [T], each from 0 "
                f"to {self.config.vocab - 1}: pass one sequence, all its tokens from the first"
            )
        stream: Array = self.embed[ids]
        for block in self.blocks:
            stream = block(stream)
        return stream

    def logits(self, tokens: Sequence[int]) -> Array:
        """Logits of the next token after each of T tokens, `[T, V]`; no row depends on a later token."""
        logits: Array = rms_norm(self.hidden(tokens), self.norm, self.config.eps) @ self.head.T
        return logits

    def greedy(self, tokens: Sequence[int], n: int) -> list[int]:
        """The n tokens that follow, each the likeliest; of equal logits the lower token.

        Raises ValueError without a token to start from.
        """
        if not len(tokens):
            raise ValueError("there is no token to continue; pass a sequence of at least one")
        sequence = [int(token) for token in tokens]
        for _ in range(n):
            sequence.append(int(np.argmax(self.logits(sequence)[-1])))
        return sequence[len(tokens) :]

    def _block(self, index: int, kind: Kind, arrays: Mapping[str, Array]) -> Block:
        start = f"layers.{index}."
        own = {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
        attention = {
            name.removeprefix("attn."): array for name, array in own.items() if name.startswith("attn.")
        }
        return Block(
            attn_norm=own["attn_norm"],
            attention=attention_layer(self.config, kind, attention),
            mlp_norm=own["mlp_norm"],
            gate=own["gate"],
            up=own["up"],
            down=own["down"],
            eps=self.config.eps,
        )


def _compressor_shapes(start: str, config: ModelConfig, kind: Kind, d: int) -> dict[str, Shape]:
    width = SPANS[kind] * d
    return {
        f"{start}.wkv": (width, config.hidden_width),
        f"{start}.wgate": (width, config.hidden_width),
        f"{start}.bias": (config.ratio(kind), width),
        f"{start}.gamma": (d,),
    }


def _compressor(
    start: str, config: ModelConfig, kind: Kind, arrays: Mapping[str, Array]
) -> CompressorWeights:
    theta, yarn = ROPES[kind]
    return CompressorWeights(
        *(arrays[f"{start}.{name}"] for name in ("wkv", "wgate", "bias", "gamma")),
        ratio=config.ratio(kind),
        span=SPANS[kind],
        rope_width=config.rope_width,
        theta=theta,
        yarn=yarn,
        eps=config.eps,
    )


def _checked(weights: Mapping[str, ArrayLike], expected: Mapping[str, Shape]) -> dict[str, Array]:
    """The weights as float64, when they are exactly those that were expected."""
    missing, unknown = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    if missing or unknown:
        raise ValueError(
            f"weights {missing[:5]} are missing and {unknown[:5]} are not known; the names should be those of the "
            "configuration's shapes: check schedule and prefixes"
        )
    arrays = {name: np.asarray(weights[name], dtype=np.float64) for name in expected}
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise ValueError(
                f"{name} has shape {arrays[name].shape}; it should be {shape} by the configuration: check for a "
                "transpose"
            )
    return arrays
