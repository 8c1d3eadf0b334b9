"""Keys of a sliding-window attention layer in a ring per row, rotated where they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.caches.protocol import Geometry
from harness.subjects.row_arrays import Array, Refused, RowArrays

_WIDTH, _WINDOW = 8, 24


class SlidingWindowCache(RowArrays):
    """The last window - 1 + margin keys of each row, key of token t in slot t mod capacity.

    keys   : [rows, capacity, width], rotated by their token's position
    tokens : [rows] consumed; oldest : [rows] the earliest token whose key was not overwritten
    """

    width = _WIDTH
    supports = (
        "prefill.ragged", "advance.ragged", "rollback.ragged", "select", "repeat", "split", "assemble", "snapshot", "poison",
    )  # fmt: skip
    axes: Mapping[str, str] = {"keys": "tokens"}
    arrays = ("keys", "tokens", "oldest")

    def __init__(self, geometry: Geometry, rows: int) -> None:
        self.keys = np.zeros((rows, _WINDOW - 1 + geometry.margin, _WIDTH))
        self.tokens = np.zeros(rows, dtype=np.int64)
        self.oldest = np.zeros(rows, dtype=np.int64)

    def advance(self, xs: Array, n_new: Sequence[int]) -> None:
        capacity = self.keys.shape[1]
        for row, n in enumerate(n_new):
            positions = np.arange(self.tokens[row], self.tokens[row] + n)
            kept = positions[-capacity:]
            self.keys[row, kept % capacity] = _rotated(xs[row, :n][-capacity:], kept)
        self.tokens = self.tokens + np.asarray(n_new)
        self.oldest = np.maximum(self.oldest, self.tokens - capacity)

    def rollback(self, counts: Sequence[int]) -> None:
        left = self.tokens - np.asarray(counts)
        needed = np.maximum(left - (_WINDOW - 1), 0)
        refused = (left < 0) | (needed < self.oldest)
        if refused.any():
            row = int(np.argmax(refused))
            raise Refused(
                f"row {row} should go back to token {left[row]}, whose window begins at {needed[row]}; keys are kept from "
                f"token {self.oldest[row]} on, so drop fewer tokens"
            )
        self.tokens = left

    def _seen(self, row: int) -> Array:
        """Positions in the next query's window, without its own."""
        tokens = int(self.tokens[row])
        return np.arange(max(tokens - (_WINDOW - 1), 0), tokens)

    def read(self, row: int) -> Mapping[str, Array]:
        return {"keys": self.keys[row, self._seen(row) % self.keys.shape[1]]}

    def poison(self) -> None:
        capacity = self.keys.shape[1]
        for row in range(len(self.tokens)):
            dead = np.ones(capacity, dtype=bool)
            dead[np.arange(self.oldest[row], self.tokens[row]) % capacity] = False
            self.keys[row, dead] = np.nan


def _rotated(keys: Array, positions: Array) -> Array:
    """Pairs of channels turned by position * 10000 ** (-2 i / width)."""
    angle = positions[:, None] * 10000.0 ** (-np.arange(0, _WIDTH, 2) / _WIDTH)
    turned: Array = np.empty_like(keys)
    even, odd = keys[:, 0::2], keys[:, 1::2]
    turned[:, 0::2] = even * np.cos(angle) - odd * np.sin(angle)
    turned[:, 1::2] = even * np.sin(angle) + odd * np.cos(angle)
    return turned
