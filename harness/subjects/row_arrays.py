"""Per-row state as arrays whose first axis is the row: what the example caches share."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Refused(Exception):
    """A rollback to a token whose state is no longer kept. Nothing was changed."""

    kind = "rollback-beyond-margin"


class RowArrays:
    """Rows are chosen, copied out and put together by their index on the first axis of every array.

    arrays : the names of those arrays, each an attribute [rows, ...]
    """

    arrays: ClassVar[tuple[str, ...]]
    refusal = Refused

    def select(self, rows: Sequence[int]) -> None:
        for name in self.arrays:
            setattr(self, name, getattr(self, name)[list(rows)])

    def split(self, row: int) -> Self:
        one = copy.copy(self)
        one.select([row])  # an index list copies, so the part shares no memory with the batch
        return one

    @staticmethod
    def assemble(parts: Sequence[Any]) -> Any:
        whole = copy.copy(parts[0])
        for name in whole.arrays:
            setattr(whole, name, np.concatenate([getattr(part, name) for part in parts]))
        return whole

    def snapshot(self, path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, **{name: getattr(self, name) for name in self.arrays})

    def restore(self, path: Path) -> Self:
        like = copy.copy(self)
        with np.load(path) as stored:
            for name in self.arrays:
                setattr(like, name, stored[name])
        return like


class Checkpoints(RowArrays):
    """A recurrent state with the states of the last `margin` tokens, because a recurrence cannot be run backwards.

    state  : [rows, margin + 1, ...], the state after token t in slot t mod (margin + 1)
    tokens : [rows] consumed; oldest : [rows] the earliest count that can be gone back to
    """

    arrays = ("state", "tokens", "oldest")

    def __init__(self, rows: int, margin: int, shape: tuple[int, ...]) -> None:
        self.state = np.zeros((rows, margin + 1, *shape))
        self.tokens = np.zeros(rows, dtype=np.int64)
        self.oldest = np.zeros(rows, dtype=np.int64)

    def now(self) -> Array:
        """The state of every row after its last token [rows, ...]."""
        rows = np.arange(len(self.tokens))
        current: Array = self.state[rows, self.tokens % self.state.shape[1]]
        return current

    def keep(self, state: Array, takes: Array) -> None:
        """The state [rows, ...] after one more token, for the rows that take one [rows] bool."""
        self.tokens = self.tokens + takes
        rows = np.flatnonzero(takes)
        self.state[rows, self.tokens[rows] % self.state.shape[1]] = state[rows]
        self.oldest = np.maximum(self.oldest, self.tokens - (self.state.shape[1] - 1))

    def rollback(self, counts: Sequence[int]) -> None:
        left = self.tokens - np.asarray(counts)
        if (left < self.oldest).any():
            row = int(np.argmax(left < self.oldest))
            raise Refused(
                f"row {row} should go back to token {left[row]}; states are kept from token {self.oldest[row]} on, so it "
                "can drop at most "
                f"{self.tokens[row] - self.oldest[row]}"
            )
        self.tokens = left

    def poison(self) -> None:
        """Every slot but those that a row can still go back to."""
        slots = self.state.shape[1]
        kept = np.zeros(self.state.shape[:2], dtype=bool)
        for back in range(slots):
            rows = np.flatnonzero(self.tokens - back >= self.oldest)
            kept[rows, (self.tokens[rows] - back) % slots] = True
        self.state[~kept] = np.nan
