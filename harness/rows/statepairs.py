"""Pairs of states, one right and one wrong, from the histories that the fixtures play: what the data would show.

A fault is planted in a row's state as event ids: no implementation is asked. Each stream then says what the two
states would have held, and each lane whether it could tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.rows.events import ABSENT, STRIDE, Ledger
from harness.rows.play import Play
from harness.rows.schedule import Fixture
from harness.rows.subject import Oracle, Subject

ROWS_MAX = 8


@dataclass(frozen=True)
class Row:
    """One sequence at one moment: the ids it holds by right, oldest first, and what it promises."""

    number: int
    history: tuple[int, ...]
    base: int
    live: int

    @property
    def run(self) -> tuple[int, ...]:
        return self.history[self.base :]


@dataclass(frozen=True)
class State:
    """What a row holds: its run, and each block as the ids that it pooled (slot order) and its index."""

    tail: tuple[int, ...]
    blocks: tuple[tuple[tuple[int, ...], int], ...]


@dataclass(frozen=True)
class Moment:
    """The rows of a batch after one step. slots: block -> the absolute tokens of its slots, -1 where none is."""

    fixture: Fixture
    step: int
    rows: tuple[Row, ...]
    ledger: Ledger
    slots: Callable[[int], list[int]]

    def state(self, row: Row) -> State:
        return State(row.run, tuple((self.pooled(row.history, j), j) for j in range(row.live)))

    def pooled(self, history: Sequence[int], block: int) -> tuple[int, ...]:
        return tuple(history[t] if t >= 0 else ABSENT for t in self.slots(block))

    def other(self, row: Row) -> Row | None:
        """The next row that is another sequence."""
        at = self.rows.index(row)
        after = [*self.rows[at + 1 :], *self.rows[:at]]
        return next((each for each in after if each.number != row.number), None)

    def draft(self, row: Row, position: int) -> int | None:
        """The last token that stood at `position` before the one that is there now."""
        live = row.history[position]
        fed = self.ledger.positions[row.number]
        before = [e for e in range(live - 1 - row.number * STRIDE) if fed[e] == position]
        return row.number * STRIDE + before[-1] + 1 if before else None


Plant = Callable[[Moment, Row], State | None]
FAULTS: dict[str, tuple[str, str, Plant]] = {}


def _fault(theme: str, says: str) -> Callable[[Plant], Plant]:
    def keep(plant: Plant) -> Plant:
        FAULTS[plant.__name__] = (theme, says, plant)
        return plant

    return keep


def _with_block(state: State, at: int, pooled: Sequence[int], index: int | None = None) -> State:
    blocks = list(state.blocks)
    blocks[at] = (tuple(pooled), blocks[at][1] if index is None else index)
    return State(state.tail, tuple(blocks))


@_fault("rows", "a row holds its neighbour's tokens, position by position")
def rows_mixed_up(now: Moment, row: Row) -> State | None:
    other = now.other(row)
    if other is None:
        return None
    mixed = other.history[: len(row.history)] + row.history[len(other.history) :]
    return now.state(Row(row.number, mixed, row.base, row.live))


@_fault("rows", "a trim keeps the oldest tokens in the place of the newest")
def wrong_end_kept(now: Moment, row: Row) -> State | None:
    return State(row.history[: len(row.run)], now.state(row).blocks) if row.base else None


@_fault("rows", "a run is handed over newest first")
def run_reversed(now: Moment, row: Row) -> State | None:
    return State(row.run[::-1], now.state(row).blocks)


@_fault("scatter", "a row's block is its neighbour's block of the same index")
def block_of_another_row(now: Moment, row: Row) -> State | None:
    other = now.other(row)
    if other is None or not min(row.live, other.live):
        return None
    block = min(row.live, other.live) - 1
    return _with_block(now.state(row), block, now.pooled(other.history, block))


@_fault("scatter", "a column holds the block before it")
def block_one_column_late(now: Moment, row: Row) -> State | None:
    if row.live < 2:
        return None
    return _with_block(now.state(row), row.live - 1, now.pooled(row.history, row.live - 2), row.live - 2)


@_fault("storage", "the tail is one token old: shifted by one column")
def tail_shifted_by_one(now: Moment, row: Row) -> State | None:
    moved = row.history[row.base - 1 : len(row.history) - 1]
    return State(moved, now.state(row).blocks) if row.base else None


@_fault("snapshots", "a stored window is one block old")
def window_of_a_block_before(now: Moment, row: Row) -> State | None:
    r = now.fixture.ratio
    return State(row.history[row.base - r : -r], now.state(row).blocks) if row.base >= r else None


@_fault("retention", "the newest token was not written; its column is as it was made, zero")
def newest_token_not_kept(now: Moment, row: Row) -> State | None:
    return State((*row.run[:-1], 0), now.state(row).blocks) if row.run else None


@_fault("rollback", "the tail still holds drafts that were rolled back")
def stale_tail(now: Moment, row: Row) -> State | None:
    held = tuple(now.draft(row, p) or row.history[p] for p in range(row.base, len(row.history)))
    return State(held, now.state(row).blocks)


@_fault("rollback", "a block that was built from drafts stands in the place of its successor")
def stale_block(now: Moment, row: Row) -> State | None:
    state = now.state(row)
    for block in range(row.live - 1, -1, -1):
        slots = now.slots(block)
        drafts = [ABSENT if t < 0 else now.draft(row, t) or row.history[t] for t in slots]
        if tuple(drafts) != state.blocks[block][0]:
            return _with_block(state, block, drafts)
    return None


@_fault("alignment", "a narrower row is padded at the back of the window in the place of the front")
def padded_at_the_back(now: Moment, row: Row) -> State | None:
    lead = max(len(each.run) for each in now.rows) - len(row.run)
    return State((row.run + (0,) * lead)[lead:], now.state(row).blocks) if lead else None


@_fault("windows", "one token of a block is the neighbour's at the same position")
def one_token_of_another_row(now: Moment, row: Row) -> State | None:
    other = now.other(row)
    if other is None or not row.live or len(other.history) < now.fixture.ratio:
        return None
    block = min(row.live, len(other.history) // now.fixture.ratio) - 1
    pooled = list(now.pooled(row.history, block))
    pooled[-1] = other.history[now.slots(block)[-1]]
    return _with_block(now.state(row), block, pooled)


@_fault("windows", "one token of a block is the one before it")
def one_token_early(now: Moment, row: Row) -> State | None:
    if not row.live:
        return None
    pooled = list(now.pooled(row.history, row.live - 1))
    pooled[-1] = pooled[-2]
    return _with_block(now.state(row), row.live - 1, pooled)


@_fault("windows", "padding, which is zero, is pooled as a block's last token")
def padding_is_pooled(now: Moment, row: Row) -> State | None:
    if not row.live:
        return None
    return _with_block(now.state(row), row.live - 1, (*now.pooled(row.history, row.live - 1)[:-1], 0))


@_fault("compressor", "two tokens of a block change places")
def two_tokens_exchanged(now: Moment, row: Row) -> State | None:
    if not row.live:
        return None
    *rest, one, other = now.pooled(row.history, row.live - 1)
    return _with_block(now.state(row), row.live - 1, (*rest, other, one))


@_fault("compressor", "a block is rotated as if it were the next one")
def rotated_as_the_next(now: Moment, row: Row) -> State | None:
    pooled = now.pooled(row.history, row.live - 1) if row.live else (ABSENT,)
    if ABSENT in pooled:  # the next block would have a predecessor
        return None
    return _with_block(now.state(row), row.live - 1, pooled, row.live)


# These change no data, so no stream can show them; the checks `base` and `refusal` do.
PROMISES = {
    "dispatch": "all rows are given row 0's base: what they hold is right, what they promise is not",
    "reconcile": "a base is raised for the whole batch: every token that is read is right, a rollback is refused",
}


class _Watched(Play):
    """A play of the token lane that shows what stands after each step."""

    def moments(self) -> Iterator[Moment]:
        oracle, fixture = self.oracle, self.fixture

        def slots(block: int) -> list[int]:
            return oracle.block_tokens(block, fixture.ratio, fixture.span)

        with self:
            for number, step in enumerate(self.steps):
                if not self.step(step):
                    return
                rows = tuple(
                    Row(m.number, tuple(m.history), m.promises.base, m.promises.live_blocks)
                    for m in self.order
                )
                if len(rows) <= ROWS_MAX:
                    yield Moment(fixture, number, rows, self.ledger, slots)


@dataclass(frozen=True)
class Pair:
    """One instance of a fault: where it is planted, the right state and the wrong one."""

    fault: str
    moment: Moment
    row: Row
    right: State
    wrong: State


def pairs(fixtures: Sequence[Fixture], subject: Subject, oracle: Oracle) -> Iterator[Pair]:
    """The first instance of every fault in every fixture that has one: the wrong state holds other ids."""
    options: Mapping[str, str] = {"retain": "hidden", "plan": "gathered"}
    for fixture in fixtures:
        found: set[str] = set()
        for moment in _Watched(fixture, subject, oracle, options).moments():
            for name, (_, _, plant) in FAULTS.items():
                if name in found:
                    continue
                for row in moment.rows:
                    right, wrong = moment.state(row), plant(moment, row)
                    if wrong is not None and wrong != right:
                        found.add(name)
                        yield Pair(name, moment, row, right, wrong)
                        break
