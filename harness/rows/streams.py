"""Streams: what an append is fed as. The same history on other data, to see what each kind of data can tell apart.

A stream maps an append (row, position, number of the append) to the value that is fed. Only what differs in
value can be seen to be wrong: equal data in two rows hides a mix-up of rows, and data that is fixed by row and
position hides a draft that should have gone, because the token that takes its place looks the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from harness.rows.events import ABSENT, POISON, STRIDE, Ledger, origin
from harness.rows.formats import Format, rounded

Ints = NDArray[np.int64]
STREAMS = {
    "zeros": "every token is 0",
    "constant": "every token is the same number",
    "shared_ramp": "a token is its position, alike in every row",
    "per_row_ramp": "a token is its position times a slope of its row",
    "disjoint_ramps": "a token is its position, each row in a range of its own",
    "random_by_position": "a token is random, fixed by row and position",
    "random_by_event": "a token is random, drawn anew at every append",
    "token_identity": "a token is the id of its append: row, and number of the append",
}
EVENT_UNIQUE = ("random_by_event", "token_identity")
_CONSTANT = 7
# Blocks of equal tokens have the same value with a predecessor and without one.
_ABSENT_IS = {"zeros": 0, "constant": _CONSTANT}
# A vector of zeros stays what it is under any rotation, so its block cannot say its index.
WITHOUT_INDEX = ("zeros",)
# Ramps are fed to a real compressor in steps of this size, so that its gates stay finite.
_STEP = 1 / 16


def values(stream: str, row: int, position: Ints, event: Ints) -> Ints:
    """The numbers that are fed for appends of one row: position [n] and number of the append [n], int64."""
    match stream:
        case "zeros":
            return np.zeros_like(position)
        case "constant":
            return np.full_like(position, _CONSTANT)
        case "shared_ramp":
            return position + 1
        case "per_row_ramp":
            return (row + 1) * (position + 1)
        case "disjoint_ramps":
            return row * STRIDE + position + 1
        case "random_by_position":
            return _scrambled(row * STRIDE + position + 1)
        case "random_by_event":
            return _scrambled((row * STRIDE + event + 1) ^ (1 << 50))
        case "token_identity":
            return row * STRIDE + event + 1
    raise KeyError(stream)


def vector(stream: str, row: int, position: int, event: int, width: int) -> NDArray[np.float64]:
    """The hidden input [width] that is fed to a real compressor for one append, float64.

    Ramps fill all channels with one number, as a test's `arange` does; random streams are standard normal;
    an id is spelled in signs, which is injective for width >= 32.
    """
    if stream.startswith("random"):
        which = position if stream == "random_by_position" else event
        return np.random.default_rng([list(STREAMS).index(stream), row, which]).standard_normal(width)
    if stream == "token_identity":
        code = (row & 0xFFFF) << 16 | event & 0xFFFF
        return np.array([1.0 if code >> bit & 1 else -1.0 for bit in range(width)])
    row_step = 1 << 12 if stream == "disjoint_ramps" else 0  # a range for each row, in reach of a gate
    number = values("shared_ramp" if row_step else stream, row, np.array(position), np.array(event))
    return np.full(width, (row * row_step + number) * _STEP)


def _scrambled(number: Ints) -> Ints:
    """A bijection of 64 bits (the finaliser of splitmix64), cut to positive numbers."""
    bits = number.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ bits >> np.uint64(shift)) * np.uint64(factor)
    scrambled: Ints = ((bits ^ bits >> np.uint64(31)) >> np.uint64(2)).astype(np.int64)
    return scrambled


class SideBySide:
    """All streams at once, one channel each [n, streams] int64: what the token form of a state is fed.

    Production moves whole tokens, so one play answers for every stream. Padding is zeros, as a caller's would
    be: whether dead memory is read must be seen from the data alone.
    """

    poison: float = POISON

    def __init__(self, ledger: Ledger) -> None:
        self.hidden_width = len(STREAMS)
        self._ledger = ledger
        self._tables: dict[int, Ints] = {}

    def feed(self, ids: list[int]) -> Ints:
        tokens = np.array(ids, dtype=np.int64)
        rows, events = np.divmod(tokens - 1, STRIDE)
        fed = np.zeros((len(ids), len(STREAMS)), dtype=np.int64)  # 0: memory that nobody wrote
        fed[tokens == ABSENT] = [_ABSENT_IS.get(name, ABSENT) for name in STREAMS]
        for row in set(rows[tokens > 0].tolist()):
            of_row = rows == row
            fed[of_row] = self._table(row)[events[of_row]]
        return fed

    def padding(self, rows: int, columns: int) -> Ints:
        return np.zeros((rows, columns, len(STREAMS)), dtype=np.int64)

    def _table(self, row: int) -> Ints:
        """What was fed for every append of one row so far [appends, streams]."""
        position = np.array(self._ledger.positions[row])
        if row not in self._tables or len(self._tables[row]) < len(position):
            event = np.arange(len(position))
            self._tables[row] = np.stack([values(name, row, position, event) for name in STREAMS], axis=1)
        return self._tables[row]


class Vectors:
    """One stream as hidden inputs [n, width], in values that `dtype` holds, as float64: for a real compressor."""

    poison: float = float("nan")

    def __init__(self, ledger: Ledger, stream: str, width: int, dtype: Format = "float64") -> None:
        self.hidden_width = width
        self._ledger, self._stream, self._dtype = ledger, stream, dtype
        self._vectors: dict[int, NDArray[np.float64]] = {}

    def feed(self, ids: list[int]) -> NDArray[np.float64]:
        return np.array([self._vector(token) for token in ids]).reshape(-1, self.hidden_width)

    def padding(self, rows: int, columns: int) -> NDArray[np.float64]:
        return np.zeros((rows, columns, self.hidden_width))

    def _vector(self, token: int) -> NDArray[np.float64]:
        if token == 0:  # memory that nobody wrote
            return np.zeros(self.hidden_width)
        if token not in self._vectors:
            row, event = origin(token)
            position = self._ledger.positions[row][event]
            exact = vector(self._stream, row, position, event, self.hidden_width)
            self._vectors[token] = rounded(exact, self._dtype)
        return self._vectors[token]


def apart(one: Ints, other: Ints, blocks: bool) -> Iterator[str]:
    """The streams in which two arrays of one shape [..., parts * streams (+ 1: the block index)] differ."""
    if np.array_equal(one, other):
        return
    index = blocks and bool((one[..., -1] != other[..., -1]).any())
    if blocks:
        one, other = _settled(one[..., :-1]), _settled(other[..., :-1])
    columns = (one != other).reshape(-1, len(STREAMS)).any(axis=0)
    for channel, name in enumerate(STREAMS):
        if columns[channel] or (index and name not in WITHOUT_INDEX):
            yield name


def _settled(blocks: Ints) -> Ints:
    """Blocks of all streams with what an absent predecessor is worth in each: [..., slots * streams] int64."""
    shown = blocks.reshape(*blocks.shape[:-1], -1, len(STREAMS)).copy()
    for channel, name in enumerate(STREAMS):
        if name in _ABSENT_IS:
            cells = shown[..., channel]
            cells[cells == ABSENT] = _ABSENT_IS[name]
    return shown.reshape(blocks.shape)
