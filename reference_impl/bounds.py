"""How far float arithmetic may stray from the reference, derived beside every value.

A correct implementation in a format of unit roundoff u stays within these bounds, whatever its order of
summation, blocking or fused multiply-adds; so a comparison needs no tuned tolerance. First-order error
analysis, in the letters of `reference_impl.compressor`: T tokens, H hidden, d head size, S slots of a block.

With x the hidden state, g = z + bias the gate logits, p the softmax over slots, v the pooled value, s its mean
square, y the block, and c a factor for sums (their error grows far slower than their length in practice, and
c = 8 is what the accumulators of common GEMMs stay below):

    e_kv  = c u |x| |Wkv|                                       the payload's error, channel by channel
    e_g   = c u |x| |Wgate| + 2 u |g| + u |g - max g|
    rho   = e_g + sum_j p_j e_g,j + (8 + S) u                   relative error of a slot's weight
    e_v   = sum p e_kv + sum p |kv| rho + (S + 1) u sum p |kv|
    e_s   = mean(2 |v| e_v) + (d + 3) u s
    e_y   = |gamma| e_v / sqrt(s) + |y| (e_s / (2 s) + 4 u)     then turned with the block, + 4 u |y|
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reference_impl.compressor import ABSENT, CompressorWeights, block_tokens, softmax_over_slots
from reference_impl.rope import inverse_frequencies

Array = NDArray[np.float64]

FLOAT32, FLOAT64, BFLOAT16 = 2.0**-24, 2.0**-53, 2.0**-8
"""Unit roundoff of float32 and float64, and of a value that is rounded to bfloat16 once (8 bits, to nearest)."""

_SUM = 8


@dataclass(frozen=True)
class Bounded:
    """A float64 value and, of the same shape, how far a correct implementation's may be from it."""

    value: Array
    bound: Array


def payload(weights: CompressorWeights, hidden: ArrayLike, u: float) -> tuple[Bounded, Bounded]:
    """Payload `(kv, z)` of `hidden[T, H]`, each `[T, sp*d]`, as a GEMM of unit roundoff u computes it."""
    kv, z = weights.project(hidden)
    magnitude = np.abs(np.asarray(hidden, dtype=np.float64))
    return (
        Bounded(kv, _SUM * u * (magnitude @ np.abs(weights.wkv).T)),
        Bounded(z, _SUM * u * (magnitude @ np.abs(weights.wgate).T)),
    )


def block(
    weights: CompressorWeights, kv: Bounded, z: Bounded, j: int, u: float, *, pool_is_exact: bool = False
) -> Bounded:
    """Finished block j `[d]` of a payload that is itself inexact; exact bits have bounds of zero.

    pool_is_exact: payload and weights are such that no format rounds before the norm, so that e_v is 0.
    Raises ValueError for a block that the payload's T tokens have not completed.
    """
    logits, values = weights.window(kv.value, z.value, j)
    e_z, e_kv = _window_of_bounds(weights, kv, z, j)
    weight = softmax_over_slots(logits)
    there = np.isfinite(logits)
    g = np.where(there, logits, 0.0)
    e_g = np.where(there, e_z + 2 * u * np.abs(g) + u * np.abs(g - logits.max(axis=0)), 0.0)
    slots, d = logits.shape
    rho = e_g + (weight * e_g).sum(axis=0) + (8 + slots) * u
    mass = (weight * np.abs(values)).sum(axis=0)
    e_v = (weight * e_kv).sum(axis=0) + (weight * np.abs(values) * rho).sum(axis=0) + (slots + 1) * u * mass
    v = (weight * values).sum(axis=0)
    if pool_is_exact:
        e_v = np.zeros(d)
    s = np.mean(v**2) + weights.eps
    e_s = np.mean(2 * np.abs(v) * e_v) + (d + 3) * u * s
    normed = weights.gamma * v / np.sqrt(s)
    e_y = np.abs(weights.gamma) * e_v / np.sqrt(s) + np.abs(normed) * (e_s / (2 * s) + 4 * u)
    value = weights.finish(v, j)
    return Bounded(value, _turned(weights, e_y, j) + 4 * u * _turned(weights, np.abs(normed), j))


