"""A selective state-space layer: a short convolution over the last inputs, and a recurrent state per channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.caches.protocol import Geometry
from harness.subjects.row_arrays import Array, Checkpoints

_WIDTH, _KERNEL, _STATES = 8, 4, 4


class MambaCache(Checkpoints):
    """The two states of a Mamba layer (Gu and Dao 2023, discretised as there): conv [width, kernel - 1], ssm [width, N].

    A token's convolution sees the kernel - 1 inputs before it; its ssm update is h' = exp(dt A) h + dt B x with dt
    and B of the convolved input.
    """

    width = _WIDTH
    supports = (
        "prefill.ragged", "advance.ragged", "rollback.ragged", "select", "repeat", "split", "assemble", "snapshot", "poison",
    )  # fmt: skip
    axes: Mapping[str, str] = {"conv": "tokens", "ssm": "state"}

    def __init__(self, geometry: Geometry, rows: int) -> None:
        super().__init__(rows, geometry.margin, (_WIDTH, _KERNEL - 1 + _STATES))
        rng = np.random.default_rng(9)
        self.kernel = rng.standard_normal((_WIDTH, _KERNEL))
        self.decay = -np.arange(1.0, _STATES + 1)
        self.of_dt = rng.standard_normal((_WIDTH, _WIDTH)) / np.sqrt(_WIDTH)
        self.of_b = rng.standard_normal((_WIDTH, _STATES)) / np.sqrt(_WIDTH)

    def advance(self, xs: Array, n_new: Sequence[int]) -> None:
        for column in range(xs.shape[1]):
            takes = column < np.asarray(n_new)
            self.keep(self._step(xs[:, column], self.now()), takes)

    def _step(self, x: Array, state: Array) -> Array:
        conv, ssm = (
            state[..., : _KERNEL - 1],
            state[..., _KERNEL - 1 :],
        )  # [rows, width, kernel - 1], [rows, width, N]
        seen = np.concatenate([conv, x[..., None]], axis=-1)
        u = (seen * self.kernel).sum(axis=-1)
        u = u / (1 + np.exp(-u))
        dt = np.log1p(np.exp(u @ self.of_dt.T))[..., None]
        ssm = np.exp(dt * self.decay) * ssm + dt * (u @ self.of_b)[:, None] * u[..., None]
        return np.concatenate([seen[..., 1:], ssm], axis=-1)

    def read(self, row: int) -> Mapping[str, Array]:
        state = self.now()[row]
        seen = min(int(self.tokens[row]), _KERNEL - 1)
        return {"conv": state[:, _KERNEL - 1 - seen : _KERNEL - 1].T, "ssm": state[:, _KERNEL - 1 :]}
