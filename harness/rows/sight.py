"""What each stream and lane sees of a pair of states: caught or blind, and by how much.

    exact     the token form: integers, compared with ==
    bitwise   float32 values of blocks and projections: any bit that differs, the sign of a zero aside
    float32   the same values, within twice the bound that the oracle derives for one of them
    bfloat16  stored in bfloat16: the bound, and a rounding to eight bits on either side

The margin of a pair is its largest difference over its tolerance; of a cell, the smallest of its pairs. A pair is
caught if that is above 1. With == and bits there is no tolerance, hence no margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from harness.rows.lens import BLOCK_WIDTH, HIDDEN_WIDTH, ROPE_WIDTH
from harness.rows.statepairs import Moment, Pair, State
from harness.rows.streams import STREAMS, SideBySide, Vectors, apart
from harness.rows.subject import Array, Oracle, Weights, random_weights

LANES = ("exact", "bitwise", "float32", "bfloat16")
# A value that is rounded once to the eight bits of bfloat16.
U_BFLOAT16 = 2.0**-8
# Beyond this a margin says no more than "by far".
MARGIN_MAX = 1e9
Block = tuple[tuple[int, ...], int]


@dataclass
class Cell:
    """One fault on one stream in one lane: how many of its pairs are caught, and the smallest margin."""

    caught: int = 0
    of: int = 0
    margin: float | None = None

    def add(self, caught: bool, margin: float | None) -> None:
        self.caught += caught
        self.of += 1
        if margin is not None:
            self.margin = margin if self.margin is None else min(self.margin, margin)


@dataclass
class _Eyes:
    """One fixture's history on every stream, with the values of its blocks computed once."""

    moment: Moment
    oracle: Oracle
    known: dict[tuple[str, Block], tuple[Array, Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fixture, ledger = self.moment.fixture, self.moment.ledger
        drawn = random_weights(fixture.ratio, fixture.span, HIDDEN_WIDTH, BLOCK_WIDTH, ROPE_WIDTH)
        self.weights: Weights = replace(drawn, dtype="float32")
        self.side = SideBySide(ledger)
        self.vectors = {name: Vectors(ledger, name, HIDDEN_WIDTH) for name in STREAMS}

    def exact(self, pair: Pair) -> set[str]:
        """The streams on which the token form differs."""
        tails = [self.side.feed(list(state.tail)) for state in (pair.right, pair.wrong)]
        blocks = [self._token_blocks(state) for state in (pair.right, pair.wrong)]
        return {*apart(tails[0], tails[1], False), *apart(blocks[0], blocks[1], True)}

    def _token_blocks(self, state: State) -> Array:
        rows = [[*self.side.feed(list(pooled)).ravel().tolist(), index] for pooled, index in state.blocks]
        return np.array(rows, dtype=np.int64).reshape(len(rows), -1) if rows else np.empty((0, 1), np.int64)

    def differences(self, pair: Pair, stream: str) -> list[tuple[Array, Array, Array]]:
        """What differs in ids, as values: (right, wrong, bound), elementwise."""
        feed = self.vectors[stream].feed
        right, wrong = (
            self.oracle.payload(self.weights, feed(list(state.tail)))[0] for state in (pair.right, pair.wrong)
        )
        found = [(right.value, wrong.value, right.bound)]
        for one, other in zip(pair.right.blocks, pair.wrong.blocks, strict=True):
            if one != other:
                (value, off), (against, _) = self._block(stream, one), self._block(stream, other)
                found.append((value, against, off))
        return found

    def _block(self, stream: str, block: Block) -> tuple[Array, Array]:
        """A block's value [d] from the oracle, and its bound."""
        if (stream, block) not in self.known:
            pooled, index = block
            feed = self.vectors[stream].feed
            history = np.zeros(((index + 1) * self.moment.fixture.ratio, HIDDEN_WIDTH))
            for token, position in zip(pooled, self.moment.slots(index), strict=True):
                if position >= 0:
                    history[position] = feed([token])[0]
            found = self.oracle.block(self.weights, *self.oracle.payload(self.weights, history), index)
            self.known[stream, block] = found.value, found.bound
        return self.known[stream, block]


def look_at(pairs: Sequence[Pair], oracle: Oracle) -> dict[str, dict[str, dict[str, Cell]]]:
    """fault -> stream -> lane -> cell, over all pairs."""
    table: dict[str, dict[str, dict[str, Cell]]] = {}
    eyes: _Eyes | None = None
    for pair in pairs:
        if eyes is None or eyes.moment.fixture is not pair.moment.fixture:
            eyes = _Eyes(pair.moment, oracle)
        exact = eyes.exact(pair)
        row = table.setdefault(pair.fault, {stream: {lane: Cell() for lane in LANES} for stream in STREAMS})
        for stream, cells in row.items():
            values = eyes.differences(pair, stream)
            bits = any(bool((_f32(one) != _f32(other)).any()) for one, other, _ in values)
            cells["exact"].add(stream in exact, None)
            cells["bitwise"].add(bits, None)
            for lane, rounding in (("float32", 0.0), ("bfloat16", U_BFLOAT16)):
                margin = max(_margin(*each, rounding) for each in values)
                cells[lane].add(margin > 1, margin)
    return table


def _margin(right: Array, wrong: Array, off: Array, rounding: float) -> float:
    """The largest difference over its tolerance; 0 where nothing differs."""
    apart_by = np.abs(right - wrong)
    tolerance = 2 * (off + rounding * np.abs(right))
    if not apart_by.any():
        return 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(apart_by > 0, apart_by / tolerance, 0.0)
    return min(float(ratio.max()), MARGIN_MAX)


def _f32(array: Array) -> Array:
    return (array.astype(np.float32) + np.float32(0)).view(np.int32)  # -0.0 + 0.0 is 0.0