def blocks(weights: CompressorWeights, hidden: ArrayLike, u: float) -> Bounded:
    """All completed blocks `[n, d]` of the history `hidden[T, H]`, end to end in a format of unit roundoff u."""
    kv, z = payload(weights, hidden, u)
    each = [block(weights, kv, z, j, u) for j in range(len(kv.value) // weights.ratio)]
    shape = len(each), weights.d
    return Bounded(
        np.array([b.value for b in each], dtype=np.float64).reshape(shape),
        np.array([b.bound for b in each], dtype=np.float64).reshape(shape),
    )


def exact(values: ArrayLike) -> Bounded:
    """Values as they were stored, bit by bit: nothing before them counts as error."""
    values = np.asarray(values, dtype=np.float64)
    return Bounded(values, np.zeros_like(values))


def rounded(value: Bounded, unit: float) -> Bounded:
    """The same value, stored in a narrower format of unit roundoff `unit`."""
    return Bounded(value.value, value.bound + unit * (np.abs(value.value) + value.bound))


def share(found: ArrayLike, right: Bounded) -> float:
    """The largest part of its bound that any value of `found` uses; above 1 it is no rounding.

    NaN counts as infinite, and so does a difference where the bound is zero. No values use nothing.
    """
    found = np.asarray(found, dtype=np.float64)
    if found.shape != right.value.shape:
        raise ValueError(
            f"found has shape {found.shape}; it should be {right.value.shape}, that of the reference's values"
        )
    off = np.abs(found - right.value)
    used = np.divide(off, right.bound, out=np.where(off == 0, 0.0, np.inf), where=right.bound > 0)
    return float(np.where(np.isnan(used), np.inf, used).max(initial=0.0))


def margin(weights: CompressorWeights, kv: ArrayLike, z: ArrayLike, j: int, right: Bounded) -> float:
    """How many times its bound block j of a payload `[T, sp*d]` is away from the nearest wrong block.

    Wrong blocks are those with one token's payload in place of its neighbour's (token t holds t-1, token 0 holds
    1), and the one whose position bias is off by one slot. Below 1 some of them passes for right.
    """
    kv, z = np.asarray(kv, dtype=np.float64), np.asarray(z, dtype=np.float64)
    logits, values = weights.window(kv, z, j)
    pooled = [_with_neighbours(weights, kv, z, j, logits, values)]
    if weights.ratio > 1:
        shifted = np.roll(weights.bias, 1, axis=0)
        own = [token for token in block_tokens(j, weights.ratio, weights.span) if token != ABSENT]
        moved = logits.copy()
        for slot, token in enumerate(own, start=len(logits) - len(own)):
            channels = _channels(weights, token, j)
            moved[slot] = z[token, channels] + shifted[token % weights.ratio, channels]
        pooled.append((softmax_over_slots(moved) * values).sum(axis=0)[np.newaxis])
    wrong = weights.finish(np.concatenate(pooled), j)
    return float((np.abs(wrong - right.value) / right.bound).max(axis=-1).min())


def _with_neighbours(
    weights: CompressorWeights, kv: Array, z: Array, j: int, logits: Array, values: Array
) -> Array:
    """Pooled values `[tokens, d]`, one for each token of block j that its neighbour stands in for."""
    top = logits.max(axis=0)
    mass = np.exp(logits - top)
    total, weighted = mass.sum(axis=0), (mass * values).sum(axis=0)
    pooled = []
    for slot, token in enumerate(block_tokens(j, weights.ratio, weights.span)):
        if token == ABSENT:
            continue
        other, channels = token - 1 if token else 1, _channels(weights, token, j)
        stranger = np.exp(z[other, channels] + weights.bias[token % weights.ratio, channels] - top)
        new = weighted - mass[slot] * values[slot] + stranger * kv[other, channels]
        pooled.append(new / (total - mass[slot] + stranger))
    return np.array(pooled)


def _channels(weights: CompressorWeights, token: int, j: int) -> slice:
    """The channels that a token gives to block j."""
    series = weights.span - 1 - (j - token // weights.ratio)
    return slice(series * weights.d, (series + 1) * weights.d)


def _window_of_bounds(weights: CompressorWeights, kv: Bounded, z: Bounded, j: int) -> tuple[Array, Array]:
    """The payload's errors in the slots of block j, each `[S, d]`; an absent slot has none."""
    bare = CompressorWeights(
        weights.wkv, weights.wgate, np.zeros_like(weights.bias), weights.gamma, ratio=weights.ratio,
        span=weights.span, rope_width=weights.rope_width, theta=weights.theta, yarn=weights.yarn, eps=weights.eps,
    )  # fmt: skip
    e_z, e_kv = bare.window(kv.bound, z.bound, j)
    return np.where(np.isfinite(e_z), e_z, 0.0), e_kv


def _turned(weights: CompressorWeights, error: Array, j: int) -> Array:
    """What an error of each channel can come to after the rotation of block j: both of a pair contribute."""
    frequency = inverse_frequencies(weights.rope_width, weights.theta, weights.yarn)
    angle = j * weights.ratio * frequency
    turned = error.copy()
    start = weights.d - 2 * frequency.size
    real, imaginary = error[start::2], error[start + 1 :: 2]
    turned[start::2] = real * np.abs(np.cos(angle)) + imaginary * np.abs(np.sin(angle))
    turned[start + 1 :: 2] = real * np.abs(np.sin(angle)) + imaginary * np.abs(np.cos(angle))
    return turned
