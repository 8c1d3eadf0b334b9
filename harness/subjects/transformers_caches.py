"""Cache layers of Hugging Face transformers that hold no weights: a sliding window, and a hybrid of attention and recurrence.

Needs the extra `oracle`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicSlidingWindowLayer, LinearAttentionAndFullAttentionLayer

from harness.caches.protocol import Geometry
from harness.subjects.row_arrays import Array, Refused

_WIDTH, _WINDOW, _KERNEL = 8, 12, 4


class SlidingWindow:
    """DynamicSlidingWindowLayer with its past recorded, so that drafts can be dropped beyond the window.

    The layer has one length for all rows, and no way to put two batches together.
    """

    width = _WIDTH
    supports = ("rollback", "select", "repeat")
    axes: Mapping[str, str] = {"keys": "tokens", "values": "tokens"}
    exact = True
    refusal = Refused

    def __init__(self, geometry: Geometry, rows: int) -> None:
        self.layer: Any = DynamicSlidingWindowLayer(_WINDOW)
        self.layer.activate_past_recording()  # type: ignore[no-untyped-call]

    def advance(self, xs: Array, n_new: Sequence[int]) -> None:
        new = torch.from_numpy(xs)[:, None]  # one head
        self.layer.update(new, -new)

    def rollback(self, counts: Sequence[int]) -> None:
        if not any(counts):
            return  # crop(0) would let go of what a later call could still come back to
        try:
            self.layer.crop(-counts[0])
        except RuntimeError as error:  # it raises before it touches anything
            raise Refused(str(error)) from error

    def select(self, rows: Sequence[int]) -> None:
        _move(self.layer, rows)

    def read(self, row: int) -> Mapping[str, Array]:
        if not self.layer.is_initialized:
            return {name: np.zeros((0, _WIDTH)) for name in self.axes}
        return {
            "keys": self.layer.keys[row, 0, 1 - _WINDOW :].numpy(),
            "values": self.layer.values[row, 0, 1 - _WINDOW :].numpy(),
        }


class Hybrid:
    """LinearAttentionAndFullAttentionLayer: keys, the last inputs of a convolution, and a recurrent state in one layer.

    The layer says of itself that it cannot be cropped once it has a recurrent state (`is_croppable`).
    """

    width = _WIDTH
    supports = ("select", "repeat")
    axes: Mapping[str, str] = {"keys": "tokens", "conv": "tokens", "state": "state"}

    def __init__(self, geometry: Geometry, rows: int) -> None:
        self.layer: Any = LinearAttentionAndFullAttentionLayer()
        self.nothing = torch.zeros(rows, _WIDTH, dtype=torch.float64)

    def advance(self, xs: Array, n_new: Sequence[int]) -> None:
        new = torch.from_numpy(xs)
        before = self.layer.recurrent_states[0]
        self.layer.update(new[:, None], -new[:, None])
        self.layer.update_conv_state(new.transpose(1, 2), conv_kernel_size=_KERNEL)
        self.layer.update_recurrent_state(_decayed(self.nothing if before is None else before, new))

    def select(self, rows: Sequence[int]) -> None:
        _move(self.layer, rows)

    def read(self, row: int) -> Mapping[str, Array]:
        if not self.layer.is_initialized:
            return {
                name: np.zeros((0, _WIDTH) if axis == "tokens" else _WIDTH)
                for name, axis in self.axes.items()
            }
        seen = min(self.layer.get_seq_length(), _KERNEL - 1)
        arrays = {
            "keys": self.layer.keys[row, 0],
            "conv": self.layer.conv_states[0][row].T[_KERNEL - seen :],
            "state": self.layer.recurrent_states[0][row],
        }
        return {name: array.numpy() for name, array in arrays.items()}


class HybridBeams(Hybrid):
    """The same, with rows moved by `reorder_cache`, the call of beam search."""

    def select(self, rows: Sequence[int]) -> None:
        self.layer.reorder_cache(torch.tensor(rows, dtype=torch.int64))


def _move(layer: Any, rows: Sequence[int]) -> None:
    """By the call that is made for it: every row as often as every other, or some of them once."""
    held = layer.keys.shape[0]
    times = len(rows) // held
    if times > 1 and list(rows) == [row for row in range(held) for _ in range(times)]:
        layer.batch_repeat_interleave(times)
    else:
        layer.batch_select_indices(torch.tensor(rows, dtype=torch.int64))


def _decayed(state: Tensor, new: Tensor) -> Tensor:
    """h' = h / 2 + x, token by token: state [rows, width], new [rows, T, width]."""
    for column in range(new.shape[1]):
        state = state / 2 + new[:, column]
    return state
