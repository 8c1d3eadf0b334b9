"""Rotary position embedding of the DeepSeek-V4 compressor, in interleaved pairs, with and without YaRN.

Everything is float64. Widths are channels, positions are absolute token indices counted from 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Yarn:
    """YaRN stretching as the compressed layers of DeepSeek-V4 use it, without a magnitude factor (mscale).

    `factor` divides the slow frequencies, `original_length` is the trained context in tokens, `beta_fast`
    and `beta_slow` are turns over that context: more turns than `beta_fast` leave a frequency alone, fewer
    than `beta_slow` divide it fully.
    """

    factor: float = 16.0
    original_length: int = 65536
    beta_fast: float = 32.0
    beta_slow: float = 1.0


def inverse_frequencies(rope_width: int, theta: float, yarn: Yarn | None = None) -> Array:
    """Angle in radians per token of each channel pair, `[rope_width // 2]`.

    Source: DeepSeek-V4 compressor, `f_i = theta^(-2i/rope_width)`. With YaRN, the pair that makes n turns is
    `c(n) = rope_width * ln(original_length / (2 pi n)) / (2 ln theta)`;
    `lo = max(floor(c(beta_fast)), 0)`, `hi = min(ceil(c(beta_slow)), rope_width - 1)`,
    `ramp_i = clip((i - lo) / (hi - lo), 0, 1)` and `f_i <- f_i / factor * ramp_i + f_i * (1 - ramp_i)`.

    A rope width of 0 has no pairs. Raises ValueError for an odd or negative rope width, for a theta not
    above 1, and for YaRN parameters that leave no ramp (`hi <= lo`).
    """
    if rope_width < 0 or rope_width % 2:
        raise ValueError(f"rope_width is {rope_width}; it should be even and at least 0: channels pair up")
    if theta <= 1:
        raise ValueError(f"theta is {theta}; it should be above 1, such as 10000 or 160000")
    pair = np.arange(rope_width // 2, dtype=np.float64)
    frequency: Array = theta ** (-2.0 * pair / rope_width)
    if yarn is None or rope_width == 0:
        return frequency
    low = max(math.floor(_pair_that_turns(yarn.beta_fast, rope_width, theta, yarn)), 0)
    high = min(math.ceil(_pair_that_turns(yarn.beta_slow, rope_width, theta, yarn)), rope_width - 1)
    if high <= low:
        raise ValueError(
            f"the YaRN ramp runs from pair {low} to pair {high}; it should rise: choose a wider rope_width "
            f"than {rope_width}, another theta than {theta}, or beta_fast and beta_slow further apart"
        )
    ramp = np.clip((pair - low) / (high - low), 0.0, 1.0)
    stretched: Array = frequency / yarn.factor * ramp + frequency * (1.0 - ramp)
    return stretched


def rotate(x: ArrayLike, position: ArrayLike, frequency: ArrayLike) -> Array:
    """Turn the last `2 * len(frequency)` channels of `x[..., d]` by `position * frequency`; a new array.

    `position` is a scalar or an array that broadcasts to `x.shape[:-1]`, in tokens; minus the position turns
    back. Source: DeepSeek-V4 compressor, pairs are interleaved: channel `2i` is the real and `2i + 1` the
    imaginary part of a number that is multiplied by `exp(1j * angle)`.

    Raises ValueError when x is narrower than the rope, or the positions do not fit the rows of x.
    """
    rotated = np.array(x, dtype=np.float64)
    frequency = np.asarray(frequency, dtype=np.float64)
    position = np.asarray(position, dtype=np.float64)
    if frequency.ndim != 1 or rotated.ndim == 0 or rotated.shape[-1] < 2 * frequency.size:
        raise ValueError(
            f"x has shape {rotated.shape} and frequency {frequency.shape}; they should be [..., d] and "
            "[pairs] with d >= 2 * pairs: pass the frequencies of this x's rope width"
        )
    rows = rotated.shape[:-1]
    try:
        position = np.broadcast_to(position, rows)
    except ValueError:
        raise ValueError(
            f"position has shape {position.shape}; it should broadcast to {rows}: pass one per row of x"
        ) from None
    angle = position[..., np.newaxis] * frequency  # [..., pairs]
    start = rotated.shape[-1] - 2 * frequency.size
    real = rotated[..., start::2].copy()
    imaginary = rotated[..., start + 1 :: 2].copy()
    rotated[..., start::2] = real * np.cos(angle) - imaginary * np.sin(angle)
    rotated[..., start + 1 :: 2] = real * np.sin(angle) + imaginary * np.cos(angle)
    return rotated


def _pair_that_turns(turns: float, rope_width: int, theta: float, yarn: Yarn) -> float:
    """The fractional pair index whose unstretched frequency turns `turns` times over the original length."""
    return rope_width * math.log(yarn.original_length / (2.0 * math.pi * turns)) / (2.0 * math.log(theta))
