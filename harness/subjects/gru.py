"""A gated recurrent unit with one state per row, as an example of a cache without columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.caches.protocol import Geometry
from harness.subjects.row_arrays import Array, Checkpoints

_WIDTH, _HIDDEN = 8, 16


def _sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result


class GRUCache(Checkpoints):
    """h' = (1 - z) n + z h, with gates r, z and candidate n of the input and of h (Cho et al. 2014)."""

    width = _WIDTH
    supports = (
        "prefill.ragged", "advance.ragged", "rollback.ragged", "select", "repeat", "split", "assemble", "snapshot", "poison",
    )  # fmt: skip
    axes: Mapping[str, str] = {"h": "state"}

    def __init__(self, geometry: Geometry, rows: int) -> None:
        super().__init__(rows, geometry.margin, (_HIDDEN,))
        rng = np.random.default_rng(7)
        self.of_input = rng.standard_normal((3 * _HIDDEN, _WIDTH)) / np.sqrt(_WIDTH)
        self.of_state = rng.standard_normal((3 * _HIDDEN, _HIDDEN)) / np.sqrt(_HIDDEN)

    def advance(self, xs: Array, n_new: Sequence[int]) -> None:
        for column in range(xs.shape[1]):
            takes = column < np.asarray(n_new)
            self.keep(self._step(xs[:, column], self.now()), takes)

    def _step(self, x: Array, h: Array) -> Array:
        gates, from_state = x @ self.of_input.T, h @ self.of_state.T  # each [rows, 3 * hidden]
        reset, update = (
            _sigmoid(a + b)
            for a, b in zip(np.split(gates, 3, 1)[:2], np.split(from_state, 3, 1)[:2], strict=True)
        )
        candidate = np.tanh(np.split(gates, 3, 1)[2] + reset * np.split(from_state, 3, 1)[2])
        result: Array = (1 - update) * candidate + update * h
        return result

    def read(self, row: int) -> Mapping[str, Array]:
        return {"h": self.now()[row]}
