"""Play a schedule three ways and compare after every step: as a batch, each sequence alone, and in the oracle.

The token lane injects a compressor whose blocks are the event ids they pooled, and judges with `==`. The
values lane plays the real compressor. All checks are evaluated at every step, and a play that
must stop early (the subject raised) keeps what it had found.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.rows import schedule as do
from harness.rows.checks import REFERENCE, VALUES_LANE
from harness.rows.compare import Judge
from harness.rows.facts import RowBefore, witnessed_by_call, witnessed_by_rollback
from harness.rows.schedule import Fixture, Step
from harness.rows.stage import Lane, Member, Stage
from harness.rows.subject import Oracle, Rows, Setup, Subject
from harness.rows.trace import Mismatch, Stop, Trace


def _class_of(value: Mismatch, tokens: Trace) -> str:
    """One line on a wrong value: `wrong token`, with the tokens, or `numerics`."""
    partner = value.check.replace(".values", ".tokens")
    partners = (partner, partner.removesuffix(REFERENCE))
    if value.check == "rows.bytes":
        partners = ("comp.tokens", "tail.tokens")
    for mismatch in tokens.mismatches:
        same = mismatch.check in partners and mismatch.row == value.row
        if same and mismatch.step <= value.step:
            return f"wrong token: {' '.join(mismatch.said[0].split())}"
    if tokens.stopped is not None:
        return f"the token lane stopped at step {tokens.stopped.step}: {tokens.stopped.why}"
    return "numerics: every token is right and in its place; it is the arithmetic that is off"


class Stopped(Exception):
    """The play cannot go on: the batch and its model no longer tell the same story."""


class Play(Stage):
    """One play of one fixture: `run` returns its trace. Or, in a `with`, step by step beyond the fixture's own."""

    def __init__(
        self,
        fixture: Fixture,
        subject: Subject,
        oracle: Oracle,
        options: Mapping[str, str],
        *,
        lane: Lane = "tokens",
        poison: bool = True,
        until: int | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(fixture, subject, oracle, options, lane=lane, poison=poison, device=device)
        self.steps = fixture.step if until is None else fixture.step[: until + 1]
        self.complete = len(self.steps) == len(fixture.step)
        self.opened = 0
        self.rebatched = 0
        self.was_split: set[int] = set()
        self.saved: dict[str, tuple[Path, list[Member], list[Path]]] = {}
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self.judge = Judge(self)

    def __enter__(self) -> Play:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def _file(self, name: str) -> Path:
        """Where a snapshot goes; the folder is made for the first one and goes with the play."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="rowproof-")
        return Path(self._folder.name, name)

    def run(self) -> Trace:
        """Play all steps. Exceptions of the subject end the play and are recorded, never raised."""
        with self:
            going = all(self.step(step) for step in self.steps)
            if going and self.complete:
                self.judge.at_the_end()
        self.classify()
        return self.trace

    def classify(self) -> None:
        """Say of wrong values whether their tokens are wrong too: the same play in the token lane knows."""
        wrong = [mismatch for mismatch in self.trace.mismatches if mismatch.check in VALUES_LANE]
        if not wrong:
            return
        options, last = self.setup.options, max(mismatch.step for mismatch in wrong)
        twin = Play(self.fixture, self.subject, self.oracle, options, poison=self.poison, until=last)
        tokens = twin.run()
        self.trace.mismatches = [
            replace(each, said=(*each.said, _class_of(each, tokens))) if each in wrong else each
            for each in self.trace.mismatches
        ]

    def step(self, step: Step) -> bool:
        """Play one more step and compare. Whether the play can go on: if not, `trace.stopped` says why."""
        self.at += 1
        if self.at == len(self.trace.steps):
            self.trace.steps.append(do.describe(step))
        try:
            self._step(step)
            self.judge.after_step()
        except Stopped as stopped:
            self.trace.stopped = Stop(self.at, str(stopped))
        except self.subject.refusal as refusal:
            self.judge.record("refusal", None, (f"refused: {refusal}", "the fixture expects no refusal"))
            self.trace.stopped = Stop(self.at, f"refused: {refusal}")
        except self.subject.invariant_broken as broken:
            self.trace.compared["invariant"] += 1
            self.judge.record("invariant", getattr(broken, "row", None), (str(broken),))
            self.trace.stopped = Stop(self.at, f"{type(broken).__name__}: {broken}")
        except Exception as error:  # noqa: BLE001 (the subject's own fault, whatever it is)
            self.trace.stopped = Stop(self.at, f"{type(error).__name__}: {error}")
        return self.trace.stopped is None

    def _step(self, step: Step) -> None:
        match step:
            case do.Prefill():
                self._prefill(step)
            case do.Adopt():
                self._adopt(step)
            case do.Advance(n_new=counts):
                self._attempt(step, lambda: self._advance(counts), lambda: self._append_models(counts))
            case do.Verify():
                self._verify(step)
            case do.Rollback(row=row, n=n):
                self._rollback(step, row, n)
            case do.Split(rows=rows):
                self._split(rows or tuple(range(len(self.order))))
            case do.Assemble(sequences=sequences):
                self._assemble(step, sequences)
            case do.Select(rows=rows) | do.Reorder(rows=rows) | do.Reshape(rows=rows):
                self._select(step, rows)
            case do.Trim():
                self._trim(step)
            case do.Reconcile(sequences=sequences):
                self._reconcile(step, sequences)
            case do.Snapshot(name=name):
                self._snapshot(name)
            case do.Restore(name=name):
                self._restore(name)
            case do.Align(drop=drop):
                self._align(drop)

    def _attempt(self, step: Step, act: Callable[[], None], then: Callable[[], None]) -> None:
        """Act, and if it was not refused, let the models follow; compare a refusal with what was expected."""
        expected = step.expect_refusal
        before = self.judge.memories() if expected else []
        refused = None
        try:
            act()
        except self.subject.refusal as refusal:
            refused = str(getattr(refusal, "kind", type(refusal).__name__))
            text = str(refusal)
        if expected is not None:
            self.trace.compared["refusal"] += 1
            if refused != expected:
                said = f"the batch {'refused as ' + refused if refused else 'accepted it'}; the fixture expects {expected}"
                self.judge.record("refusal", None, (said,))
                raise Stopped(said)
            self.judge.unchanged(before)
            self.trace.facts.add(f"{step.do}_refused")
            return
        if refused is not None:
            self.judge.record(
                "refusal", None, (f"the batch refused as {refused}: {text}", "the fixture expects no refusal")
            )
            raise Stopped(f"refused as {refused}: {text}")
        then()

    def _open(self, setup: Setup, rows: int) -> Rows:
        return self.subject.open(setup, rows)

    def _new_sequence(self, alone: Rows) -> Member:
        promises = self.oracle.promises(self.fixture.ratio, self.fixture.span, self.fixture.margin)
        sequence = Member(self.opened, alone, promises)
        self.opened += 1
        return sequence

    def _prefill(self, step: do.Prefill) -> None:
        new = [self._new_sequence(self._open(self.setup, 1)) for _ in step.lengths]
        if step.parked or self.batch is not None:
            for sequence, n in zip(new, step.lengths, strict=True):
                self._append_alone(sequence, self._fresh_ids(sequence, n))
                park = self._open(self.setup, 1)
                park.advance(self.stream.feed(sequence.history)[None], [n])
                self.parked[sequence.number] = sequence, park
            return
        self.order, self.batch = new, self._open(self.setup, len(new))
        if self.fixture.uniform and self.lane == "tokens":
            off = Setup(**{**vars(self.setup), "per_row_state": False})
            forced = Setup(**{**vars(self.setup), "always_ragged": True})
            self.twins = {
                "flag_off.bytes": self._open(off, len(new)),
                "forced.bytes": self._open(forced, len(new)),
            }
        if len(set(step.lengths)) > 1:
            self.trace.facts.add("prompts_padded")
        if step.cuts:
            self.trace.facts.add("chunked_prefill")
        ids = [self._fresh_ids(s, n) for s, n in zip(new, step.lengths, strict=True)]
        edges = [0, *step.cuts, max(step.lengths)]
        for start, end in zip(edges, edges[1:], strict=False):
            self._feed([row[start:end] for row in ids], shown=[min(start, len(row)) for row in ids])
        for sequence, row in zip(new, ids, strict=True):
            self._append_alone(sequence, row)

    def _adopt(self, step: do.Adopt) -> None:
        for tokens, base in zip(step.tokens, step.base, strict=True):
            sequence = self._new_sequence(self._open(self.setup, 1))
            sequence.history = self.ledger.append(sequence.number, 0, tokens)
            xs = self.stream.feed(sequence.history)
            sequence.promises.restore(tokens, base)
            sequence.alone = self.subject.adopt(self.setup, xs, base)
            self.parked[sequence.number] = sequence, self.subject.adopt(self.setup, xs, base)
            if sequence.promises.width > self.fixture.span * self.fixture.ratio + self.fixture.margin - 1:
                self.trace.facts.add("adopted_wide")

    def _fresh_ids(self, sequence: Member, n: int) -> list[int]:
        return self.ledger.append(sequence.number, len(sequence.history), n)

    def _advance(self, counts: Sequence[int]) -> None:
        self.fresh = [self._fresh_ids(s, n) for s, n in zip(self.order, counts, strict=True)]
        self._feed(self.fresh)

    def _append_models(self, counts: Sequence[int]) -> None:
        for sequence, ids in zip(self.order, self.fresh, strict=True):
            positions = self.ledger.positions[sequence.number]
            if ids and positions.index(len(sequence.history)) != len(positions) - len(ids):
                self.trace.facts.add("draft_replaced")
            self._append_alone(sequence, ids)

    def _append_alone(self, sequence: Member, ids: list[int]) -> None:
        if ids:
            with self.alone(sequence):
                sequence.alone.advance(self.stream.feed(ids)[None], [len(ids)])
        sequence.promises.advance(len(ids))
        sequence.history += ids
        if self.slots is not None:
            self.slots.append(sequence.number, self.kv(ids))
            keep = self.fixture.kv_window - 1 + self.fixture.margin
            sequence.kv_live = min(sequence.kv_live + len(ids), keep)

    def _feed(self, ids: Sequence[list[int]], shown: Sequence[int] | None = None) -> None:
        """One call of the batch: right-padded new tokens, with the call's own checks."""
        batch = self.present()
        counts = [len(row) for row in ids]
        xs = self.stream.padding(len(ids), max(counts, default=0))
        for row, tokens in enumerate(ids):
            xs[row, : len(tokens)] = self.stream.feed(tokens)
        before = self._rows_before(counts, shown)
        self.trace.facts.update(witnessed_by_call(self.fixture.ratio, before))
        if self.lane == "values":
            batch.advance(xs, counts)
            return
        watch = self.judge.before_call(before)
        self.judge.after_call(watch, batch.advance_counting(xs, counts))
        for twin in self.twins.values():
            twin.advance(xs, counts)

    def _rows_before(self, counts: Sequence[int], shown: Sequence[int] | None) -> list[RowBefore]:
        rows = []
        for row, (sequence, n) in enumerate(zip(self.order, counts, strict=True)):
            t = sequence.promises.tokens + (shown[row] if shown else 0)
            take = (t + n) // self.fixture.ratio - t // self.fixture.ratio
            rows.append(RowBefore(t, sequence.promises.base, sequence.promises.need(t), n, take))
        return rows

    def _verify(self, step: do.Verify) -> None:
        counts = [step.width] * len(self.order)
        dropped = [step.width - n for n in step.accept]

        def act() -> None:
            self._advance(counts)
            self._append_models(counts)
            self.present().rollback_rows(dropped)

        def follow() -> None:
            for sequence, n in zip(self.order, dropped, strict=True):
                self._rollback_alone(sequence, n)
            for twin in self.twins.values():
                twin.rollback_rows(dropped)

        self._attempt(step, act, follow)
        for n in step.accept:
            kept = "none" if n == 0 else "all" if n == step.width else "some"
            self.trace.facts.add(f"accept_{kept}")

    def _rollback(self, step: do.Rollback, row: int, n: int) -> None:
        sequence = self.order[row]
        self._attempt(
            step, lambda: self.present().rollback(row, n), lambda: self._rollback_alone(sequence, n)
        )
        if step.expect_refusal is not None:
            self.judge.alone_refuses(sequence, row, n, step.expect_refusal)

    def _rollback_alone(self, sequence: Member, n: int) -> None:
        before = sequence.promises.tokens
        try:
            with self.alone(sequence):
                sequence.alone.rollback(0, n)
        except self.subject.refusal as refusal:
            row = self.order.index(sequence)
            self.judge.record(
                "refusal", row, (f"the batch rolled back {n} tokens; alone refuses: {refusal}",)
            )
            raise Stopped("batch and alone refuse differently") from refusal
        if sequence.promises.rollback_refusal(n) is not None:
            row = self.order.index(sequence)
            said = f"rolled back {n} tokens; the reference refuses: {sequence.promises.rollback_refusal(n)}"
            self.judge.record("refusal" + REFERENCE, row, (said,))
            raise Stopped("batch and reference refuse differently")
        sequence.promises.rollback(n)
        del sequence.history[len(sequence.history) - n :]
        if self.slots is not None:
            self.slots.rollback(sequence.number, n)
            sequence.kv_live -= n
        self.trace.facts.update(witnessed_by_rollback(self.fixture.ratio, before, sequence.promises.tokens))

    def _split(self, rows: Sequence[int]) -> None:
        batch = self.present()
        for row in rows:
            sequence = self.order[row]
            self.parked[sequence.number] = sequence, batch.split(row)
            self.was_split.add(sequence.number)
        stay = [row for row in range(len(self.order)) if row not in rows]
        self.order = [self.order[row] for row in stay]
        if stay:
            batch.select(stay)
        else:
            self.batch = None

    def _assemble(self, step: do.Assemble, sequences: Sequence[int]) -> None:
        coming = [self.parked[number] for number in sequences]
        parts = ([self.batch] if self.batch is not None else []) + [park for _, park in coming]
        was = [(s.promises.tokens, s.promises.base) for s in self.order]

        def act() -> None:
            self.batch = self.subject.assemble(parts)

        def follow() -> None:
            self.order = self.order + [sequence for sequence, _ in coming]
            for number in sequences:
                del self.parked[number]
            self.trace.facts.add("rows_assembled")
            if self.was_split.intersection(sequences):
                self.rebatched += 1
                self.trace.facts.add("split_and_assembled")
            if (
                was
                and len(set(was)) == 1
                and len({(s.promises.tokens, s.promises.base) for s in self.order}) == 1
            ):
                self.trace.facts.add("batch_grows_while_uniform")
            if self.rebatched >= 24:
                self.trace.facts.add("rebatched_24")

        self._attempt(step, act, follow)

    def _select(self, step: do.Select | do.Reorder | do.Reshape, rows: Sequence[int]) -> None:
        batch = self.present()
        act = batch.reshape if isinstance(step, do.Reshape) else batch.select
        equal = len({(s.promises.tokens, s.promises.base) for s in self.order}) == 1
        grew = len(rows) - len(self.order)

        def follow() -> None:
            survivors = [self.order[row] for row in rows]
            for k, sequence in enumerate(survivors):
                if sequence in survivors[:k]:
                    survivors[k] = self._copy_of(sequence)
            self.order = survivors
            for twin in self.twins.values():
                (twin.reshape if isinstance(step, do.Reshape) else twin.select)(rows)
            if grew:
                verb = "shrinks" if grew < 0 else "grows"
                self.trace.facts.add(f"batch_{verb}_while_{'uniform' if equal else 'ragged'}")
            if list(rows) != sorted(rows):
                self.trace.facts.add("rows_reordered")
            if len(set(rows)) < len(rows):
                self.trace.facts.add("row_repeated")

        self._attempt(step, lambda: act(rows), follow)

    def _copy_of(self, sequence: Member) -> Member:
        """A second sequence with the same past; from here on it has events of its own."""
        other = self._new_sequence(sequence.alone.split(0))
        other.promises, other.history = copy.copy(sequence.promises), list(sequence.history)
        self.ledger.append(other.number, 0, len(other.history))
        return other

    def _trim(self, step: do.Trim) -> None:
        if step.sequence is None:
            target, sequence = self.present(), self.order[0]
        else:
            sequence, target = self.parked[step.sequence]

        def follow() -> None:
            sequence.alone.trim(step.base)
            sequence.promises.trim(step.base)
            self.trace.facts.add("trimmed")

        self._attempt(step, lambda: target.trim(step.base), follow)

    def _reconcile(self, step: do.Reconcile, sequences: Sequence[int]) -> None:
        coming = [self.parked[number] for number in sequences]
        bases = {sequence.promises.base for sequence, _ in coming}

        def follow() -> None:
            if self.fixture.per_row_state:
                if len(bases) > 1:
                    self.trace.facts.add("reconcile_ignored")
                return
            for sequence, _ in coming:
                sequence.alone.trim(max(bases))
                sequence.promises.trim(max(bases))
            if len(bases) > 1:
                self.trace.facts.add("reconciled")

        self._attempt(step, lambda: self.subject.reconcile([park for _, park in coming]), follow)

    def _snapshot(self, name: str) -> None:
        path = self._file(f"{name}.batch")
        self.present().snapshot(path)
        alone = [self._file(f"{name}.{row}") for row in range(len(self.order))]
        for sequence, file in zip(self.order, alone, strict=True):
            sequence.alone.snapshot(file)
        self.saved[name] = path, [self._frozen(sequence) for sequence in self.order], alone

    def _frozen(self, sequence: Member) -> Member:
        return Member(
            sequence.number,
            sequence.alone,
            copy.copy(sequence.promises),
            list(sequence.history),
            sequence.kv_live,
        )

    def _restore(self, name: str) -> None:
        path, frozen, alone = self.saved[name]
        like = self._open(self.setup, 1)
        self.batch, self.order = like.restore(path), [self._frozen(sequence) for sequence in frozen]
        for sequence, file in zip(self.order, alone, strict=True):
            sequence.alone = like.restore(file)
            sequence.promises.restore(sequence.promises.tokens, sequence.promises.base)
        self.trace.facts.add("restored")

    def _align(self, drop: bool) -> None:
        assert self.slots is not None
        numbers = [sequence.number for sequence in self.order]
        compressors = [self.present().split(row) for row in range(len(self.order))]
        self.judge.cache_len(self.slots.mismatched(numbers, compressors))
        if any(len(self.slots.columns(s.number)) > s.kv_live for s in self.order):
            self.trace.facts.add("realigned")
        leads = self.slots.align(numbers, compressors)
        self.judge.aligned(leads)
        if len(set(leads)) > 1:
            self.trace.facts.add("leads_differ")
        if len({s.promises.tokens for s in self.order}) > 1 and not any(leads):
            self.trace.facts.add("full_windows_without_lead")
        if drop:
            self.slots.drop(numbers)


def play(
    fixture: Fixture,
    subject: Subject,
    oracle: Oracle,
    options: Mapping[str, str],
    *,
    lane: Lane = "tokens",
    poison: bool = True,
    until: int | None = None,
    device: str = "cpu",
) -> Trace:
    """The trace of one play. See Play."""
    return Play(fixture, subject, oracle, options, lane=lane, poison=poison, until=until, device=device).run()
