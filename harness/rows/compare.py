"""The comparisons of a play: after every call, after every step, and at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from harness.rows.checks import REFERENCE
from harness.rows.diff import first_difference, in_tokens
from harness.rows.events import ABSENT
from harness.rows.facts import RowBefore
from harness.rows.stage import Member, Stage
from harness.rows.subject import Array, Rows
from harness.rows.trace import Mismatch
from harness.rows.values import ValueJudge


class CallWatch(NamedTuple):
    """What was seen right before a call of the batch."""

    rows: list[RowBefore]
    memory: Mapping[str, Array]
    pool_calls: int


class Judge:
    """Compares what stands on the stage; records mismatches and counts comparisons in its trace."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.trace = stage.trace
        self.values = ValueJudge(stage, self.record)

    def record(self, check: str, row: int | None, said: tuple[str, ...]) -> None:
        self.trace.mismatches.append(Mismatch(check, self.stage.at, row, said))

    def before_call(self, rows: list[RowBefore]) -> CallWatch:
        batch = self.stage.present()
        return CallWatch(rows, batch.memory(), batch.pool_calls())

    def after_call(self, watch: CallWatch, written: int) -> None:
        batch = self.stage.present()
        memory = batch.memory()
        self._calls(watch, batch.pool_calls() - watch.pool_calls)
        self._scatter(watch, memory, written)
        self._idle(watch, memory)
        if memory["comp"].shape[1] > watch.memory["comp"].shape[1] and watch.memory["comp"].shape[1] > 0:
            self.trace.facts.add("capacity_grows")
        if any(row.tokens + row.n_new > memory["ring"].shape[1] for row in watch.rows):
            self.trace.facts.add("window_wraps")

    def _calls(self, watch: CallWatch, calls: int) -> None:
        """Gathered: one call. Grouped: one per (residue, take), and for span 2 as many again at block 0."""
        ratio = self.stage.fixture.ratio
        completing = [row for row in watch.rows if row.take]
        keys = {(row.tokens % ratio, row.take) for row in completing}
        opening = {(row.tokens % ratio, row.take) for row in completing if row.tokens < ratio}
        bound = min(len(completing), 1)
        if self.stage.setup.options.get("plan") == "grouped":
            bound = len(keys) + (len(opening) if self.stage.fixture.span == 2 else 0)
        self.trace.compared["calls"] += 1
        if calls > bound:
            groups = f"{len(completing)} rows complete with {len(keys)} different (residue, blocks)"
            self.record(
                "calls", None, (f"pool was called {calls} times; at most {bound} is right: {groups}",)
            )

    def _scatter(self, watch: CallWatch, memory: Mapping[str, Array], written: int) -> None:
        before, after = watch.memory["comp"], memory["comp"]
        width, grown = after.shape[2], after.shape[1] - before.shape[1]
        expected = {
            (row, block)
            for row, seen in enumerate(watch.rows)
            for block in range(seen.tokens // self.stage.fixture.ratio, self._blocks_after(seen))
        }
        right = width * len(expected) + (before.size if grown else 0)
        self.trace.compared["scatter"] += 1
        if written != right:
            copied = f", and {before.size} copied to grow" if grown else ""
            self.record(
                "scatter",
                None,
                (
                    f"{written} elements of comp were written; {right} is right: {len(expected)} blocks of {width}{copied}",
                ),
            )
        self._scattered(before, after, expected)

    def _scattered(self, before: Array, after: Array, expected: set[tuple[int, int]]) -> None:
        """Exactly the cells [row, column] of completed blocks have changed."""
        grown = after.shape[1] - before.shape[1]
        if grown:
            added = np.zeros((len(before), grown, before.shape[2]), before.dtype)
            before = np.concatenate([before, added], axis=1)
        changed = {(int(r), int(c)) for r, c in np.argwhere((_bits(before) != _bits(after)).any(axis=2))}
        for row, column in sorted(changed - expected)[:1]:
            said = f"column {column} of row {row} changed; this call completes {_cells(expected)}"
            self.record(
                "scatter",
                row,
                (said, f"{len(changed - expected)} cells changed without a block of their own"),
            )
        for row, column in sorted(expected - changed)[:1]:
            self.record(
                "scatter",
                row,
                (f"block {column} of row {row} completes in this call; its column is as before",),
            )

    def _blocks_after(self, row: RowBefore) -> int:
        return (row.tokens + row.n_new) // self.stage.fixture.ratio

    def _idle(self, watch: CallWatch, memory: Mapping[str, Array]) -> None:
        if not any(seen.n_new for seen in watch.rows):
            return
        for row, seen in enumerate(watch.rows):
            if seen.n_new:
                continue
            self.trace.compared["idle.bytes"] += 1
            for name, before in watch.memory.items():
                was = before[row]
                self._idle_part(
                    row, name, was, memory[name][row][: len(was)] if was.ndim else memory[name][row]
                )

    def _idle_part(self, row: int, name: str, was: Array, now: Array) -> None:
        """One part of an idle row's memory, before and after a call; growth is cut off."""
        if not np.array_equal(_bits(was), _bits(now)):
            where = np.argwhere(np.atleast_1d(_bits(was) != _bits(now)))[0]
            said = f"{name}[{row}, {', '.join(map(str, where))}] changed, though the row takes no token"
            self.record("idle.bytes", row, (said,))

    def after_step(self) -> None:
        stage = self.stage
        if stage.lane == "tokens":
            self._memory_apart()
            self._bytes_of_twins()
        for rows in [*stage.twins.values(), *([] if stage.batch is None else [stage.batch])]:
            rows.check_invariants()
        for member in [*stage.order, *(member for member, _ in stage.parked.values())]:
            with stage.alone(member):
                member.alone.check_invariants()
        for _, park in stage.parked.values():
            park.check_invariants()
        if stage.poison:
            for rows in self._everything():
                rows.poison(stage.stream.poison)
        held = [(stage.present().read(row), member.alone.read(0)) for row, member in enumerate(stage.order)]
        for row, (member, (batch, alone)) in enumerate(zip(stage.order, held, strict=True)):
            self._row(row, member, batch, alone)
        for member, park in stage.parked.values():
            self._row(None, member, park.read(0), member.alone.read(0))
        if stage.lane == "tokens":
            self._invariants([batch for batch, _ in held])
            self._width(held)
            for row, member in enumerate(stage.order):
                self._probe(row, member, _depths(stage.fixture.ratio, stage.fixture.margin))
                self._probe_slot(row, member)
            self._windows()

    def _everything(self) -> list[Rows]:
        stage = self.stage
        rows = [member.alone for member in stage.order]
        for member, park in stage.parked.values():
            rows += [member.alone, park]
        return rows + list(stage.twins.values()) + ([stage.batch] if stage.batch is not None else [])

    def _memory_apart(self) -> None:
        seen: set[int] = set()
        for rows in self._everything():
            self.trace.compared["no_alias"] += 1
            storages = rows.storages()
            if storages & seen:
                self.record("no_alias", None, ("two caches share memory; a write to one changes the other",))
            seen |= storages

    def _invariants(self, batch: Sequence[Mapping[str, Array]]) -> None:
        """What the counts say, whether or not the subject checks itself."""
        stage = self.stage
        self.trace.compared["invariant"] += 1
        limit = stage.fixture.span * stage.fixture.ratio + stage.fixture.margin - 1
        for row, (member, held) in enumerate(zip(stage.order, batch, strict=True)):
            tokens, base = int(held["tokens"]), int(held["base"])
            broken = []
            if not 0 <= base <= tokens:
                broken.append(f"base is {base}; it should lie in 0..{tokens}")
            if base % stage.fixture.ratio:
                broken.append(f"base is {base}; it should be a multiple of {stage.fixture.ratio}")
            if tokens - base > max(limit, member.promises.width):
                broken.append(f"{tokens - base} tokens are retained; {limit} is the limit of this geometry")
            if broken:
                self.record("invariant", row, tuple(broken))

    def _bytes_of_twins(self) -> None:
        stage = self.stage
        if not stage.twins:
            return
        if len({(m.promises.tokens, m.promises.base) for m in stage.order}) == 1:
            stage.trace.facts.add("uniform_throughout")
        mine = stage.present().memory()
        for check, twin in stage.twins.items():
            self.trace.compared[check] += 1
            for name, other in twin.memory().items():
                if mine[name].shape != other.shape:
                    self.record(check, None, (f"{name} is {mine[name].shape} here, {other.shape} there",))
                elif not np.array_equal(_bits(mine[name]), _bits(other)):
                    cell = tuple(int(i) for i in np.argwhere(_bits(mine[name]) != _bits(other))[0])
                    here, there = mine[name][cell], other[cell]
                    self.record(check, cell[0], (f"{name}{list(cell)} is {here} here, {there} there",))

    def _row(
        self, row: int | None, member: Member, batch: Mapping[str, Array], alone: Mapping[str, Array]
    ) -> None:
        """One sequence: what the batch holds, what alone holds, what the oracle says."""
        if self.stage.lane == "values":
            self.values.compare(row, member, batch, alone)
            return
        self._count("tokens", row, int(batch["tokens"]), int(alone["tokens"]), member.promises.tokens)
        self._count("base", row, int(batch["base"]), int(alone["base"]), member.promises.base)
        run = member.promises.width
        expected = np.array(member.history[len(member.history) - run :], dtype=np.int64)[:, None]
        shape = (run, alone["tail"].shape[1])
        sides = (_last(batch["tail"], run), _last(alone["tail"], run), np.broadcast_to(expected, shape))
        self._tokens("tail.tokens", "column", row, member, sides)
        self._tokens(
            "comp.tokens", "block", row, member, (batch["comp"], alone["comp"], self._blocks(member))
        )

    def _blocks(self, member: Member) -> Array:
        """The oracle's blocks [live, span * ratio + 1]: the tokens each pools, and its index."""
        fixture, history = self.stage.fixture, member.history
        blocks = [
            [history[t] if t >= 0 else ABSENT for t in self._tokens_of(block)] + [block]
            for block in range(member.promises.live_blocks)
        ]
        return np.array(blocks, dtype=np.int64).reshape(len(blocks), fixture.span * fixture.ratio + 1)

    def _tokens_of(self, block: int) -> list[int]:
        return self.stage.oracle.block_tokens(block, self.stage.fixture.ratio, self.stage.fixture.span)

    def _count(self, check: str, row: int | None, batch: int, alone: int, right: int) -> None:
        self.trace.compared[check] += 1
        self.trace.compared[check + REFERENCE] += 1
        if batch != alone:
            self.record(check, row, (f"batch says {batch}   alone says {alone}   reference says {right}",))
        if alone != right:
            self.record(check + REFERENCE, row, (f"alone says {alone}   reference says {right}",))

    def _tokens(
        self, check: str, axis: str, row: int | None, member: Member, sides: tuple[Array, Array, Array]
    ) -> None:
        batch, alone, right = sides
        self.trace.compared[check] += 1
        self.trace.compared[check + REFERENCE] += 1
        if not np.array_equal(batch, alone):
            named = {"batch holds": batch, "alone holds": alone, "reference says": right}
            self.record(check, row, in_tokens(self.stage.ledger, axis, named, member.history))
        if not np.array_equal(alone, right):
            named = {"alone holds": alone, "reference says": right}
            self.record(check + REFERENCE, row, in_tokens(self.stage.ledger, axis, named, member.history))

    def _width(self, held: Sequence[tuple[Mapping[str, Array], Mapping[str, Array]]]) -> None:
        stage = self.stage
        if not held:
            return
        alone = max(int(twin["width"]) for _, twin in held)
        self._count(
            "tail.width", None, int(held[0][0]["width"]), alone, max(m.promises.width for m in stage.order)
        )
        if len({m.promises.width for m in stage.order}) > 1:
            self.trace.facts.add("narrow_row_beside_wide")

    def _windows(self) -> None:
        if {127, 128, 129, 130} <= {member.promises.tokens for member in self.stage.order}:
            self.trace.facts.add("window_edge_127_to_130")

    def _probe(self, row: int, member: Member, depths: Sequence[int]) -> None:
        """Ask batch, alone and oracle whether each rollback depth would be refused, and why."""
        batch = self.stage.present()
        for n in depths:
            here, alone = batch.rollback_refusal(row, n), member.alone.rollback_refusal(0, n)
            right = member.promises.rollback_refusal(n)
            if here == "rollback-ragged":  # per-row state off: rows go back together or not at all
                here = alone
            self.trace.compared["refusal"] += 1
            self.trace.compared["refusal" + REFERENCE] += 1
            if right is not None:
                self.trace.facts.add("depth_refused")
            told = f"a rollback by {n} to token {member.promises.tokens - n}"
            if here != alone:
                self.record(
                    "refusal",
                    row,
                    (f"{told}: batch {_says(here)}, alone {_says(alone)}, reference {_says(right)}",),
                )
            if alone != right:
                self.record(
                    "refusal" + REFERENCE, row, (f"{told}: alone {_says(alone)}, reference {_says(right)}",)
                )

    def _probe_slot(self, row: int, member: Member) -> None:
        """A K/V slot gives back what leaves it the window's tokens before the next one, window - 1."""
        stage = self.stage
        if stage.slots is None:
            return
        seen, tokens = stage.fixture.kv_window - 1, member.promises.tokens
        spare = member.kv_live - min(tokens, seen)  # tokens that can go while the window stays full
        for n in sorted({0, 1, stage.fixture.margin, spare, spare + 1, tokens, tokens + 1}):
            right = None
            if n > tokens:
                right = "rollback-below-zero"
            elif member.kv_live - n < min(tokens - n, seen):
                right = "rollback-below-window"
            said = stage.slots.rollback_refusal(member.number, n)
            self.trace.compared["kv.refusal"] += 1
            if said != right:
                held = f"the slot holds {member.kv_live} of {tokens} tokens, the window is {seen + 1}"
                told = f"a rollback by {n}: the slot {_says(said)}, by right it {_says(right)}"
                self.record("kv.refusal", row, (told, held))

    def alone_refuses(self, member: Member, row: int, n: int, expected: str) -> None:
        """A rollback that the batch refused is refused alone as well, for the same reason."""
        if expected != "rollback-ragged":
            self._probe(row, member, [n])

    def memories(self) -> list[Mapping[str, Array]]:
        return [rows.memory() for rows in self._everything()]

    def unchanged(self, before: Sequence[Mapping[str, Array]]) -> None:
        """A refusal leaves every byte where it was."""
        after = self.memories()
        same = len(before) == len(after) and all(
            np.array_equal(_bits(old[name]), _bits(new[name]))
            for old, new in zip(before, after, strict=False)
            for name in old
        )
        if not same:
            self.record("refusal", None, ("the operation was refused, and yet the state changed",))

    def cache_len(self, mismatched: int | None) -> None:
        stage = self.stage
        lengths = [member.kv_live for member in stage.order]
        right = 0 if len(set(lengths)) > 1 else None
        widths = {member.promises.width for member in stage.order}
        if right is None and not stage.fixture.per_row_state and len(widths) > 1:
            right = 1
        self.trace.compared["cache_len"] += 1
        if mismatched != right:
            said = f"first mismatched slot is said to be {mismatched}; {right} is right: K/V runs {lengths}"
            self.record("cache_len", None, (f"{said}, tails {sorted(widths)}",))

    def aligned(self, leads: Sequence[int]) -> None:
        stage = self.stage
        assert stage.slots is not None
        target = max(member.kv_live for member in stage.order)
        for row, (member, lead) in enumerate(zip(stage.order, leads, strict=True)):
            self.trace.compared["lead"] += 1
            self.trace.compared["kv.tokens"] += 1
            if lead != target - member.kv_live:
                said = f"lead is {lead}; {target - member.kv_live} is right: {member.kv_live} of {target} columns are live"
                self.record("lead", row, (said,))
            columns = stage.slots.columns(member.number)
            if len(columns) != target:
                self.record(
                    "lead",
                    row,
                    (f"the slot has {len(columns)} columns; {target}, the longest run, is right",),
                )
            right = np.array(member.history[len(member.history) - member.kv_live :], dtype=np.int64)[:, None]
            self._slot_tokens(row, member, columns[len(columns) - member.kv_live :], right)

    def _slot_tokens(self, row: int, member: Member, held: Array, right: Array) -> None:
        """What a K/V slot holds against the ids [live, 1] it should hold."""
        if first_difference({"slot": held, "reference": right}) is not None:
            sides = {"slot holds": held, "reference says": right}
            self.record("kv.tokens", row, in_tokens(self.stage.ledger, "column", sides, member.history))

    def at_the_end(self) -> None:
        stage = self.stage
        if stage.fixture.every_depth and stage.lane == "tokens":
            for row, member in enumerate(stage.order):
                self._probe(row, member, range(stage.fixture.margin + 2 * stage.fixture.ratio + 1))
        for fact in stage.fixture.facts:
            self.trace.compared["facts"] += 1
            if fact not in self.trace.facts:
                seen = ", ".join(sorted(self.trace.facts)) or "none"
                self.record("facts", None, (f"{fact} is declared and was not witnessed; witnessed: {seen}",))


def _depths(ratio: int, margin: int) -> list[int]:
    """The eight rollback depths of every step: around nothing, one block and the margin."""
    return sorted({0, 1, ratio - 1, ratio, margin - 1, margin, margin + 1, margin + 2 * ratio} - {-1})


def _says(kind: str | None) -> str:
    return "accepts" if kind is None else f"refuses ({kind})"


def _last(tail: Array, n: int) -> Array:
    return tail[max(len(tail) - n, 0) :]


def _cells(cells: set[tuple[int, int]]) -> str:
    return ", ".join(f"block {block} of row {row}" for row, block in sorted(cells)[:4]) or "no block"


def _bits(array: Array) -> Array:
    """The array as integers of its own width, so that NaN equals itself and -0.0 is not 0.0."""
    return array.view(f"i{array.dtype.itemsize}") if array.dtype.kind == "f" else array
