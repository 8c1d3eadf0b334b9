"""Which fixtures a cache can play, and what the others would need."""

from __future__ import annotations

from collections.abc import Sequence

from harness.caches.protocol import Described
from harness.rows import schedule as do
from harness.rows.schedule import Fixture, Step

OWN = {
    "adopt": "states that another program stored",
    "reconcile": "a batch-wide base",
    "align": "K/V slots of unequal length brought side by side",
    "reshape": "tensors that the caller builds",
    "per_row_state": "a cache without state per row",
}
"""Steps that speak of this project's own state: no foreign cache is asked for them."""


def needs(fixture: Fixture) -> dict[str, int]:
    """What playing the fixture takes, by name, each with the first step that takes it."""
    found: dict[str, int] = {} if fixture.per_row_state else {"per_row_state": 0}
    rows, saved = 0, {}
    for number, step in enumerate(fixture.step):
        if step.expect_refusal is not None:
            continue  # what a cache promises to refuse is for itself to say, not for a fixture
        for name in _of(step, rows):
            found.setdefault(name, number)
        if isinstance(step, do.Snapshot):
            saved[step.name] = rows
        rows = saved[step.name] if isinstance(step, do.Restore) else _rows_after(step, rows)
    return found


def missing(fixture: Fixture, cache: Described) -> dict[str, int]:
    """The needs of a fixture that a cache does not offer; none if it can play it."""
    return {name: step for name, step in needs(fixture).items() if name in OWN or not cache.offers(name)}


def _of(step: Step, rows: int) -> Sequence[str]:
    match step:
        case do.Prefill(lengths=lengths, cuts=cuts):
            unequal = len(set(lengths)) > 1 and not step.parked and rows == 0
            ragged_pieces = ["advance.ragged"] if cuts else []
            return ["prefill.ragged", *ragged_pieces] if unequal else []
        case do.Advance(n_new=counts):
            return [] if _even(counts) and all(counts) else ["advance.ragged"]
        case do.Verify(accept=accept):
            return ["rollback" if _even(accept) else "rollback.ragged"]
        case do.Rollback():
            return ["rollback" if rows == 1 else "rollback.ragged"]
        case do.Split(rows=leaving):
            return ["split", "select"] if leaving and len(leaving) < rows else ["split"]
        case do.Select(rows=names) | do.Reorder(rows=names):
            return ["select"] if len(set(names)) == len(names) else ["select", "repeat"]
        case do.Snapshot() | do.Restore():
            return ["snapshot"]
        case _:
            return [step.do]


def _even(counts: Sequence[int]) -> bool:
    return len(set(counts)) <= 1


def _rows_after(step: Step, rows: int) -> int:
    match step:
        case do.Prefill(lengths=lengths):
            return rows if step.parked or rows else len(lengths)
        case do.Split(rows=leaving):
            return rows - len(leaving) if leaving else 0
        case do.Assemble(sequences=names):
            return rows + len(names)
        case do.Select(rows=names) | do.Reorder(rows=names) | do.Reshape(rows=names):
            return len(names)
        case _:
            return rows
