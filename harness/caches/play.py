"""Play a schedule on somebody's cache: as a batch, each sequence alone, and each history from a fresh start.

*Alone* is the same cache with one row and the same history of appends, rollbacks and trims: it shows what a batch
does to a row. *Fresh* is the same cache with one row, given only the tokens that are left, in one call: it shows
what a history does to a row. A rollback that forgets to roll back is the same in batch and alone.
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.caches.compare import Comparison
from harness.caches.labels import pad_ids
from harness.caches.protocol import Cache, Described, Factory, Geometry, NotOffered
from harness.rows import schedule as do
from harness.rows.events import Ledger, Stream, TokenStream, VectorStream
from harness.rows.schedule import Fixture, Step
from harness.rows.subject import Array
from harness.rows.trace import Stop, Trace


@dataclass
class Member:
    """One sequence: its twin that plays alone, and the events it holds by right.

    before : what it held before the step that is played; longest : the most that it held during it, drafts included
    ever   : every event that it was fed, in order; padded : the most columns of padding beside them
    fork   : the sequence that it was copied from, and how many tokens they had; or None
    """

    number: int
    alone: Cache
    history: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    longest: list[int] = field(default_factory=list)
    ever: list[int] = field(default_factory=list)
    padded: int = 0
    fork: tuple[int, int] | None = None


class Ended(Exception):
    """The play cannot go on, and the reason is recorded."""


class CachePlay:
    """One play of one fixture on one cache: `run` returns its trace, `refused` says that the cache ended it itself.

    every: batch and alone are compared after every step; with a fresh start and the reference, which take the whole
    history each time, only after every n-th step and the last. The trace counts what was compared.
    explain: say whose entries stand there and which history explains them, at the cost of replays; the verdict is the same.
    """

    def __init__(
        self,
        fixture: Fixture,
        cache: Described,
        until: int | None = None,
        *,
        poison: bool = True,
        every: int = 1,
        explain: bool = True,
    ) -> None:
        self.fixture, self.cache = fixture, cache
        self.steps = fixture.step if until is None else fixture.step[: until + 1]
        self.geometry = Geometry(fixture.ratio, fixture.span, fixture.margin)
        self.stream: Stream = TokenStream() if cache.stream == "ids" else VectorStream(cache.width)
        self.trace = Trace(fixture, {}, [do.describe(step) for step in fixture.step])
        self.ledger = Ledger()
        self.batch: Cache | None = None
        self.order: list[Member] = []
        self.members: list[Member] = []
        self.parked: dict[int, tuple[Member, Cache]] = {}
        self.saved: dict[str, tuple[Path, list[tuple[Member, list[int], Path]]]] = {}
        self.at = -1
        self.every, self.explain = every, explain
        self.poison = poison and "poison" in cache.supports
        self.skipped = 0
        self.refused = False
        self.rolling_back = False
        self.padding = 0  # the most columns of padding that a call had
        self.comparison = Comparison(self)

    def run(self) -> Trace:
        """Play all steps. What the cache raises ends the play and is recorded, never raised."""
        with tempfile.TemporaryDirectory(prefix="rowproof-") as folder:
            self.folder = Path(folder)
            for step in self.steps:
                self.at += 1
                if step.expect_refusal is not None:
                    self.skipped += 1
                elif not self._going(step):
                    break
            if self.trace.stopped is None:
                self._calibrated()
        return self.trace

    def _calibrated(self) -> None:
        try:
            self.comparison.calibrate()
        except (Exception, SystemExit) as error:  # noqa: BLE001 (the cache's own fault, whatever it is)
            told = f"{type(error).__name__}: {error}{_place(error)}, at a newest token that is another one"
            self.trace.stopped = Stop(self.at, told)

    def _going(self, step: Step) -> bool:
        for member in self.members:
            member.before, member.longest = list(member.history), list(member.history)
        self.rolling_back = isinstance(step, (do.Verify, do.Rollback))
        try:
            self._step(step)
            self._poison()
            due = (self.at + 1) % self.every == 0 or self.at + 1 == len(self.steps)
            held = self.comparison.collect(from_the_start=due)
        except Ended as ended:
            self.trace.stopped = Stop(self.at, str(ended))
        except NotOffered as limit:
            self.refused = True
            self.trace.stopped = Stop(self.at, f"not offered: {limit}")
        except (Exception, SystemExit) as error:  # noqa: BLE001 (the cache's own fault, whatever it is)
            self.trace.stopped = Stop(self.at, f"{type(error).__name__}: {error}{_place(error)}")
        if self.trace.stopped is not None:
            return False
        self.comparison.compare(held)
        return True

    def open(self, rows: int) -> Cache:
        """An empty cache of the cache's own factory."""
        factory: Factory = self.cache.factory
        return factory(self.geometry, rows)

    def fresh(self, ids: Sequence[int]) -> Cache:
        """A cache that was given exactly these tokens: in one call, or token by token if it refuses so many at once."""
        cache = self.open(1)
        try:
            if ids:
                self.give(cache, [list(ids)], [len(ids)])
        except self.cache.refusal:
            cache = self.open(1)
            for token in ids:
                self.give(cache, [[token]], [1])
        return cache

    def give(self, cache: Cache, ids: Sequence[list[int]], counts: Sequence[int]) -> None:
        """One call of `advance`. Its inputs are overwritten afterwards: a cache must not live on its caller's memory."""
        inputs = self.fed(ids)
        cache.advance(inputs, list(counts))
        inputs[...] = self.stream.poison

    def present(self) -> Cache:
        """The batch; the schedule was validated, so there is one."""
        assert self.batch is not None
        return self.batch

    def _step(self, step: Step) -> None:
        match step:
            case do.Prefill():
                self._prefill(step)
            case do.Advance(n_new=counts):
                self._advance(counts)
            case do.Verify(width=width, accept=accept):
                self._advance([width] * len(self.order))
                self._rollback([width - n for n in accept])
            case do.Rollback(row=row, n=n):
                self._rollback([n if k == row else 0 for k in range(len(self.order))])
            case do.Split(rows=rows):
                self._split(rows or tuple(range(len(self.order))))
            case do.Assemble(sequences=sequences):
                self._assemble(sequences)
            case do.Select(rows=rows) | do.Reorder(rows=rows):
                self._select(rows)
            case do.Trim(base=base, sequence=sequence):
                self._trim(base, sequence)
            case do.Snapshot(name=name):
                self._snapshot(name)
            case do.Restore(name=name):
                self._restore(name)
            case _:
                raise AssertionError(f"{step.do} was found playable and is not")

    def _attempt(self, batch: Callable[[], None], alone: Callable[[], None]) -> None:
        """Batch first, then alone; a refusal by one of them is a difference, by both the end of the play."""
        before = self.comparison.reads()
        refused = self._refusal_of(batch)
        changed = refused is not None and not self.comparison.same(before, self.comparison.reads())
        twin = self._refusal_of(alone)
        self.trace.compared["refusal"] += 1
        if changed:
            self.comparison.record(
                "refusal", None, ("the operation was refused, and yet a row's state changed", str(refused))
            )
        if (refused is None) != (twin is None):
            said = f"batch {_says(refused)}, alone {_says(twin)}"
            self.comparison.record("refusal", None, (said,))
            raise Ended(f"batch and alone refuse differently: {said}")
        if refused is not None:
            self.refused = True
            raise Ended(f"refused, by batch and alone: {refused}")

    def _refusal_of(self, act: Callable[[], None]) -> str | None:
        try:
            act()
        except self.cache.refusal as refusal:
            return str(refusal) or type(refusal).__name__
        return None

    def _new(self, alone: Cache) -> Member:
        member = Member(len(self.members), alone)
        self.members.append(member)
        return member

    def _fresh_ids(self, member: Member, n: int) -> list[int]:
        return self.ledger.append(member.number, len(member.history), n)

    def _prefill(self, step: do.Prefill) -> None:
        new = [self._new(self.open(1)) for _ in step.lengths]
        ids = [self._fresh_ids(member, n) for member, n in zip(new, step.lengths, strict=True)]
        if step.parked or self.batch is not None:
            for member, row in zip(new, ids, strict=True):
                park = self.open(1)
                self._attempt(
                    lambda park=park, row=row: self._feed(park, [row]),  # type: ignore[misc]
                    lambda member=member, row=row: self._alone_takes(member, row),  # type: ignore[misc]
                )
                self.parked[member.number] = member, park
            return
        self.order, self.batch = new, self.open(len(new))
        self._met("padded", len(set(step.lengths)) > 1)
        self._met("chunked", bool(step.cuts))
        edges = [0, *step.cuts, max(step.lengths)]
        pieces = [[row[start:end] for row in ids] for start, end in zip(edges, edges[1:], strict=False)]

        def together() -> None:
            for piece in pieces:
                self._feed(self.present(), piece)

        self._attempt(together, lambda: self._all_take(ids))

    def _advance(self, counts: Sequence[int]) -> None:
        ids = [self._fresh_ids(member, n) for member, n in zip(self.order, counts, strict=True)]
        self._met("idle", 0 in counts and any(counts))
        for member, n in zip(self.order, counts, strict=True):
            self._met("replaced", bool(n) and len(member.ever) > len(member.history))
            self._met("forked", bool(n) and member.fork is not None)
            self._met("dropped_fork", bool(n) and self._before_its_fork(member))
        self._attempt(lambda: self._feed(self.present(), ids), lambda: self._all_take(ids))

    def _feed(self, cache: Cache, ids: Sequence[list[int]]) -> None:
        """One call: right-padded new tokens. The padding has values of its own, so that it can be recognised."""
        counts = [len(row) for row in ids]
        columns = max(counts, default=0)
        self.padding = max(self.padding, columns - min(counts, default=0))
        for member, n in zip(self.order if cache is self.batch else [], counts, strict=False):
            member.padded = max(member.padded, columns - n)
        self.give(cache, [row + pad_ids(columns - len(row)) for row in ids], counts)

    def fed(self, ids: Sequence[Sequence[int]]) -> Array:
        """Inputs [rows, T, width] of equally long lists of ids."""
        inputs: Array = self.stream.feed([token for row in ids for token in row]).reshape(
            len(ids), -1, self.cache.width
        )
        return inputs

    def _all_take(self, ids: Sequence[list[int]]) -> None:
        for member, row in zip(self.order, ids, strict=True):
            self._alone_takes(member, row)

    def _alone_takes(self, member: Member, ids: list[int]) -> None:
        if ids:
            self.give(member.alone, [ids], [len(ids)])
        member.history += ids
        member.ever += ids
        member.longest = list(member.history)

    def _rollback(self, counts: Sequence[int]) -> None:
        def each() -> None:
            for member, n in zip(self.order, counts, strict=True):
                if n:
                    member.alone.rollback([n])

        self._met("dropped", any(counts))
        self._met("dropped_unevenly", len(set(counts)) > 1)
        for member, n in zip(self.order, counts, strict=True):
            self._met("dropped_past", len(member.history) - n < len(member.before) and bool(n))
        # A list of its own: what a cache does to it must not reach its twin, or what is held by right.
        self._attempt(lambda: self.present().rollback(list(counts)), each)
        for member, n in zip(self.order, counts, strict=True):
            del member.history[len(member.history) - n :]

    def _met(self, situation: str, there: bool = True) -> None:
        if there:
            self.trace.facts.add(situation)

    def _before_its_fork(self, member: Member) -> bool:
        """Whether a row holds less than it had in common with one that still goes on beside it."""
        pairs = [(member, each) for each in self.order if each.fork and each.fork[0] == member.number]
        pairs += [(each, member) for each in self.order if member.fork and each.number == member.fork[0]]
        return any(copied.fork and len(member.history) < copied.fork[1] for _, copied in pairs)

    def _split(self, rows: Sequence[int]) -> None:
        batch = self.present()
        self._met("left")
        for row in rows:
            member = self.order[row]
            self.parked[member.number] = member, batch.split(row)
        stay = [row for row in range(len(self.order)) if row not in rows]
        self.order = [self.order[row] for row in stay]
        if stay:
            batch.select(stay)
        else:
            self.batch = None

    def _assemble(self, sequences: Sequence[int]) -> None:
        coming = [self.parked[number] for number in sequences]
        parts = ([self.batch] if self.batch is not None else []) + [park for _, park in coming]

        def act() -> None:
            self.batch = parts[0].assemble(parts)

        self._attempt(act, lambda: None)
        self._met("joined", len(parts) > 1)
        self.order = self.order + [member for member, _ in coming]
        for number in sequences:
            del self.parked[number]

    def _select(self, rows: Sequence[int]) -> None:
        self._met("shrunk", len(set(rows)) < len(self.order))
        self._met("moved", list(rows) != sorted(rows))
        self._attempt(lambda: self.present().select(rows), lambda: None)
        chosen: list[Member] = []
        for row in rows:
            member = self.order[row]
            chosen.append(self._copy_of(member) if member in chosen else member)
        self.order = chosen

    def _copy_of(self, member: Member) -> Member:
        """A second sequence with the same past; from here on it has events of its own."""
        kept = member.alone.split(0) if "split" in self.cache.supports else self.fresh(member.history)
        other = self._new(kept)
        other.history, other.before, other.longest, other.ever = (list(member.history) for _ in range(4))
        other.fork = member.number, len(member.history)
        self.ledger.append(other.number, 0, len(other.history))
        return other

    def _trim(self, base: int, sequence: int | None) -> None:
        member, target = (self.order[0], self.present()) if sequence is None else self.parked[sequence]
        self._attempt(lambda: target.trim(base), lambda: member.alone.trim(base))

    def _snapshot(self, name: str) -> None:
        path = self.folder / f"{name}.batch"
        self.present().snapshot(path)
        kept = []
        for row, member in enumerate(self.order):
            kept.append((member, list(member.history), self.folder / f"{name}.{row}"))
            member.alone.snapshot(kept[-1][2])
        self.saved[name] = path, kept

    def _restore(self, name: str) -> None:
        path, kept = self.saved[name]
        self._met("restored")
        self.batch = self.open(1).restore(path)
        self.order = []
        for member, history, file in kept:
            member.alone, member.history = self.open(1).restore(file), list(history)
            self.order.append(member)

    def _poison(self) -> None:
        if not self.poison:
            return
        everything = [
            self.batch,
            *(park for _, park in self.parked.values()),
            *(m.alone for m in self.members),
        ]
        for cache in everything:
            if cache is not None:
                cache.poison()


