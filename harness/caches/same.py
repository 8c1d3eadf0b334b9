"""When two arrays that a cache read are the same."""

from __future__ import annotations

import numpy as np

from harness.rows.subject import Array


def tolerance(want: Array, exact: bool) -> float:
    """How far apart two equal numbers may lie: 4096 roundings of the array's largest value; 0 where nothing is computed."""
    if exact or want.dtype.kind not in "fc" or not want.size:
        return 0.0
    scale = float(np.max(np.abs(want), initial=0.0, where=np.isfinite(want)))
    return 4096 * float(np.finfo(want.dtype).eps) / 2 * scale


def distances(got: Array, want: Array) -> Array:
    """The distances of two arrays of one shape, of complex numbers in their plane."""
    wide = np.complex128 if "c" in (got.dtype.kind, want.dtype.kind) else np.float64
    with np.errstate(invalid="ignore"):
        apart: Array = np.abs(got.astype(wide) - want.astype(wide))
    return apart


def wrong(got: Array, want: Array, within: float) -> Array:
    """Where two arrays of one shape differ; infinity equals itself, NaN is never right."""
    off: Array = ~((distances(got, want) <= within) | (got == want))
    return off


def by_entry(off: Array) -> Array:
    """Which entries of the first axis are true anywhere."""
    result: Array = np.asarray(off.any(axis=tuple(range(1, off.ndim))))
    return result


def alike(got: Array, want: Array, within: float) -> bool:
    """Equal in shape and, within a tolerance, in every element."""
    if got.dtype == want.dtype and got.dtype.kind in "iu":
        return np.array_equal(got, want)
    return got.shape == want.shape and not wrong(got, want, within).any()
