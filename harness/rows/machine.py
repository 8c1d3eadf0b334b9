"""A Hypothesis state machine over the steps of schedules: short random histories in which rows come to differ.

What can be done next, and what must be refused, is read off the oracle's promises alone; the implementation
under judgement never steers the search. Lengths, depths and widths are drawn around block edges and the
rollback margin, because a history that stays away from them tells nothing. Rows often go ahead and come back
(`detour`), so that equal tokens meet unequal bases.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from harness.rows import schedule as do
from harness.rows.defaults import PLANS, RETAINS
from harness.rows.play import Play
from harness.rows.schedule import Fixture, Step
from harness.rows.stage import Member
from harness.rows.subject import Oracle, Subject
from harness.rows.trace import Trace

# (ratio, span, margin); the margin is small now and then, and mostly what a layer has.
GEOMETRIES = (
    *[(4, 2, 16), (8, 1, 16), (128, 1, 16)] * 3,
    *[(4, 2, 4), (8, 1, 1), (4, 2, 1), (8, 1, 0), (4, 2, 0), (128, 1, 1)],
)
ROWS_MAX = 5
STEPS_MAX = 7
_KV_WINDOWS = (0, 0, 8)
_Drawn = TypeVar("_Drawn")


class Failed(Exception):
    """A check is red, or the play stopped. Hypothesis shrinks the history that led here."""


class RowMachine(RuleBasedStateMachine):
    """One history, played step by step. `failed` receives the fixture and its trace when it goes wrong."""

    def __init__(self, subject: Subject, oracle: Oracle, failed: Callable[[Fixture, Trace], None]) -> None:
        super().__init__()
        self.subject, self.oracle, self.failed = subject, oracle, failed
        self.play: Play | None = None
        self.steps: list[Step] = []

    @initialize(data=st.data())
    def open(self, data: st.DataObject) -> None:
        """A batch of prompts, in one padded call."""
        self._draw = data.draw
        self.ratio, self.span, self.margin = self._one_of(GEOMETRIES)
        options = {"retain": self._one_of(RETAINS), "plan": self._one_of(PLANS)}
        self.fixture = Fixture(
            "found", "", self.ratio, self.span, (), self.margin, kv_window=self._one_of(_KV_WINDOWS)
        )
        self.play = Play(self.fixture, self.subject, self.oracle, options).__enter__()
        rows = self._one_of((2, 3, 4, 1))
        length = self._length()
        match self._one_of(("equal", "equal", "equal residues", "each")):
            case "equal":
                lengths = [length] * rows
            case "equal residues":
                lengths = [length % self.ratio + self.ratio * self._one_of((0, 1, 2, 3)) for _ in range(rows)]
            case _:
                lengths = [length] + [self._length() for _ in range(rows - 1)]
        self._step(do.Prefill(tuple(lengths)))

    def teardown(self) -> None:
        if self.play is not None:
            self.play.__exit__()

    def _step(self, step: Step) -> None:
        assert self.play is not None
        self.steps.append(step)
        self.play.step(step)
        trace = self.play.trace
        if trace.stopped is not None or trace.mismatches:
            self.failed(Fixture(**{**vars(self.fixture), "step": tuple(self.steps)}), trace)
            raise Failed

    @property
    def order(self) -> list[Member]:
        return self.play.order if self.play is not None else []

    @property
    def parked(self) -> dict[int, Member]:
        assert self.play is not None
        return {number: member for number, (member, _) in self.play.parked.items()}

    def has_batch(self) -> bool:
        return bool(self.order)

    def has_kv(self) -> bool:
        return bool(self.order) and bool(self.fixture.kv_window)

    def has_room(self) -> bool:
        return len(self.order) + len(self.parked) < ROWS_MAX

    def _one_of(self, values: Sequence[_Drawn]) -> _Drawn:
        return self._draw(st.sampled_from(values))

    def _length(self) -> int:
        """A prompt that ends at a block edge, or where the base is about to move, or anywhere."""
        r, m = self.ratio, self.margin
        edges = [k * r + e for k in (1, 2, 3) for e in (-1, 0, 1)]
        moves = [k * r + m + e for k in (self.span, self.span + 1) for e in (-1, 0, 1)]
        return self._one_of([*sorted({1, 2, 3, r // 2, *edges, 3 * r + m // 2}), 0, *moves])

    def _count(self) -> int:
        r, m = self.ratio, self.margin
        return self._one_of(sorted({1, 2, 3, r - 1, r, r + 1, max(m, 1), m + 1, 2 * r}))

    def _rows(self) -> tuple[int, ...]:
        """Rows in any order; repeated ones too, unless K/V slots would have to be copied with them."""
        rows = st.sampled_from(range(len(self.order)))
        return tuple(
            self._draw(st.lists(rows, min_size=1, max_size=ROWS_MAX, unique=bool(self.fixture.kv_window)))
        )

    def _may_drop(self, member: Member, n: int, appended: int = 0) -> bool:
        """Whether n tokens may be rolled back after `appended` more, by promises and by the K/V window."""
        promises, window = copy.copy(member.promises), self.fixture.kv_window
        promises.advance(appended)
        live = min(member.kv_live + appended, window - 1 + self.margin)
        if window and live - n < min(promises.tokens - n, window - 1):
            return False
        return promises.rollback_refusal(n) is None

    def _detours(self, member: Member) -> dict[int, bool]:
        """How far a row may go ahead and come back, and whether its base rises on the way."""
        found = {}
        for n in [*range(1, self.margin + 2), self.margin + self.ratio - 1]:
            promises = copy.copy(member.promises)
            promises.advance(n)
            if n and self._may_drop(member, n, n):
                found[n] = promises.base > member.promises.base
        return found

    def _alike(self) -> bool:
        return len({member.promises.tokens for member in self.order}) == 1

    def _up_to_the_longest(self, beyond: int) -> tuple[int, ...]:
        longest = max(member.promises.tokens for member in self.order) + beyond
        return tuple(longest - member.promises.tokens for member in self.order)

    @rule(data=st.data())
    @precondition(has_batch)
    def advance(self, data: st.DataObject) -> None:
        """All rows alike, one row alone, each by its own count, or up to the longest."""
        self._draw = data.draw
        rows = len(self.order)
        often = "equal" if self._alike() else "up to the longest"
        match self._one_of(("equal", often, often, "each", "one")):
            case "equal":
                counts = [self._count()] * rows
            case "one":
                row, n = self._one_of(range(rows)), self._count()
                counts = [n * (i == row) for i in range(rows)]
            case "each":
                counts = [self._count() * self._one_of((1, 1, 0)) for _ in range(rows)]
            case _:
                counts = list(self._up_to_the_longest(self._one_of((0, 1))))
        self._step(do.Advance(tuple(counts)))

    @rule(data=st.data())
    @precondition(has_batch)
    def detour(self, data: st.DataObject) -> None:
        """One row goes ahead and comes back: its tokens are as before, its base may not be."""
        self._draw = data.draw
        if not self._alike() and self._one_of((True, False)):
            self._step(do.Advance(self._up_to_the_longest(0)))
        ways = {row: self._detours(member) for row, member in enumerate(self.order)}
        rising = {row: [n for n, rises in found.items() if rises] for row, found in ways.items()}
        rows = [row for row in ways if rising[row]] or [row for row in ways if ways[row]]
        if not rows:
            return
        row = self._one_of(rows)
        n = self._one_of([(rising[row] or list(ways[row]))[0], max(ways[row])])
        self._step(do.Advance(tuple(n * (i == row) for i in range(len(self.order)))))
        self._step(do.Rollback(row, n))
        if self._alike() and self._one_of((True, True, False)):
            self._step(do.Advance((self._count(),) * len(self.order)))

    @rule(data=st.data())
    @precondition(has_batch)
    def verify(self, data: st.DataObject) -> None:
        """Drafts for all rows, each accepting its own number."""
        self._draw = data.draw
        width = self._one_of(range(1, 9))
        accept = [
            self._one_of([n for n in range(width + 1) if self._may_drop(member, width - n, width)])
            for member in self.order
        ]
        self._step(do.Verify(width, tuple(accept)))

    @rule(data=st.data())
    @precondition(has_batch)
    def rollback(self, data: st.DataObject) -> None:
        """A row goes back, to the edge of what it promises or just beyond it."""
        self._draw = data.draw
        row = self._one_of(range(len(self.order)))
        member, r, m = self.order[row], self.ratio, self.margin
        deepest = 0
        while member.promises.rollback_refusal(deepest + 1) is None:
            deepest += 1
        depths = {1, 2, r - 1, r, r + 1, m - 1, m, m + 1, m + 2 * r, deepest, deepest + 1, 0}
        n = self._one_of(sorted(depths - {-1}))
        refusal = member.promises.rollback_refusal(n)
        if refusal is not None or self._may_drop(member, n):
            self._step(do.Rollback(row, n, expect_refusal=refusal))

    @rule(data=st.data())
    @precondition(has_batch)
    def choose(self, data: st.DataObject) -> None:
        """Rows survive, change places or are doubled: by select, by reorder, or by tensors built outside."""
        self._draw = data.draw
        match self._one_of(("select", "reorder", "reshape")):
            case "select":
                self._step(do.Select(self._rows()))
            case "reorder":
                self._step(do.Reorder(tuple(self._draw(st.permutations(range(len(self.order)))))))
            case _:
                ragged = len({(m.promises.tokens, m.promises.base) for m in self.order}) > 1
                rows = self._rows()
                self._step(do.Reshape(rows, expect_refusal="reshape-ragged" if ragged else None))

    @rule(data=st.data())
    @precondition(has_batch)
    def split(self, data: st.DataObject) -> None:
        """A row leaves, or all do."""
        self._draw = data.draw
        row = self._one_of(range(-1, len(self.order)))
        if not {member.number for member in self.order} & set(self.parked):
            self._step(do.Split(() if row < 0 else (row,)))

    @rule(data=st.data())
    @precondition(lambda self: self.has_room())
    def park(self, data: st.DataObject) -> None:
        """A sequence of its own: a prompt, or a stored state whose base need not be what a prompt's would be."""
        self._draw = data.draw
        if self.fixture.kv_window or self._one_of((False, False, True)):
            self._step(do.Prefill((self._length(),), parked=True))
            return
        standing = [member.promises.tokens for member in self.order]
        beside = bool(standing) and self._one_of((True, False))
        tokens = self._one_of(standing) if beside else self._length()
        need = self.oracle.promises(self.ratio, self.span, self.margin).need(tokens)
        bases = {0, need, max(need - self.ratio, 0), need // self.ratio // 2 * self.ratio}
        self._step(do.Adopt((tokens,), (self._one_of(sorted(bases)),)))

    @rule(data=st.data())
    @precondition(lambda self: bool(self.parked))
    def assemble(self, data: st.DataObject) -> None:
        """Parked sequences join the batch, or become it; per-row state is on, so reconcile must do nothing."""
        self._draw = data.draw
        free = sorted(set(self.parked) - {member.number for member in self.order})
        if not free:
            return
        coming = tuple(self._draw(st.permutations(free))[: self._one_of(range(len(free), 0, -1))])
        if len(coming) > 1 and self._one_of((False, True)):
            self._step(do.Reconcile(coming))
        self._step(do.Assemble(coming))

    @rule(data=st.data())
    @precondition(lambda self: bool(self.parked) or len(self.order) == 1)
    def trim(self, data: st.DataObject) -> None:
        """A parked run loses its oldest tokens, or the batch is asked to, which only one row may be."""
        self._draw = data.draw
        name = self._one_of([*([None] if self.order else []), *sorted(self.parked)])
        promises = (self.order[0] if name is None else self.parked[name]).promises
        rows = len(self.order) if name is None else 1
        need, r = promises.need(promises.tokens), self.ratio
        bases = {need, promises.base, need - r, promises.base + r, promises.base - r, need + r, need + 1}
        base = self._one_of(sorted(b for b in bases if b >= 0))
        self._step(do.Trim(base, name, expect_refusal=promises.trim_refusal(base, rows)))

    @rule(data=st.data())
    @precondition(lambda self: self.has_batch() and not self.fixture.kv_window)
    def store(self, data: st.DataObject) -> None:
        """The batch is written, or replaced by what was written: in full, so not while parts of it are parked."""
        self._draw = data.draw
        assert self.play is not None
        names: list[str] = [
            name
            for name, (_, members, _) in self.play.saved.items()
            if not {member.number for member in members} & set(self.parked)
        ]
        back = bool(names) and self._one_of((True, True, False))
        if back:
            self._step(do.Restore(self._one_of(names)))
        else:
            self._step(do.Snapshot(self._one_of(("a", "b"))))

    @rule(data=st.data())
    @precondition(has_kv)
    def align(self, data: st.DataObject) -> None:
        """The K/V slots are brought to one length, and once more after some went on."""
        self._draw = data.draw
        self._step(do.Align(drop=self._one_of((False, True))))
        if self._one_of((False, True)):
            self._step(do.Advance(tuple(self._one_of((0, 1, 2)) for _ in self.order)))
            self._step(do.Align(drop=self._one_of((False, True))))
