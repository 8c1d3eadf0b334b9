"""The DeepSeek-V4 compressor for one sequence, stateless: every block is recomputed from the whole history.

Shape words: T tokens, H hidden size, d head size, r ratio (tokens per block), sp span (2 for CSA and its
indexer, 1 for HCA), n = floor(T / r) completed blocks, S = sp * r slots of one block. All arrays are float64.

The payload of a token is the pair (kv, z): projected value and gate, without the position bias.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reference_impl.rope import Yarn, inverse_frequencies, rotate

Array = NDArray[np.float64]

ABSENT = -1
DEEPSEEK_V4_YARN = Yarn()


@dataclass(frozen=True, eq=False)
class CompressorWeights:
    """Weights and geometry of one compressor layer, and the functions of one sequence that they define.

    `wkv` and `wgate` are `[sp*d, H]`, `bias` is the learned position bias `[r, sp*d]`, `gamma` the norm's
    scale `[d]`. Anything array-like is taken and held as float64. `theta` and `yarn` choose the rope
    frequencies over the last `rope_width` channels (`yarn=None`: unstretched).

    With span 2 the first d channels of a token (series Ca) serve the next block, the last d (series Cb) its
    own.

    Raises ValueError when a shape or the geometry does not fit the others.
    """

    wkv: Array
    wgate: Array
    bias: Array
    gamma: Array
    ratio: int = field(kw_only=True)
    span: int = field(kw_only=True)
    rope_width: int = field(kw_only=True)
    theta: float = field(kw_only=True, default=160000.0)
    yarn: Yarn | None = field(kw_only=True, default=DEEPSEEK_V4_YARN)
    eps: float = field(kw_only=True, default=1e-6)

    def __post_init__(self) -> None:
        for name in ("wkv", "wgate", "bias", "gamma"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        _require_geometry(self.ratio, self.span)
        if self.gamma.ndim != 1 or self.wkv.ndim != 2:
            raise ValueError(
                f"gamma has shape {self.gamma.shape} and wkv {self.wkv.shape}; they should be [d] and "
                "[sp*d, H]: pass one layer, without a batch axis"
            )
        width = self.span * self.d
        for name, array, expected in (
            ("wkv", self.wkv, (width, self.hidden_width)),
            ("wgate", self.wgate, (width, self.hidden_width)),
            ("bias", self.bias, (self.ratio, width)),
        ):
            if array.shape != expected:
                raise ValueError(
                    f"{name} has shape {array.shape}; it should be {expected} for span {self.span}, ratio "
                    f"{self.ratio}, d={self.d} (from gamma) and H={self.hidden_width} (from wkv): "
                    "check for a transpose"
                )
        if self.rope_width > self.d:
            raise ValueError(
                f"rope_width is {self.rope_width}; it should be at most d={self.d}: pass the whole gamma"
            )
        inverse_frequencies(self.rope_width, self.theta, self.yarn)

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        *,
        hidden_width: int,
        d: int,
        ratio: int,
        span: int,
        rope_width: int,
        theta: float = 160000.0,
        yarn: Yarn | None = DEEPSEEK_V4_YARN,
    ) -> CompressorWeights:
        """Weights under which a standard normal history has values and gates of about unit size.

        The position bias is never left at zero, where a wrong bias index would be invisible.
        """
        width = span * d
        return cls(
            wkv=rng.standard_normal((width, hidden_width)) / np.sqrt(hidden_width),
            wgate=rng.standard_normal((width, hidden_width)) / np.sqrt(hidden_width),
            bias=rng.standard_normal((ratio, width)),
            gamma=1.0 + 0.25 * rng.standard_normal(d),
            ratio=ratio,
            span=span,
            rope_width=rope_width,
            theta=theta,
            yarn=yarn,
        )

    @property
    def d(self) -> int:
        """Channels of one block."""
        return int(self.gamma.shape[0])

    @property
    def hidden_width(self) -> int:
        """Channels of one hidden token."""
        return int(self.wkv.shape[1])

    def project(self, hidden: ArrayLike) -> tuple[Array, Array]:
        """The payload `(kv[T, sp*d], z[T, sp*d])` of `hidden[T, H]`; z is without the position bias.

        Source: DeepSeek-V4 compressor, `kv_t = Wkv h_t` and `z_t = Wgate h_t`, no bias.
        Raises ValueError unless hidden is `[T, H]`.
        """
        hidden = np.asarray(hidden, dtype=np.float64)
        if hidden.ndim != 2 or hidden.shape[1] != self.hidden_width:
            raise ValueError(
                f"hidden has shape {hidden.shape}; it should be [T, {self.hidden_width}]: pass one sequence, "
                "all its tokens from 0, without a batch axis"
            )
        return hidden @ self.wkv.T, hidden @ self.wgate.T

    def window(self, kv: ArrayLike, z: ArrayLike, j: int) -> tuple[Array, Array]:
        """Gate logits and values of block j's slots, `(logits[S, d], values[S, d])`, oldest slot first.

        Source: DeepSeek-V4 compressor, `g_t = z_t + bias[t mod r]`. Span 1: the block's own r tokens. Span 2:
        the previous group's Ca halves, then the own group's Cb halves; block 0 has no predecessor, its
        first r slots hold value 0 and logit -inf (weight exactly 0, not a logit of 0).

        Only the payload of the block's own tokens is read; kv and z are `[T, sp*d]` by absolute token.
        Raises ValueError for other shapes and for a block that the T tokens have not completed.
        """
        kv, z = self._payload(kv, z)
        completed = len(kv) // self.ratio
        if not 0 <= j < completed:
            raise ValueError(
                f"block {j} was asked for; it should be below {completed}, the blocks that {len(kv)} tokens "
                f"complete at ratio {self.ratio}, and not negative: pass the tokens up to the block's last"
            )
        own = self.span - 1  # which d channels a token gives to its own group
        logits = np.full((self.span * self.ratio, self.d), -np.inf)
        values = np.zeros((self.span * self.ratio, self.d))
        for slot, token in enumerate(block_tokens(j, self.ratio, self.span)):
            if token == ABSENT:
                continue
            series = own - (j - token // self.ratio)  # the group before gives the channels before
            channels = slice(series * self.d, (series + 1) * self.d)
            logits[slot] = z[token, channels] + self.bias[token % self.ratio, channels]
            values[slot] = kv[token, channels]
        return logits, values

    def pool(self, kv: ArrayLike, z: ArrayLike, j: int) -> Array:
        """Pooled value of block j before the norm, `[d]`, from a payload `[T, sp*d]` by absolute token.

        Source: DeepSeek-V4 compressor, `p_c = sum_s softmax_s(logit_{s,c}) value_{s,c}`, channel by channel.
        """
        logits, values = self.window(kv, z, j)
        pooled: Array = (softmax_over_slots(logits) * values).sum(axis=0)
        return pooled

    def finish(self, pooled: ArrayLike, j: int) -> Array:
        """Norm and rope of block j's pooled value, `[d]` to `[d]`: the row that is cached.

        Source: DeepSeek-V4 compressor, RMSNorm, then RoPE on the last `rope_width` channels at position
        `j * r`, the first token of the block's own group (with span 2 as well).
        """
        frequency = inverse_frequencies(self.rope_width, self.theta, self.yarn)
        return rotate(rms_norm(pooled, self.gamma, self.eps), j * self.ratio, frequency)

    def block_of_payload(self, kv: ArrayLike, z: ArrayLike, j: int) -> Array:
        """Finished block j, `[d]`, from a payload `[T, sp*d]`, such as one that an implementation stored."""
        return self.finish(self.pool(kv, z, j), j)

    def block(self, hidden: ArrayLike, j: int) -> Array:
        """Finished block j, `[d]`, from the whole history `hidden[T, H]`."""
        return self.block_of_payload(*self.project(hidden), j)

    def pooled(self, hidden: ArrayLike) -> Array:
        """Pooled values before the norm of all completed blocks, `[n, d]`, from `hidden[T, H]`."""
        kv, z = self.project(hidden)
        rows = [self.pool(kv, z, j) for j in range(len(kv) // self.ratio)]
        return np.array(rows, dtype=np.float64).reshape(len(rows), self.d)

    def blocks(self, hidden: ArrayLike) -> Array:
        """All completed blocks, `comp[n, d]`, from the whole history `hidden[T, H]`."""
        rows = [self.finish(pooled, j) for j, pooled in enumerate(self.pooled(hidden))]
        return np.array(rows, dtype=np.float64).reshape(len(rows), self.d)

    def _payload(self, kv: ArrayLike, z: ArrayLike) -> tuple[Array, Array]:
        kv, z = np.asarray(kv, dtype=np.float64), np.asarray(z, dtype=np.float64)
        width = self.span * self.d
        if kv.ndim != 2 or kv.shape[1] != width or z.shape != kv.shape:
            raise ValueError(
                f"kv has shape {kv.shape} and z {z.shape}; both should be [T, {width}]: pass one sequence by "
                "absolute token, all sp*d channels"
            )
        return kv, z


def softmax_over_slots(logits: ArrayLike) -> Array:
    """Softmax of `logits[S, d]` over the slots, each channel by itself; a slot at -inf weighs exactly 0."""
    logits = np.asarray(logits, dtype=np.float64)
    weights = np.exp(logits - logits.max(axis=0))
    normalised: Array = weights / weights.sum(axis=0)
    return normalised


def rms_norm(x: ArrayLike, gamma: ArrayLike, eps: float) -> Array:
    """`gamma * x / sqrt(mean(x^2) + eps)` over the last axis of `x[..., d]`, gamma `[d]`."""
    x = np.asarray(x, dtype=np.float64)
    gamma = np.asarray(gamma, dtype=np.float64)
    normed: Array = gamma * x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps)
    return normed


def block_tokens(j: int, ratio: int, span: int) -> list[int]:
    """Absolute token of each of block j's `span * ratio` slots, oldest first; -1 where there is none.

    Source: DeepSeek-V4 compressor, block j pools those of tokens `(j+1-sp)*r .. (j+1)*r - 1` that exist.
    Raises ValueError for a negative block or an impossible geometry.
    """
    _require_geometry(ratio, span)
    if j < 0:
        raise ValueError(f"block {j} was asked for; blocks count from 0")
    tokens = range((j + 1 - span) * ratio, (j + 1) * ratio)
    return [token if token >= 0 else ABSENT for token in tokens]


def _require_geometry(ratio: int, span: int) -> None:
    if ratio < 1 or span not in (1, 2):
        raise ValueError(
            f"ratio is {ratio} and span {span}; they should be at least 1, and 1 (HCA) or 2 (CSA, indexer): "
            "correct the layer's geometry"
        )
