"""The lightning indexer of a CSA layer for one sequence: which completed blocks each query attends to.

Shape words as in `reference_impl.compressor`; I index heads of width c, n completed blocks, k picks. All float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reference_impl.compressor import CompressorWeights
from reference_impl.rope import inverse_frequencies, rotate

Array = NDArray[np.float64]

UNREACHED = -1


@dataclass(frozen=True, eq=False)
class IndexerWeights:
    """Weights of one indexer, and what it thinks of every block.

    `q_b[I*c, q_lora]` makes its queries of the attention's query residual, `weights[I, H]` weighs its heads, and
    `compressor` (span 2, d = c) makes its keys. Anything array-like is taken and held as float64.

    Raises ValueError when a shape does not fit the others.
    """

    q_b: Array
    weights: Array
    compressor: CompressorWeights

    def __post_init__(self) -> None:
        for name in ("q_b", "weights"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.float64))
        if self.weights.ndim != 2 or self.weights.shape[1] != self.compressor.hidden_width:
            raise ValueError(
                f"weights has shape {self.weights.shape}; it should be [heads, {self.compressor.hidden_width}], "
                "one row per index head over the hidden width of the indexer's compressor: check for a transpose"
            )
        rows = self.heads * self.compressor.d
        if self.q_b.ndim != 2 or self.q_b.shape[0] != rows:
            raise ValueError(
                f"q_b has shape {self.q_b.shape}; it should be [{rows}, q_lora] for {self.heads} index heads of "
                f"width {self.compressor.d}: check for a transpose"
            )

    @property
    def heads(self) -> int:
        """Index heads, each with a weight of its own for every query."""
        return int(self.weights.shape[0])

    def scores(self, hidden: ArrayLike, q_residual: ArrayLike) -> Array:
        """How much each query wants each completed block, visible or not, `[T, n]`.

        From the history `hidden[T, H]` and the attention's normed low-rank queries `q_residual[T, q_lora]`.
        Source: DeepSeek-V4 lightning indexer, `score(t, b) = sum_h w_{t,h} relu(q_{t,h} . k_b)`, with the query
        rotated at its own position, the keys at their blocks', w scaled by `I^-1/2` and the product by `c^-1/2`.
        """
        hidden = np.asarray(hidden, dtype=np.float64)
        q_residual = np.asarray(q_residual, dtype=np.float64)
        keys = self.compressor.blocks(hidden)
        queries = (q_residual @ self.q_b.T).reshape(len(hidden), self.heads, self.compressor.d)
        frequency = inverse_frequencies(
            self.compressor.rope_width, self.compressor.theta, self.compressor.yarn
        )
        queries = rotate(queries, np.arange(len(hidden))[:, np.newaxis], frequency)
        agreement = np.maximum(queries @ keys.T, 0.0) / np.sqrt(self.compressor.d)  # [T, I, n]
        weight = hidden @ self.weights.T / np.sqrt(self.heads)  # [T, I]
        scores: Array = (weight[:, :, np.newaxis] * agreement).sum(axis=1)
        return scores


def picks(scores: ArrayLike, visible: int, k: int) -> list[int]:
    """The k best of the first `visible` blocks by `scores[n]`, best first; -1 where there are fewer.

    Of equal scores the lower block comes first. With at most k visible blocks these are all of them.
    Raises ValueError for a k below 1, and when fewer than `visible` scores are given.
    """
    order = _by_score(scores, visible, k)[:k]
    return order + [UNREACHED] * (k - len(order))


def gap(scores: ArrayLike, visible: int, k: int) -> float:
    """How far the last pick's score is above the best block left out; infinite where none is left out.

    Two correct implementations agree on the picks only if their rounding stays below half of this.
    Raises ValueError as `picks` does.
    """
    order = _by_score(scores, visible, k)
    if len(order) <= k:
        return np.inf
    scores = np.asarray(scores, dtype=np.float64)
    return float(scores[order[k - 1]] - scores[order[k]])


def reached(picked: Sequence[int]) -> list[int]:
    """The blocks among picks, ascending, without those that say that there was none."""
    return sorted(block for block in picked if block != UNREACHED)


def _by_score(scores: ArrayLike, visible: int, k: int) -> list[int]:
    """The visible blocks, best first."""
    scores = np.asarray(scores, dtype=np.float64)
    if k < 1:
        raise ValueError(f"k is {k}; it should be at least 1, the number of blocks a query may pick")
    if scores.ndim != 1 or not 0 <= visible <= len(scores):
        raise ValueError(
            f"scores has shape {scores.shape} and {visible} blocks are visible; it should be [n], one query's "
            "scores, with n at least the visible blocks: pass the scores of all completed blocks"
        )
    return sorted(range(visible), key=lambda block: (-scores[block], block))