def play(
    fixture: Fixture, cache: Described, until: int | None = None, every: int = 1, explain: bool = True
) -> CachePlay | NotOffered:
    """The finished play of one fixture, or the reason for which the cache does not have its geometry."""
    try:
        cache.factory(Geometry(fixture.ratio, fixture.span, fixture.margin), 1)
    except NotOffered as error:
        return error
    played = CachePlay(fixture, cache, until, every=every, explain=explain)
    trace = played.run()
    if played.poison and trace.mismatches and explain:
        _without_poison(trace, CachePlay(fixture, cache, until, poison=False, every=every).run())
    return played


def _without_poison(trace: Trace, bare: Trace) -> None:
    """Poison shows that memory is read which no row owns; without it the same play shows whose memory that is."""
    seen = {(each.check, each.row, each.step): each for each in bare.mismatches}
    told = []
    for each in trace.mismatches:
        twin = seen.pop((each.check, each.row, each.step), None)
        only = "only where memory that no row owns is overwritten: it was right by luck"
        told.append(twin or replace(each, said=(*each.said, only)))
    trace.mismatches = told


def _says(refusal: str | None) -> str:
    return "accepts" if refusal is None else f"refuses ({refusal})"


def _place(error: BaseException) -> str:
    """Where it was raised: the last frame that is not the harness's own, such as a line of an adapter."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _ours(frame.filename)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""


def _ours(file: str) -> bool:
    return Path(file).parent == Path(__file__).parent
