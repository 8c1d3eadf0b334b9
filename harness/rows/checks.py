"""The named checks of row identity, and which of them a fixture can answer.

A check compares the batch with the same sequence alone; its `@reference` partner compares alone with the
oracle. They stay apart, because a fault that is common to batch and alone is invisible to the first.
"""

from __future__ import annotations

from harness.rows.schedule import Advance, Align, Fixture, Prefill, Verify

CHECKS = {
    "comp.tokens": "each live block pooled the same tokens, in the same order, at the same block index",
    "comp.values": "each live block has the same values, real compressor, within a derived bound; to the bit on exact data",
    "tail.values": "each retained token has the values it was fed, or that it projects to, in the format's rounding",
    "rows.bytes": "with row-invariant arithmetic, each row's state has the same bytes as alone, or the mode is refused by name",
    "tail.width": "the window is as wide as its longest run",
    "tail.tokens": "each run holds the same tokens",
    "tokens": "each row has consumed as many tokens",
    "base": "each row promises to resume from the same token",
    "refusal": "each row refuses the same rollbacks for the same reason, and a refusal changes nothing",
    "invariant": "the state never contradicts itself",
    "calls": "the compressor pools at most as often as the plan allows",
    "scatter": "a step writes exactly its completed blocks, each to its own row and column",
    "idle.bytes": "a row that takes no token keeps every byte",
    "no_alias": "no two caches share memory",
    "facts": "the play witnessed what the fixture declares",
    "flag_off.bytes": "equal rows: per-row state on and off agree in every byte of the state",
    "forced.bytes": "equal rows: the ragged path and the uniform path agree in every byte of the state",
    "lead": "each sequence's dead columns are reported, and only those",
    "kv.tokens": "each K/V slot holds its window's tokens behind its lead",
    "kv.refusal": "each K/V slot refuses the rollbacks that its window and margin cannot answer, and no other",
    "cache_len": "the precondition of a scalar batch exempts per-row state and nothing else",
}

_TWO_SIDED = (
    "comp.tokens",
    "comp.values",
    "tail.values",
    "tail.width",
    "tail.tokens",
    "tokens",
    "base",
    "refusal",
)
REFERENCE = "@reference"
VALUES_LANE = (
    *(name + side for name in ("comp.values", "tail.values") for side in ("", REFERENCE)),
    "rows.bytes",
)


def meaning(check: str) -> str:
    """What a green `check` says, one sentence."""
    name, _, against = check.partition("@")
    return CHECKS[name] + (" as the reference says" if against else "")


def checks_of(fixture: Fixture) -> tuple[str, ...]:
    """The checks that this fixture can answer, in the order of the reports."""
    steps = [step for step in fixture.step if step.expect_refusal is None]
    advances = [
        s for s in steps if isinstance(s, (Advance, Verify)) or (isinstance(s, Prefill) and not s.parked)
    ]
    idle = any(isinstance(s, Advance) and 0 in s.n_new and any(s.n_new) for s in steps)
    aligns = any(isinstance(s, Align) for s in steps)
    absent = {
        "tail.values": fixture.values.dtype == "float64" and fixture.values.data != "exact",
        "rows.bytes": not fixture.values.row_invariant,
        "calls": not advances,
        "scatter": not advances,
        "idle.bytes": not idle,
        "flag_off.bytes": not fixture.uniform,
        "forced.bytes": not fixture.uniform,
        "lead": not aligns,
        "kv.tokens": not aligns,
        "kv.refusal": not fixture.kv_window,
        "cache_len": not aligns,
    }
    names = []
    for name in CHECKS:
        if not absent.get(name, False):
            names += [name, name + REFERENCE] if name in _TWO_SIDED else [name]
    return tuple(names)
