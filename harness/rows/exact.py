"""Data on which the real compressor rounds nothing before its norm, so that equal means equal to the bit.

A token is the one-hot vector of its event, and weights are signs: a projection picks one weight, whatever the order of
its sum. The channels of a block ask three things, in turn:

    who contributed   : no gate, so a block is the mean of its tokens' signs
    in which order    : the position bias silences every slot whose number lacks one bit; a group of channels a bit
    whose gate leads  : gates are multiples of 1024, no two equal, so the largest has weight 1 and the others 0

Every sum of weights is a power of two. With S slots a pooled value is an integer over S / 2, and so is its square's
sum over the channels, as long as it fits the significand: `limits` says when. After the norm each value is rounded
by itself, in a batch as alone.

What `prove` proves: one or two wrong tokens of a window, whatever events of the play stand in their place, change the
pooled value. No two events share their signs, and no two pairs of events share the sums of theirs, so who contributed
changes; unless the two were exchanged: then their slots differ in some bit, and within that bit's channels no two
events share their signs. Three or more wrong tokens could cancel out by accident, and in a gate alone nothing is
proved: the token form of a play compares ids and knows no such case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.rows import schedule as do
from harness.rows.formats import Format, rounded
from harness.rows.schedule import Fixture, Step
from harness.rows.subject import Array, Weights

# exp(-1000) and exp(-1024) are 0 in every format; both numbers have few enough bits for bfloat16.
_SILENT, _LOUDER = -1000.0, 1024.0
# The bits of a significand: of what is pooled, and of the gates as they are projected.
_POOLED_BITS: dict[Format, int] = {"float64": 53, "float32": 24, "bfloat16": 24}
_GATE_BITS: dict[Format, int] = {"float64": 53, "float32": 24, "bfloat16": 8}
# So near to 1 that a block in bfloat16, rounded by up to 2^-9, still says what a window of 128 tokens pooled: it is turned
# back with its partner's error and divided by channel 0, so the integer is off by at most 64 * 2^-9 * (2 + 1.25 / 0.8).
_GAMMA = (0.8, 1.25)
_READABLE_BFLOAT16 = 64
# Channel c answers question c mod 4. Channel 0 holds +1 for every event: what it became is the norm's factor.
QUESTIONS = ("who contributed", "in which order", "in which order", "whose gate leads")

# What the first of these questions that is answered differently says of a block.
_MEANS = {
    "who contributed": "other tokens contributed, or with other weights",
    "in which order": "the same tokens contributed, at other slots or with another position bias",
    "whose gate leads": "the same tokens contributed, at the same slots, with other gates",
}


class OneHotStream:
    """Event number k as the k-th unit vector [H], in float64; events are numbered as they are first fed."""

    poison: float = float("nan")

    def __init__(self, hidden_width: int) -> None:
        self.hidden_width = hidden_width
        self._numbers: dict[int, int] = {}

    def feed(self, ids: list[int]) -> NDArray[np.float64]:
        fed = np.zeros((len(ids), self.hidden_width))
        for row, token in enumerate(ids):
            fed[row, self._numbers.setdefault(token, len(self._numbers))] = 1
        return fed

    def padding(self, rows: int, columns: int) -> NDArray[np.float64]:
        return np.full((rows, columns, self.hidden_width), np.nan)


@dataclass(frozen=True)
class Proof:
    """Why equal blocks are equal tokens. squares: the largest sum of squared numerators, and its limit."""

    events: int
    hidden_width: int
    squares: int
    squares_max: int
    who: int
    orders: int

    def __str__(self) -> str:
        return (
            f"{self.events} events in {self.hidden_width} channels, squares sum to at most {self.squares} of "
            f"{self.squares_max}; one or two wrong tokens show in who contributed ({self.who} channels) or in which order "
            f"({self.orders} bits of the slot)"
        )


def events_fed(fixture: Fixture) -> int:
    """How many events all sequences of a fixture are fed, drafts and refused steps included."""
    return sum(_fed(step) for step in fixture.step)


def _fed(step: Step) -> int:
    match step:
        case do.Prefill(lengths=counts) | do.Adopt(tokens=counts) | do.Advance(n_new=counts):
            return sum(counts)
        case do.Verify(width=width, accept=accept):
            return width * len(accept)
        case _:
            return 0


def limits(fixture: Fixture) -> Iterator[str]:
    """Why arithmetic on this fixture's exact data would round: one sentence for each reason."""
    values, slots = fixture.values, fixture.span * fixture.ratio
    for name, number in (("span * ratio", slots), ("values.block_width", values.block_width)):
        if number & (number - 1):
            yield f"{name} is {number}; exact data needs a power of two, by which a division rounds nothing"
    events = events_fed(fixture)
    if events > values.hidden_width:
        yield (
            f"values.hidden_width is {values.hidden_width}; exact data needs at least {events}, one channel for each event "
            "that the schedule feeds"
        )
    squares, squares_max = _squares(fixture)
    if squares > squares_max:
        yield (
            f"squares of pooled values sum to as much as {squares}; in {values.dtype} exact data needs at most {squares_max}: "
            f"narrow values.block_width, {values.block_width}, or the window, {slots} tokens"
        )
    over = denominator(fixture.ratio, fixture.span)
    if values.dtype == "bfloat16" and over > _READABLE_BFLOAT16:
        yield (
            f"pooled values are integers over {over}; a block in bfloat16 says them over at most {_READABLE_BFLOAT16}: take a "
            "smaller span * ratio"
        )
    gates, gates_max = fixture.span * values.hidden_width, 1 << _GATE_BITS[values.dtype]
    gates_max = gates_max if values.dtype == "bfloat16" else gates_max // int(_LOUDER)
    if gates > gates_max:
        yield (
            f"exact data has span * hidden_width = {gates} different gates; {values.dtype} holds {gates_max} of them: "
            f"take a hidden_width of at most {gates_max // fixture.span}"
        )
    if values.bias != "normal":
        yield f"values.bias is {values.bias!r}; exact data brings its own position bias: leave the key out"


