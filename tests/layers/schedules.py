"""Random schedules in which rows come to differ: prompts join, rows leave, come back and change places, drafts are dropped."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.rows import schedule as do
from harness.rows.schedule import Fixture, Step

MARGIN = 16
PARKED_MAX = 3


@dataclass
class Schedule:
    """Steps so far, and what they leave: the sequence in each row, parked sequences, how long each is and was."""

    rng: random.Random
    rows: list[int] = field(default_factory=list)
    parked: list[int] = field(default_factory=list)
    length: list[int] = field(default_factory=list)
    longest: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def open(self, lengths: list[int], parked: bool) -> None:
        names = list(range(len(self.length), len(self.length) + len(lengths)))
        self.length += lengths
        self.longest += lengths
        (self.parked if parked else self.rows).extend(names)
        self.steps.append(do.Prefill(tuple(lengths), parked=parked))

    def join(self) -> None:
        names = self.rng.sample(self.parked, self.rng.randint(1, len(self.parked)))
        self.parked = [name for name in self.parked if name not in names]
        self.rows += names
        self.steps.append(do.Assemble(tuple(names)))

    def leave(self) -> None:
        row = self.rng.randrange(len(self.rows))
        self.parked.append(self.rows.pop(row))
        self.steps.append(do.Split((row,)))

    def reorder(self) -> None:
        order = self.rng.sample(range(len(self.rows)), len(self.rows))
        self.rows = [self.rows[row] for row in order]
        self.steps.append(do.Reorder(tuple(order)))

    def drop(self) -> None:
        kept = sorted(self.rng.sample(range(len(self.rows)), len(self.rows) - 1))
        self.rows = [self.rows[row] for row in kept]
        self.steps.append(do.Select(tuple(kept)))

    def fork(self) -> None:
        """A row becomes two; the copy is a sequence of its own."""
        row = self.rng.randrange(len(self.rows))
        self.steps.append(do.Select((*range(len(self.rows)), row)))
        self.length.append(self.length[self.rows[row]])
        self.longest.append(self.longest[self.rows[row]])
        self.rows.append(len(self.length) - 1)

    def back(self) -> None:
        """One row goes back, behind its last step too, as far as the margin always allows."""
        row = self.rng.randrange(len(self.rows))
        name = self.rows[row]
        n = self.rng.randint(0, self.length[name] - max(self.longest[name] - MARGIN, 0))
        self.length[name] -= n
        self.steps.append(do.Rollback(row, n))

    def verify(self) -> None:
        width = self.rng.randint(2, 8)
        accepted = tuple(self.rng.randint(0, width) for _ in self.rows)
        self._grow([width] * len(self.rows))
        for name, n in zip(self.rows, accepted, strict=True):
            self.length[name] -= width - n
        self.steps.append(do.Verify(width, accepted))

    def advance(self) -> None:
        n_new = tuple(self.rng.choice((0, 1, 1, 1, 3)) for _ in self.rows)
        n_new = n_new if any(n_new) else (1,) * len(self.rows)
        self._grow(n_new)
        self.steps.append(do.Advance(n_new))

    def _grow(self, n_new: Sequence[int]) -> None:
        for name, n in zip(self.rows, n_new, strict=True):
            self.length[name] += n
            self.longest[name] = max(self.longest[name], self.length[name])


def random_schedule(seed: int, rows: int, steps: int, name: str = "random") -> Fixture:
    """`steps` random steps, the same for one seed; about `rows` rows stand in the batch."""
    schedule = Schedule(random.Random(f"{seed} {rows}"))
    rng = schedule.rng
    schedule.open([rng.randint(1, 40) for _ in range(rows - rows // 4)], parked=False)
    while len(schedule.steps) < steps:
        turn = rng.random()
        if turn < 0.05 and len(schedule.parked) < PARKED_MAX:
            schedule.open([rng.randint(1, 30)], parked=True)
        elif turn < 0.15 and schedule.parked and len(schedule.rows) < rows:
            schedule.join()
        elif turn < 0.22 and len(schedule.rows) > 1 and len(schedule.parked) < PARKED_MAX:
            schedule.leave()
        elif turn < 0.29:
            schedule.reorder()
        elif turn < 0.31 and len(schedule.rows) > max(rows // 2, 1):
            schedule.drop()
        elif turn < 0.34 and len(schedule.rows) < rows:
            schedule.fork()
        elif turn < 0.40:
            schedule.back()
        elif turn < 0.70:
            schedule.verify()
        else:
            schedule.advance()
    return Fixture(
        name, "Random rows that come to differ.", ratio=4, span=2, step=tuple(schedule.steps), margin=MARGIN
    )
