"""How far a right block may be off in float32: a bound derived from the block's own values, in float64.

u is half a unit in the last place of float32, c what a product of H terms may lose in one summation order or
another. A batch and a row alone may each be off by the bound, so two of them are compared within twice of it.
"""

from __future__ import annotations

import numpy as np

from harness.rows.subject import Array, Weights

U32, U_BF16 = 2.0**-24, 2.0**-8
_C = 8
_EPS = 1e-6


def of_projection(weights: Weights, hidden: Array) -> Array:
    """The bound of Wkv h, elementwise: hidden [T, H] to [T, span * d]."""
    bound: Array = _C * U32 * np.abs(hidden) @ np.abs(weights.wkv).T
    return bound


def of_block(weights: Weights, window: Array, present: Array) -> Array:
    """The bound of one finished block [d], rotation included.

    window [span * ratio, H]: the hidden inputs in slot order; present [span * ratio] bool: False where block 0
    has no predecessor.
    """
    ratio, d = len(weights.bias), len(weights.gamma)
    span = len(weights.wkv) // d
    parts = []
    for group in range(span):
        slots, channels = slice(group * ratio, (group + 1) * ratio), slice(group * d, (group + 1) * d)
        x = window[slots]
        kv, z = x @ weights.wkv[channels].T, x @ weights.wgate[channels].T
        lost_kv = _C * U32 * np.abs(x) @ np.abs(weights.wkv[channels]).T
        lost_z = _C * U32 * np.abs(x) @ np.abs(weights.wgate[channels]).T
        parts.append((kv, z + weights.bias[:, channels], lost_kv, lost_z))
    kv, g, e_kv, e_z = (np.concatenate(each)[present] for each in zip(*parts, strict=True))
    count = len(kv)
    top = g.max(axis=0)
    e_g = e_z + 2 * U32 * np.abs(g) + U32 * np.abs(g - top)
    p = np.exp(g - top)
    p /= p.sum(axis=0)
    rho = e_g + (p * e_g).sum(axis=0) + (8 + count) * U32
    v = (p * kv).sum(axis=0)
    size = (p * np.abs(kv)).sum(axis=0)
    e_v = (p * e_kv).sum(axis=0) + (p * np.abs(kv) * rho).sum(axis=0) + (count + 1) * U32 * size
    s = (v**2).mean() + _EPS
    e_s = (2 * np.abs(v) * e_v).mean() + (d + 3) * U32 * s
    y = np.abs(weights.gamma * v) / np.sqrt(s)
    bound: Array = np.abs(weights.gamma) * e_v / np.sqrt(s) + y * (e_s / (2 * s) + 4 * U32)
    first = d - weights.rope_width  # a rotation mixes the two channels of a pair
    pairs, values = bound[first:].reshape(-1, 2), y[first:].reshape(-1, 2)
    bound[first:] = np.repeat(pairs.sum(axis=1) + 4 * U32 * values.sum(axis=1), 2)
    return bound
