"""Append events: every token that is ever fed is unique, drafts that are rolled back later included.

Data fixed by (row, position), even random data, cannot show a stale draft: the token that replaces it looks
the same. So a token is identified by the event that appended it, id = sequence * STRIDE + event + 1:
never 0, which is what memory holds that nobody has written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.rows.formats import Format, rounded

STRIDE = 1 << 20
ABSENT = -1
POISON = -2


def origin(token: int) -> tuple[int, int]:
    """The sequence and the event of an id."""
    return divmod(token - 1, STRIDE)


@dataclass
class Ledger:
    """Which event appended which token: `positions[s][e]` is the position that event e of sequence s fed."""

    positions: dict[int, list[int]] = field(default_factory=dict)

    def append(self, sequence: int, position: int, n: int) -> list[int]:
        """The ids of n new events that feed `position`, `position + 1`, ..."""
        fed = self.positions.setdefault(sequence, [])
        first = len(fed)
        fed.extend(range(position, position + n))
        return [sequence * STRIDE + event + 1 for event in range(first, first + n)]

    def label(self, token: int) -> str:
        """A token in words: r1:t37, or r1:t37#2 if it is the second token that was fed at position 37."""
        if token == ABSENT:
            return "nothing"
        if token == POISON:
            return "poison"
        if token == 0:
            return "memory that was never written"
        sequence, event = origin(token)
        fed = self.positions.get(sequence, [])
        if token <= 0 or event >= len(fed):
            return f"{token}, which is no token"
        attempt = fed[: event + 1].count(fed[event])
        return f"r{sequence}:t{fed[event]}" + (f"#{attempt}" if attempt > 1 else "")


class TokenStream:
    """The event ids themselves, [n, 1] int64: what the token-identity form of a state is fed."""

    hidden_width = 1
    poison: float = POISON

    def feed(self, ids: list[int]) -> NDArray[np.int64]:
        return np.array(ids, dtype=np.int64).reshape(-1, 1)

    def padding(self, rows: int, columns: int) -> NDArray[np.int64]:
        return np.full((rows, columns, 1), POISON, dtype=np.int64)


class VectorStream:
    """A vector [H] per event, in values that `dtype` holds, as float64: what a real compressor is fed.

    data: standard normal, or what shows little of a token: its event's number in all channels, or offset by 1000.
    """

    poison: float = float("nan")

    def __init__(
        self, hidden_width: int, data: str = "normal", dtype: Format = "float64", seed: int = 0
    ) -> None:
        self.hidden_width = hidden_width
        self._data, self._dtype, self._seed = data, dtype, seed
        self._generators: dict[int, np.random.Generator] = {}
        self._vectors: dict[int, NDArray[np.float64]] = {}

    def feed(self, ids: list[int]) -> NDArray[np.float64]:
        if not ids:
            return np.empty((0, self.hidden_width))
        return np.stack([self._vector(token) for token in ids])

    def padding(self, rows: int, columns: int) -> NDArray[np.float64]:
        return np.full((rows, columns, self.hidden_width), np.nan)

    def _vector(self, token: int) -> NDArray[np.float64]:
        sequence, event = origin(token)
        table = self._vectors.get(sequence)
        if table is None or event >= len(table):
            seed = np.random.default_rng([self._seed, sequence])
            generator = self._generators.setdefault(sequence, seed)
            first = 0 if table is None else len(table)
            fresh = rounded(self._drawn(generator, first, max(event + 1, 64)), self._dtype)
            table = fresh if table is None else np.concatenate([table, fresh])
            self._vectors[sequence] = table
        vector: NDArray[np.float64] = table[event]
        return vector

    def _drawn(self, generator: np.random.Generator, first: int, n: int) -> NDArray[np.float64]:
        """The vectors [n, H] of events first, first + 1, ..."""
        if self._data == "ramp":
            return np.repeat(np.arange(first + 1.0, first + n + 1)[:, None], self.hidden_width, axis=1)
        normal = generator.standard_normal((n, self.hidden_width))
        return normal + 1000 if self._data == "offset" else normal


class Stream(Protocol):
    """What is fed for a list of events, and what stands where nothing is."""

    hidden_width: int
    poison: float

    def feed(self, ids: list[int]) -> NDArray[Any]:
        """One row [hidden_width] for each event."""

    def padding(self, rows: int, columns: int) -> NDArray[Any]:
        """What a batch's new tokens [rows, columns, hidden_width] hold where a row has none."""
