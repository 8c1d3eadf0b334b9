"""What stands on the stage while a schedule is played: the batch, its sequences, their twins, and the oracle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from harness.rows import schedule as do
from harness.rows.events import Ledger, Stream, TokenStream, VectorStream
from harness.rows.exact import OneHotStream, exact_weights
from harness.rows.formats import rounded
from harness.rows.schedule import Fixture
from harness.rows.subject import (
    CANNOT_KEEP_BYTES,
    Array,
    Oracle,
    Promises,
    Rows,
    Setup,
    Slots,
    Subject,
    Weights,
    random_weights,
)
from harness.rows.trace import Trace

Lane = Literal["tokens", "values"]
KV_WIDTH = 1


@dataclass
class Member:
    """One sequence: its twin that plays alone, the oracle's promises, and the events it holds by right."""

    number: int
    alone: Rows
    promises: Promises
    history: list[int] = field(default_factory=list)
    kv_live: int = 0


class Stage:
    """Everything that a play holds and that its comparisons look at.

    batch  : the subject's rows; `order` names the sequence in each, by row
    parked : sequences that stand in caches of their own, by number
    twins  : further batches that must agree with the batch to the byte, by check
    at     : the number of the step that is played
    """

    def __init__(
        self,
        fixture: Fixture,
        subject: Subject,
        oracle: Oracle,
        options: Mapping[str, str],
        *,
        lane: Lane = "tokens",
        poison: bool = True,
        device: str = "cpu",
    ) -> None:
        self.fixture, self.subject, self.oracle = fixture, subject, oracle
        self.lane, self.poison = lane, poison
        self.trace = Trace(fixture, dict(options), [do.describe(step) for step in fixture.step])
        self.stream: Stream = TokenStream() if lane == "tokens" else stream_of(fixture)
        weights = weights_of(fixture) if lane == "values" else None
        setup = Setup(
            fixture.ratio,
            fixture.span,
            fixture.margin,
            weights,
            dict(options),
            per_row_state=fixture.per_row_state,
            kv_window=fixture.kv_window,
            device=device,
            row_invariant=lane == "values" and fixture.values.row_invariant,
        )
        self.setup = self._possible(setup)
        self.ledger = Ledger()
        self.batch: Rows | None = None
        self.order: list[Member] = []
        self.parked: dict[int, tuple[Member, Rows]] = {}
        self.twins: dict[str, Rows] = {}
        self.slots: Slots | None = subject.slots(self.setup, KV_WIDTH) if fixture.kv_window else None
        self.at = -1

    def _possible(self, setup: Setup) -> Setup:
        """The setup, in plain arithmetic if the subject says by name that no other can be had on this machine."""
        if not setup.row_invariant:
            return setup
        try:
            self.subject.open(setup, 1)
        except self.subject.refusal as refusal:
            if getattr(refusal, "kind", None) != CANNOT_KEEP_BYTES:
                return setup  # the play meets it again, and says what it is
            self.trace.declined = str(refusal)
            return replace(setup, row_invariant=False)
        return setup

    @contextmanager
    def alone(self, member: Member) -> Iterator[None]:
        """A broken invariant of a sequence's twin names the sequence's row of the batch, and says alone."""
        try:
            yield
        except self.subject.invariant_broken as broken:
            rows = [row for row, other in enumerate(self.order) if other is member]
            told = self.subject.invariant_broken(f"alone: {broken}")
            told.row = rows[0] if rows else None  # type: ignore[attr-defined]
            raise told from broken

    def kv(self, ids: list[int]) -> Array:
        """What a K/V slot is given for new tokens [n, KV_WIDTH]: their ids, in either lane."""
        return np.array(ids, dtype=np.int64).reshape(-1, KV_WIDTH)

    def present(self) -> Rows:
        """The batch; the schedule was validated, so there is one."""
        assert self.batch is not None
        return self.batch


def stream_of(fixture: Fixture) -> Stream:
    """What the values lane of a fixture is fed."""
    values = fixture.values
    if values.data == "exact":
        return OneHotStream(values.hidden_width)
    return VectorStream(values.hidden_width, values.data, values.dtype)


@lru_cache(maxsize=1)
def weights_of(fixture: Fixture) -> Weights:
    """The layer that the values lane of a fixture plays, in values that its format holds."""
    values = fixture.values
    if values.data == "exact":
        return exact_weights(fixture)
    drawn = random_weights(
        fixture.ratio, fixture.span, values.hidden_width, values.block_width, values.rope_width
    )
    bias = drawn.bias if values.bias == "normal" else np.zeros_like(drawn.bias)
    wkv, wgate, bias, gamma = (
        rounded(each, values.dtype) for each in (drawn.wkv, drawn.wgate, bias, drawn.gamma)
    )
    return Weights(wkv, wgate, bias, gamma, drawn.rope_width, values.dtype)
