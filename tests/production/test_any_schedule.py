"""Random schedules on odd geometries, against a model that keeps every token and never forgets.

The model of a row is the list of event ids it holds by right, and the reference's promises; nothing of it is
shared with production. Each token that is ever fed is a new event, so a stale one can never pass for a fresh
one, and dead memory is poisoned after every operation.
"""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count

import pytest
import torch

from harness.rows.events import ABSENT, POISON
from harness.subjects.token_compressor import TokenCompressor
from reference_impl.compressor import block_tokens
from reference_impl.promises import Promises
from torch_impl.geometry import Geometry
from torch_impl.refusals import Refusal
from torch_impl.snapshot import restore, snapshot
from torch_impl.xs_rolling import XsRolling, reconcile_xs_bases

GEOMETRIES = [(r, s, m) for r in (1, 2, 3, 4, 5, 7) for s in (1, 2) for m in (0, 1, r, 16, 40)]
OPERATIONS = ["advance"] * 6 + [
    "rollback",
    "verify",
    "select",
    "rebatch",
    "adopt",
    "restore",
    "reshape",
    "trim",
]


@dataclass
class Row:
    """One sequence: the events it holds by right, and what it has promised."""

    promises: Promises
    events: list[int] = field(default_factory=list)


class Schedule:
    """A batch and its model; every operation changes both, or is refused by both."""

    def __init__(self, seed: int, geometry: tuple[int, int, int], folder, **settings) -> None:
        self.choose, self.folder = random.Random(seed), folder
        self.ratio, self.span, self.margin = geometry
        self.settings = settings
        self.events = count()
        self.rows = [Row(Promises(*geometry)) for _ in range(self.choose.randint(1, 4))]
        self.batch = self.empty(len(self.rows))
        self.said: list[str] = []

    def empty(self, rows: int) -> XsRolling:
        geometry = Geometry(self.ratio, self.span, self.margin)
        return XsRolling(TokenCompressor(self.ratio, self.span), geometry, rows, **self.settings)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            getattr(self, self.choose.choice(OPERATIONS))()
            self.batch.check_invariants()
            self.batch.fill_dead(POISON)
            self.compare()

    def length(self) -> int:
        longest = 2 * self.ratio + self.margin
        return self.choose.choice(
            [0, 0, 1, 1, self.ratio, self.choose.randint(0, 3), self.choose.randint(0, longest)]
        )

    def advance(self, counts: list[int] | None = None) -> None:
        counts = counts or [self.length() for _ in self.rows]
        self.said.append(f"advance {counts}")
        xs = torch.full((len(counts), max(counts) + self.choose.randint(0, 2), 1), POISON)
        for row, n in enumerate(counts):
            fresh = [next(self.events) for _ in range(n)]
            xs[row, :n, 0] = torch.tensor(fresh, dtype=torch.int64)
            self.rows[row].events += fresh
            self.rows[row].promises.advance(n)
        self.batch.advance(xs, counts)

    def rollback(self) -> None:
        row = self.choose.randrange(len(self.rows))
        n = self.choose.randint(0, min(self.margin + 2 * self.ratio, len(self.rows[row].events) + 1))
        self.said.append(f"rollback row {row} by {n}")
        right = self.rollback_refusal(self.rows[row], n)
        if right is not None:
            with pytest.raises(Refusal) as refused:
                self.batch.rollback(row, n)
            assert refused.value.kind == right
            return
        self.batch.rollback(row, n)
        self.take_back(row, n)

    def rollback_refusal(self, row: Row, n: int) -> str | None:
        return row.promises.rollback_refusal(n)

    def take_back(self, row: int, n: int) -> None:
        self.rows[row].promises.rollback(n)
        del self.rows[row].events[len(self.rows[row].events) - n :]

    def verify(self) -> None:
        width = self.choose.randint(0, self.margin)
        self.advance([width] * len(self.rows))
        dropped = [self.choose.randint(0, width) for _ in self.rows]
        self.said.append(f"drop {dropped}")
        self.batch.rollback_rows(dropped)
        for row, n in enumerate(dropped):
            self.take_back(row, n)

    def select(self) -> None:
        chosen = [self.choose.randrange(len(self.rows)) for _ in range(self.choose.randint(1, 4))]
        self.said.append(f"select {chosen}")
        self.batch.select(chosen)
        self.rows = [deepcopy(self.rows[row]) for row in chosen]

    def rebatch(self) -> None:
        parts = [(self.batch.split_row(row), self.rows[row]) for row in range(len(self.rows))]
        self.choose.shuffle(parts)
        self.said.append("split all, shuffle, assemble")
        self.batch = XsRolling.assemble([part for part, _ in parts])
        self.rows = [row for _, row in parts]

    def adopt(self) -> None:
        """A row joins whose state was built elsewhere, wider than a row would have kept itself."""
        if len(self.rows) > 4:
            return
        adopted, row = self.built_elsewhere(self.choose.randint(0, 5 * self.ratio + self.margin))
        self.batch = XsRolling.assemble([self.batch, adopted])
        self.rows.append(row)

    def built_elsewhere(self, tokens: int) -> tuple[XsRolling, Row]:
        row = Row(Promises(self.ratio, self.span, self.margin), [next(self.events) for _ in range(tokens)])
        base = self.choose.randint(0, row.promises.need(tokens) // self.ratio) * self.ratio
        row.promises.restore(tokens, base)
        self.said.append(f"adopt {base}..{tokens}")
        width = self.batch.storage()["ring"].shape[2]
        tail = torch.tensor(row.events[base:], dtype=torch.int64).view(1, -1, 1).expand(1, -1, width)
        comp = torch.tensor([self.block(row, j) for j in range(tokens // self.ratio)], dtype=torch.int64)
        comp = comp.view(1, -1, self.span * self.ratio + 1)
        return self.empty(1).adopt(comp, tail, [tokens], [base]), row

    def restore(self) -> None:
        self.said.append("snapshot, restore")
        snapshot(self.batch, self.folder / "rows")
        self.batch = restore(self.empty(1), self.folder / "rows")
        for row in self.rows:
            row.promises.restore(row.promises.tokens, row.promises.base)

    def reshape(self) -> None:
        chosen = [self.choose.randrange(len(self.rows)) for _ in range(self.choose.randint(1, 4))]
        self.said.append(f"reshape {chosen}")
        live = max(row.promises.live_blocks for row in self.rows)
        comp, tail = self.batch.storage()["comp"][chosen, :live], self.batch.tail()[chosen]
        if len({(row.promises.tokens, row.promises.base) for row in self.rows}) > 1:
            with pytest.raises(Refusal) as refused:
                self.batch.reshape(comp, tail)
            assert refused.value.kind == "reshape-ragged"
            return
        self.batch.reshape(comp, tail)
        self.rows = [deepcopy(self.rows[row]) for row in chosen]

    def trim(self) -> None:
        row = self.choose.randrange(len(self.rows))
        parts = [self.batch.split_row(k) for k in range(len(self.rows))]
        promises = self.rows[row].promises
        base = self.choose.randint(
            max(promises.base - self.ratio, 0), promises.need(promises.tokens) + self.ratio
        )
        self.said.append(f"trim row {row} to {base}")
        right = promises.trim_refusal(base)
        if right is not None:
            with pytest.raises(Refusal) as refused:
                parts[row].trim_tail_to(base)
            assert refused.value.kind == right
            return
        parts[row].trim_tail_to(base)
        promises.trim(base)
        self.batch = XsRolling.assemble(parts)

    def block(self, row: Row, j: int) -> list[int]:
        tokens = block_tokens(j, self.ratio, self.span)
        return [row.events[t] if t >= 0 else ABSENT for t in tokens] + [j]

    def compare(self) -> None:
        told = "; ".join(self.said)
        promises = [row.promises for row in self.rows]
        assert self.batch.tokens == [p.tokens for p in promises], told
        assert self.batch.base == [p.base for p in promises], told
        assert self.batch.width == max(p.width for p in promises), told
        tail = self.batch.tail()
        for k, row in enumerate(self.rows):
            run = row.events[row.promises.base :]
            assert tail[k, :, 0].tolist() == [0] * (self.batch.width - len(run)) + run, (told, k)
            blocks = [self.block(row, j) for j in range(row.promises.live_blocks)]
            assert self.batch.comp(k).tolist() == blocks, (told, k)
            for n in range(self.margin + 2 * self.ratio + 1):
                refusal = self.batch.rollback_refusal(k, n)
                assert (refusal and refusal.kind) == self.rollback_refusal(row, n), (told, k, n)


class ScalarSchedule(Schedule):
    """The world with per-row state off: rows are equal or the operation is refused."""

    def __init__(self, seed: int, geometry: tuple[int, int, int], folder, **settings) -> None:
        super().__init__(seed, geometry, folder, per_row_state=False, **settings)

    def advance(self, counts: list[int] | None = None) -> None:
        counts = counts or [self.length()] * len(self.rows)
        uneven = [n + self.choose.randint(0, 1) for n in counts]
        if len(set(uneven)) > 1:
            self.refused(
                "advance-ragged", lambda: self.batch.advance(torch.ones(len(uneven), 99, 1).long(), uneven)
            )
        super().advance(counts)

    def rollback_refusal(self, row: Row, n: int) -> str | None:
        together = n == 0 or len(self.rows) == 1
        return row.promises.rollback_refusal(n) or (None if together else "rollback-ragged")

    def verify(self) -> None:
        width = self.choose.randint(0, self.margin)
        self.advance([width] * len(self.rows))
        dropped = [self.choose.randint(0, width) for _ in self.rows]
        if len(set(dropped)) > 1:
            self.refused("rollback-ragged", lambda: self.batch.rollback_rows(dropped))
        self.said.append(f"drop {dropped[0]} each")
        self.batch.rollback_rows(dropped[:1] * len(dropped))
        for row in range(len(self.rows)):
            self.take_back(row, dropped[0])

    def adopt(self) -> None:
        """A row joins that stands at the same token, or not; its tail is as wide, or made so, or refused."""
        if len(self.rows) > 4:
            return
        mine = self.rows[0].promises
        adopted, row = self.built_elsewhere(mine.tokens + self.choose.choice([0, 0, 0, 1]))
        parts = [self.batch.split_row(k) for k in range(len(self.rows))] + [adopted]
        all_rows = [*self.rows, row]
        if self.choose.random() < 0.7:
            target = max(each.promises.base for each in all_rows)
            if any(each.promises.trim_refusal(target) for each in all_rows):
                self.refused("trim-above-need", lambda: reconcile_xs_bases(parts))
            else:
                reconcile_xs_bases(parts)
                for each in all_rows:
                    each.promises.trim(target)
                self.said.append(f"reconcile to {target}")
                self.batch, self.rows = XsRolling.assemble(parts[:-1]), all_rows[:-1]
        if len({(each.promises.tokens, each.promises.base) for each in all_rows}) > 1:
            self.refused("assemble-ragged", lambda: XsRolling.assemble(parts))
        else:
            self.batch, self.rows = XsRolling.assemble(parts), all_rows
            self.said.append("assemble")

    def trim(self) -> None:
        if len(self.rows) == 1:
            super().trim()
        else:
            self.refused("trim-multi-row", lambda: self.batch.trim_tail_to(self.rows[0].promises.base))

    def refused(self, kind: str, act) -> None:
        with pytest.raises(Refusal) as refused:
            act()
        assert refused.value.kind == kind, "; ".join(self.said)


@pytest.mark.parametrize("plan", ["gathered", "grouped"])
@pytest.mark.parametrize("retain", ["projected", "hidden"])
def test_no_random_schedule_tells_a_batch_from_its_model(retain, plan, tmp_path):
    for seed, geometry in enumerate(GEOMETRIES):
        for ragged in (False, True):
            schedule = Schedule(seed, geometry, tmp_path, retain=retain, plan=plan, always_ragged=ragged)
            schedule.run(steps=10)


@pytest.mark.parametrize("retain", ["projected", "hidden"])
def test_no_random_schedule_of_equal_rows_tells_a_scalar_batch_from_its_model(retain, tmp_path):
    for seed, geometry in enumerate(GEOMETRIES):
        ScalarSchedule(seed, geometry, tmp_path, retain=retain).run(steps=20)
