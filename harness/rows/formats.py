"""Number formats of the values lane: which values they hold, so that every side starts from the same ones."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Format = Literal["float64", "float32", "bfloat16"]


def rounded(array: NDArray[Any], dtype: Format) -> NDArray[np.float64]:
    """The nearest values that `dtype` holds (ties to even), as float64 of the same shape; NaN stays NaN."""
    if dtype == "float64":
        return np.asarray(array, dtype=np.float64)
    single = np.asarray(array, dtype=np.float32)
    if dtype == "bfloat16":
        bits = np.atleast_1d(single).view(np.uint32)
        # The upper half of a float32, after adding what carries when the lower half is more than a half.
        kept = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        kept = np.where(np.isnan(np.atleast_1d(single)), bits, kept)
        single = kept.view(np.float32).reshape(single.shape)
    wide: NDArray[np.float64] = single.astype(np.float64)
    return wide