def denominator(ratio: int, span: int) -> int:
    """Pooled values are integers over this: a sum of an even number of signs is even."""
    return max(ratio * span // 2, 1)


def _squares(fixture: Fixture) -> tuple[int, int]:
    """The largest sum of a block's squared numerators, and the largest that a significand is sure to hold."""
    largest = fixture.values.block_width * denominator(fixture.ratio, fixture.span) ** 2
    return largest, 1 << _POOLED_BITS[fixture.values.dtype]


def exact_weights(fixture: Fixture) -> Weights:
    """Signs as values, silence by position, gates in steps of 1024; a gamma like any other."""
    values, ratio, span = fixture.values, fixture.ratio, fixture.span
    hidden, d = values.hidden_width, values.block_width
    rng = np.random.default_rng([ratio, span, hidden, d])
    signs = rng.choice([-1.0, 1.0], (span, d, hidden))
    signs[:, 0] = 1
    gates = np.zeros((span, d, hidden))
    for channel in _channels(d, "whose gate leads"):
        for series in range(span):
            gates[series, channel] = _LOUDER * (span * rng.permutation(hidden) + series)
    bias = np.zeros((span * ratio, d))
    for bit, channels in enumerate(_orders(ratio, span, d)):
        silenced = np.flatnonzero(~np.arange(span * ratio) >> bit & 1)
        bias[np.ix_(silenced, channels)] = _SILENT
    return Weights(
        wkv=signs.reshape(span * d, hidden),
        wgate=gates.reshape(span * d, hidden),
        bias=bias.reshape(span, ratio, d).transpose(1, 0, 2).reshape(ratio, span * d),
        gamma=rounded(rng.uniform(*_GAMMA, d), values.dtype),
        rope_width=values.rope_width,
        dtype=values.dtype,
    )


def _channels(d: int, question: str) -> NDArray[np.int64]:
    return np.flatnonzero([QUESTIONS[channel % len(QUESTIONS)] == question for channel in range(d)])


def _orders(ratio: int, span: int, d: int) -> list[NDArray[np.int64]]:
    """For each bit of a slot's number, the channels that pool only the slots that have it."""
    bits = (span * ratio - 1).bit_length()
    return [_channels(d, "in which order")[bit::bits] for bit in range(bits)]


def prove(fixture: Fixture) -> Proof:
    """The proof for a fixture with exact data. Raises ValueError, with one sentence a line, if there is none."""
    problems = list(limits(fixture))
    if not problems:
        problems = list(_alike(fixture, exact_weights(fixture)))
    if problems:
        raise ValueError("\n".join(problems))
    values = fixture.values
    squares, squares_max = _squares(fixture)
    orders = _orders(fixture.ratio, fixture.span, values.block_width)
    who = len(_channels(values.block_width, "who contributed"))
    return Proof(events_fed(fixture), values.hidden_width, squares, squares_max, who, len(orders))


def _alike(fixture: Fixture, weights: Weights) -> Iterator[str]:
    """Which events, or sums of two events, have the same signs, so that a pooled value might not tell them apart."""
    d, hidden, events = fixture.values.block_width, fixture.values.hidden_width, events_fed(fixture)
    groups = {"who contributed": _channels(d, "who contributed")}
    for bit, channels in enumerate(_orders(fixture.ratio, fixture.span, d)):
        groups[f"in which order, bit {bit} of the slot"] = channels
    widen = f"widen values.block_width, {d}"
    fed = weights.wkv.reshape(fixture.span, d, hidden)[:, :, :events] > 0
    shared = False
    for series, signs in enumerate(fed):
        for name, channels in groups.items():
            different = len({column.tobytes() for column in np.packbits(signs[channels], axis=0).T})
            if different < events:
                shared = True
                yield (
                    f"series {series} has {different} different signs for {events} events in the {len(channels)} channels that "
                    f"say {name}; each event should have its own: {widen}"
                )
    who = groups["who contributed"]
    if not shared and not all(_sums_differ(one[who], other[who]) for one, other in _pairs_of_series(fed)):
        yield (
            f"two pairs of the {events} events have the same sums of signs in the {len(who)} channels that say who "
            f"contributed; each pair should have its own: {widen}"
        )


def _pairs_of_series(signs: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    return ((one, other) for place, one in enumerate(signs) for other in signs[place:])


def _sums_differ(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> bool:
    """Whether every sum of an event's signs [channels, events] in `one` and an event's in `other` occurs once.

    Sums are compared by a linear hash: different hashes prove different sums.
    """
    key = np.random.default_rng(0).integers(1 << 64, size=len(one), dtype=np.uint64)
    hashes = np.add.outer(key @ one.astype(np.uint64), key @ other.astype(np.uint64))
    sums = hashes[np.triu_indices(len(hashes))] if np.array_equal(one, other) else hashes.ravel()
    return len(np.unique(sums)) == len(sums)


def numerators(before_norm: Array, ratio: int, span: int) -> Array:
    """Pooled values [n, d] as integers over `denominator`, from blocks [n, d] up to a factor; NaN where that is not finite.

    Channel 0 of a pooled value is 1, so it holds the factor. What the norm rounded is far below a half.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found: Array = np.rint(before_norm / before_norm[:, :1] * denominator(ratio, span))
    return np.where(np.isfinite(found), found, np.nan)


def told(found: Array, right: Array, over: int, names: tuple[str, str]) -> Iterator[str]:
    """What pooled values [d] of one block say, in words: which questions are answered differently, and one answer."""
    off = found != right
    if not off.any():
        yield "the pooled values are the same: what differs is the norm or the rotation"
        return
    counts = {}
    for question in dict.fromkeys(QUESTIONS):
        channels = _channels(len(found), question)
        counts[question] = f"{int(off[channels].sum())} of {len(channels)}"
    answered = next(question for question, count in counts.items() if not count.startswith("0 "))
    yield (
        f"{_MEANS[answered]}; channels that differ: "
        f"{', '.join(f'{question} {count}' for question, count in counts.items())}"
    )
    first = int(np.flatnonzero(off)[0])
    yield f"channel {first} pooled {found[first]:g}/{over} in {names[0]}, {right[first]:g}/{over} in {names[1]}"
