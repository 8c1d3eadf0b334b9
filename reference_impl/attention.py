"""The attention of one DeepSeek-V4 layer for one sequence, stateless: the whole history goes in.

Shape words: T tokens, H hidden size, N query heads of width d, one key and value head that are the same tensor,
n completed blocks of r tokens, G groups of the output projection. All arrays are float64; a token's position is its
index, from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reference_impl.compressor import DEEPSEEK_V4_YARN, CompressorWeights, rms_norm
from reference_impl.indexer import IndexerWeights, picks, reached
from reference_impl.rope import Yarn, inverse_frequencies, rotate

Array = NDArray[np.float64]
Kind = Literal["sliding", "csa", "hca"]

SPANS: dict[Kind, int] = {"csa": 2, "hca": 1}
"""Groups of tokens that one block of a compressed layer pools."""

ROPES: dict[Kind, tuple[float, Yarn | None]] = {
    "sliding": (10000.0, None),
    "csa": (160000.0, DEEPSEEK_V4_YARN),
    "hca": (160000.0, DEEPSEEK_V4_YARN),
}
"""Theta and stretching by kind of layer: for raw keys, queries and outputs the same as for blocks."""


@dataclass(frozen=True)
class Visible:
    """What one query attends to: raw tokens by position and blocks by index, both ascending."""

    raw: range
    blocks: tuple[int, ...]


def visible(
    position: int,
    kind: Kind,
    window: int,
    ratio: int = 0,
    select: Callable[[int, range], Iterable[int]] | None = None,
) -> Visible:
    """What the query at `position` attends to in a layer of `kind`, in closed form.

    Source: DeepSeek-V4, token j is visible iff `position - window < j <= position`, block b iff
    `b < floor((position + 1) / ratio)`: the query that completes a block sees it. A sliding layer has no blocks and
    takes no ratio. `select(position, blocks)` is the choice of a CSA layer among its visible blocks; without it, and
    in an HCA layer, all of them are attended to.

    Raises ValueError for a negative position, a window below 1, a ratio that does not fit the kind, and a selection
    that is outside the visible blocks or not the CSA layer's.
    """
    if position < 0 or window < 1:
        raise ValueError(
            f"position is {position} and window {window}; they should be at least 0 and 1: positions are absolute "
            "and a query sees at least itself"
        )
    if (kind == "sliding") != (ratio == 0) or ratio < 0:
        raise ValueError(
            f"ratio is {ratio} in a layer of kind {kind!r}; a compressed layer has one of at least 1, a sliding "
            "layer has none"
        )
    raw = range(max(position - window + 1, 0), position + 1)
    blocks = range((position + 1) // ratio) if ratio else range(0)
    if select is None:
        return Visible(raw, tuple(blocks))
    if kind != "csa":
        raise ValueError(f"a selection was given to a layer of kind {kind!r}; only CSA layers select")
    chosen = tuple(sorted(select(position, blocks)))
    if len(set(chosen)) < len(chosen) or not set(chosen) <= set(blocks):
        raise ValueError(
            f"the selection at position {position} is {list(chosen)}; it should be some of the {len(blocks)} "
            "visible blocks, each at most once and without those that say that there was none"
        )
    return Visible(raw, chosen)


def attend(query: ArrayLike, keys: ArrayLike, sink: ArrayLike) -> Array:
    """What one query `[N, d]` reads from `keys[m, d]`, which are the values as well: `[N, d]`.

    Source: DeepSeek-V4, one softmax over all keys, raw and compressed, of `q . k / sqrt(d)`, with a learned logit
    `sink[N]` per head that counts in the denominator only. Without keys that is zero.
    Raises ValueError when a shape does not fit the others.
    """
    query, keys, sink = (np.asarray(each, dtype=np.float64) for each in (query, keys, sink))
    if query.ndim != 2 or keys.ndim != 2 or keys.shape[1] != query.shape[1] or sink.shape != query.shape[:1]:
        raise ValueError(
            f"query has shape {query.shape}, keys {keys.shape} and sink {sink.shape}; they should be [heads, d], "
            "[m, d] and [heads]: pass one query of one sequence"
        )
    logits = query @ keys.T / np.sqrt(query.shape[1])  # [N, m]
    top = np.maximum(logits.max(axis=1, initial=-np.inf), sink)
    mass = np.exp(logits - top[:, np.newaxis])
    total = mass.sum(axis=1) + np.exp(sink - top)
    read: Array = (mass / total[:, np.newaxis]) @ keys
    return read


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """Weights of one attention layer, and the function of one sequence that they define.

    `q_a[q_lora, H]`, `q_norm[q_lora]` and `q_b[N*d, q_lora]` make the queries; `kv[d, H]` and `kv_norm[d]` the one
    head that is key and value; `sink[N]`; `o_a[G*o_lora, N*d/G]` projects each group of heads by itself and
    `o_b[H, G*o_lora]` mixes them. A compressed layer has a `compressor`, a CSA layer an `indexer` with `topk` picks as
    well. Anything array-like is taken and held as float64.

    Raises ValueError when a shape or a part does not fit the others.
    """

    q_a: Array
    q_norm: Array
    q_b: Array
    kv: Array
    kv_norm: Array
    sink: Array
    o_a: Array
    o_b: Array
    kind: Kind = field(kw_only=True)
    window: int = field(kw_only=True)
    rope_width: int = field(kw_only=True)
    groups: int = field(kw_only=True)
    compressor: CompressorWeights | None = field(kw_only=True, default=None)
    indexer: IndexerWeights | None = field(kw_only=True, default=None)
    topk: int = field(kw_only=True, default=0)
    eps: float = field(kw_only=True, default=1e-6)

    def __post_init__(self) -> None:
        for name in ("q_a", "q_norm", "q_b", "kv", "kv_norm", "sink", "o_a", "o_b"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        self._require_shapes()
        self._require_parts()
        visible(0, self.kind, self.window, self.ratio)

    @property
    def heads(self) -> int:
        """Query heads."""
        return int(self.sink.shape[0])

    @property
    def d(self) -> int:
        """Channels of a head."""
        return int(self.kv_norm.shape[0])

    @property
    def hidden_width(self) -> int:
        """Channels of one hidden token."""
        return int(self.q_a.shape[1])

    @property
    def ratio(self) -> int:
        """Tokens of a block; 0 in a sliding layer."""
        return self.compressor.ratio if self.compressor else 0

    def residual(self, hidden: ArrayLike) -> Array:
        """The normed low-rank queries `[T, q_lora]` of `hidden[T, H]`, which the indexer shares."""
        return rms_norm(self._history(hidden) @ self.q_a.T, self.q_norm, self.eps)

    def queries(self, hidden: ArrayLike) -> Array:
        """The queries `[T, N, d]` of `hidden[T, H]`, rotated at their positions.

        Source: DeepSeek-V4: low rank, norm, up projection, then a norm of each head that has no scale.
        """
        up = self.residual(hidden) @ self.q_b.T
        heads = up.reshape(len(up), self.heads, self.d)
        return self._rotate(rms_norm(heads, np.ones(self.d), self.eps), np.arange(len(heads))[:, np.newaxis])

    def keys(self, hidden: ArrayLike) -> Array:
        """The raw keys, which are the values as well, `[T, d]` of `hidden[T, H]`, rotated at their positions."""
        normed = rms_norm(self._history(hidden) @ self.kv.T, self.kv_norm, self.eps)
        return self._rotate(normed, np.arange(len(normed)))

    def blocks(self, hidden: ArrayLike) -> Array:
        """The completed blocks `[n, d]` of `hidden[T, H]`; none in a sliding layer."""
        return self.compressor.blocks(hidden) if self.compressor else np.zeros((0, self.d))

    def attended(self, hidden: ArrayLike) -> list[Visible]:
        """What each of the T queries of `hidden[T, H]` attends to."""
        hidden = self._history(hidden)
        select = self._selection(hidden)
        return [visible(t, self.kind, self.window, self.ratio, select) for t in range(len(hidden))]

    def read(self, hidden: ArrayLike) -> Array:
        """What the heads read, `[T, N, d]`, turned back by each query's position, before the output projection.

        Keys are values, so a value arrives turned by its own position; turned back by the query's, it depends on
        how far apart they are and on nothing else.
        """
        queries, keys, blocks = self.queries(hidden), self.keys(hidden), self.blocks(hidden)
        read = [
            attend(query, np.concatenate([keys[list(seen.raw)], blocks[list(seen.blocks)]]), self.sink)
            for query, seen in zip(queries, self.attended(hidden), strict=True)
        ]
        stacked = np.array(read, dtype=np.float64).reshape(queries.shape)
        return self._rotate(stacked, -np.arange(len(stacked))[:, np.newaxis])

    def output(self, read: ArrayLike) -> Array:
        """The layer's output `[T, H]` of what the heads read, `[T, N, d]`.

        Source: DeepSeek-V4: consecutive heads form G groups, each is projected by its own rows of `o_a`, and `o_b`
        mixes the groups.
        """
        read = np.asarray(read, dtype=np.float64)
        grouped = read.reshape(len(read), self.groups, self.heads * self.d // self.groups)
        per_group = self.o_a.reshape(self.groups, -1, grouped.shape[2])
        low = [grouped[:, group] @ per_group[group].T for group in range(self.groups)]
        output: Array = np.concatenate(low, axis=1) @ self.o_b.T
        return output

    def __call__(self, hidden: ArrayLike) -> Array:
        """The layer's output `[T, H]` of the whole history `hidden[T, H]`.

        Raises ValueError unless hidden is `[T, H]`.
        """
        return self.output(self.read(hidden))

    def _selection(self, hidden: Array) -> Callable[[int, range], list[int]] | None:
        """A CSA layer's choice among the visible blocks of each query; others choose nothing."""
        if self.indexer is None:
            return None
        scores = self.indexer.scores(hidden, self.residual(hidden))
        return lambda position, blocks: reached(picks(scores[position], len(blocks), self.topk))

    def _rotate(self, x: Array, position: ArrayLike) -> Array:
        return rotate(x, position, inverse_frequencies(self.rope_width, *ROPES[self.kind]))

    def _history(self, hidden: ArrayLike) -> Array:
        hidden = np.asarray(hidden, dtype=np.float64)
        if hidden.ndim != 2 or hidden.shape[1] != self.hidden_width:
            raise ValueError(
                f"hidden has shape {hidden.shape}; it should be [T, {self.hidden_width}]: pass one sequence, all "
                "its tokens from 0, without a batch axis"
            )
        return hidden

    def _require_shapes(self) -> None:
        one = {"q_norm": self.q_norm, "kv_norm": self.kv_norm, "sink": self.sink}
        two = {"q_a": self.q_a, "q_b": self.q_b, "kv": self.kv, "o_a": self.o_a, "o_b": self.o_b}
        for names, axes in ((one, 1), (two, 2)):
            for name, array in names.items():
                if array.ndim != axes:
                    raise ValueError(
                        f"{name} has shape {array.shape}; it should have {axes} axes: pass one layer's"
                    )
        if self.groups < 1 or self.heads % self.groups or self.o_a.shape[0] % self.groups:
            raise ValueError(
                f"groups is {self.groups}; it should divide the {self.heads} heads and the {self.o_a.shape[0]} rows "
                "of o_a"
            )
        q_lora = self.q_norm.shape[0]
        for name, array, expected in (
            ("q_a", self.q_a, (q_lora, self.hidden_width)),
            ("q_b", self.q_b, (self.heads * self.d, q_lora)),
            ("kv", self.kv, (self.d, self.hidden_width)),
            ("o_a", self.o_a, (self.o_a.shape[0], self.heads * self.d // self.groups)),
            ("o_b", self.o_b, (self.hidden_width, self.o_a.shape[0])),
        ):
            if array.shape != expected:
                raise ValueError(
                    f"{name} has shape {array.shape}; it should be {expected} for {self.heads} heads (from sink) of "
                    f"width {self.d} (from kv_norm), q_lora {q_lora} (from q_norm), H={self.hidden_width} (from q_a) "
                    f"and {self.groups} groups: check for a transpose"
                )
        if self.rope_width > self.d:
            raise ValueError(
                f"rope_width is {self.rope_width}; it should be at most the head width, {self.d}"
            )

    def _require_parts(self) -> None:
        if self.kind not in ROPES:
            raise ValueError(f"kind is {self.kind!r}; it should be one of {', '.join(ROPES)}")
        if (self.compressor is not None) != (self.kind != "sliding"):
            raise ValueError(
                f"a layer of kind {self.kind!r} was given {'a' if self.compressor else 'no'} compressor; CSA and HCA "
                "layers have one, sliding layers do not"
            )
        if (self.indexer is not None) != (self.kind == "csa") or (self.topk > 0) != (self.kind == "csa"):
            raise ValueError(
                f"a layer of kind {self.kind!r} was given {'an' if self.indexer else 'no'} indexer and topk "
                f"{self.topk}; CSA layers have one and a topk of at least 1, others have neither"
            )
        if self.compressor is None:
            return
        parts = [("compressor", self.compressor)]
        if self.indexer:
            parts.append(("indexer's compressor", self.indexer.compressor))
            if self.indexer.q_b.shape[1] != self.q_norm.shape[0]:
                raise ValueError(
                    f"the indexer's q_b has shape {self.indexer.q_b.shape}; it should have q_lora="
                    f"{self.q_norm.shape[0]} columns, since it shares the attention's low-rank queries"
                )
        for name, part in parts:
            found = (part.hidden_width, part.ratio, part.span, part.rope_width, part.theta, part.yarn)
            right = (self.hidden_width, self.ratio, SPANS[self.kind], self.rope_width, *ROPES[self.kind])
            if found != right:
                raise ValueError(
                    f"the {name} has H, ratio, span, rope width, theta and YaRN {found}; they should be {right}, "
                    "those of its layer"
                )
        if self.compressor.d != self.d:
            raise ValueError(
                f"the compressor's blocks have {self.compressor.d} channels; a head has {self.d}"
            )
