"""The steps of a schedule, as data. A row is a position in the batch; a sequence keeps its number for ever.

Sequences are numbered in the order in which they are opened. A sequence is either in the batch or parked
(a cache of its own). Any step may carry `expect_refusal`, the kind of the refusal that it must end in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.rows.formats import Format


class _Strict:
    """A key that a step does not have is an error, not a remark."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 (read by pydantic, never changed)


@dataclass(frozen=True)
class Prefill(_Strict):
    """Open one sequence per length. In one right-padded call if the batch is empty, else parked, each alone.

    cuts: feed the batch in pieces that end at these positions, while the twin alone is fed in one shot.
    """

    lengths: tuple[int, ...]
    parked: bool = False
    cuts: tuple[int, ...] = ()
    do: Literal["prefill"] = "prefill"
    expect_refusal: str | None = None


@dataclass(frozen=True)
class Adopt(_Strict):
    """Open parked sequences from a state built outside: `tokens` consumed, the run starting at `base`."""

    tokens: tuple[int, ...]
    base: tuple[int, ...]
    do: Literal["adopt"] = "adopt"
    expect_refusal: str | None = None


@dataclass(frozen=True)
class Advance(_Strict):
    """Append n_new[i] tokens to row i (0: the row is idle)."""

    n_new: tuple[int, ...]
    do: Literal["advance"] = "advance"
    expect_refusal: str | None = None


@dataclass(frozen=True)
class Verify(_Strict):
    """Append `width` draft tokens to every row, then row i keeps accept[i] of them and rolls back the rest."""

    width: int
    accept: tuple[int, ...]
    do: Literal["verify"] = "verify"
    expect_refusal: str | None = None


@dataclass(frozen=True)
class Rollback(_Strict):
    """Drop the last n tokens of one row."""

    row: int
    n: int
    do: Literal["rollback"] = "rollback"
    expect_refusal: str | None = None


@dataclass(frozen=True)
class Split(_Strict):
    """Rows leave the batch, each into a cache of its own (all rows, if `rows` is empty)."""

    rows: tuple[int, ...] = ()
    do: Literal["split"] = "split"
    expect_refusal: str | None = None


@dataclass(frozen=True)
class Assemble(_Strict):
    """Parked sequences become the batch, in this order (behind the rows already in it)."""

    sequences: tuple[int, ...]
    do: Literal["assemble"] = "assemble"
    expect_refusal: str | None = None


@dataclass(frozen=True)
class Select(_Strict):
    """Keep exactly these rows, in this order."""

    rows: tuple[int, ...]
    do: Literal["select"] = "select"
    expect_refusal: str | None = None


@dataclass(frozen=True)
class Reorder(_Strict):
    """Permute the rows: new row k is old row rows[k]."""

    rows: tuple[int, ...]
    do: Literal["reorder"] = "reorder"
    expect_refusal: str | None = None


@dataclass(frozen=True)
class Reshape(_Strict):
    """The caller builds tensors with these rows itself and hands them over."""

    rows: tuple[int, ...]
    do: Literal["reshape"] = "reshape"
    expect_refusal: str | None = None


@dataclass(frozen=True)
class Trim(_Strict):
    """A parked sequence's run starts at `base` from now on; sequence None means the whole batch."""

    base: int
    sequence: int | None = None
    do: Literal["trim"] = "trim"
    expect_refusal: str | None = None


@dataclass(frozen=True)
class Reconcile(_Strict):
    """Bring these parked sequences to one base, where per-row state is off; nothing happens where it is on."""

    sequences: tuple[int, ...]
    do: Literal["reconcile"] = "reconcile"
    expect_refusal: str | None = None


@dataclass(frozen=True)
class Snapshot(_Strict):
    """Write the batch to a file."""

    name: str
    do: Literal["snapshot"] = "snapshot"
    expect_refusal: str | None = None


@dataclass(frozen=True)
class Restore(_Strict):
    """Replace the batch by the one that was written under this name."""

    name: str
    do: Literal["restore"] = "restore"
    expect_refusal: str | None = None


@dataclass(frozen=True)
class Align(_Strict):
    """Bring the K/V slots of the batch's sequences to one length. drop: forget the dead prefixes afterwards."""

    drop: bool = False
    do: Literal["align"] = "align"
    expect_refusal: str | None = None


Step = (
    Prefill
    | Adopt
    | Advance
    | Verify
    | Rollback
    | Split
    | Assemble
    | Select
    | Reorder
    | Reshape
    | Trim
    | Reconcile
    | Snapshot
    | Restore
    | Align
)


_QUOTED_MAX = 16


def _quoted(counts: Sequence[int], sign: str = "") -> str:
    """Counts with commas between them; of many, the first and how many there are."""
    shown = ",".join(f"{sign}{n}" for n in counts[:_QUOTED_MAX])
    return shown if len(counts) <= _QUOTED_MAX else f"{shown},... {len(counts)} in all"


def describe(step: Step) -> str:
    """A step in the words of a message: advance(+3,+1)."""
    match step:
        case Advance(n_new=counts):
            return f"advance({_quoted(counts, '+')})"
        case Prefill(lengths=lengths):
            return f"prefill({_quoted(lengths)})"
        case Adopt(tokens=tokens, base=base):
            return f"adopt({','.join(f'{b}..{t}' for t, b in zip(tokens, base, strict=True))})"
        case Verify(width=width, accept=accept):
            return f"verify(+{width}, accept {_quoted(accept)})"
        case Rollback(row=row, n=n):
            return f"rollback(row {row}, -{n})"
        case Trim(base=base, sequence=sequence):
            return f"trim({'batch' if sequence is None else f'r{sequence}'}, {base})"
        case Snapshot(name=name) | Restore(name=name):
            return f"{step.do}({name})"
        case Align(drop=drop):
            return f"align({'drop' if drop else ''})"
        case Assemble(sequences=names) | Reconcile(sequences=names):
            return f"{step.do}({','.join(f'r{n}' for n in names)})"
        case Split(rows=rows) | Select(rows=rows) | Reorder(rows=rows) | Reshape(rows=rows):
            return f"{step.do}({','.join(map(str, rows)) or 'all'})"


@dataclass(frozen=True)
class Values(_Strict):
    """What the values lane is played with.

    dtype        : of weights, inputs and blocks; payloads are stored in float32 at least
    hidden_width, block_width, rope_width : channels
    data         : a standard normal vector per event; or a unit vector, with weights under which nothing is rounded
                   before the norm (exact: `harness.rows.exact`); or, to show that calibration refuses them, the
                   number of the event in all channels (ramp), or normal data around 1000 (offset)
    bias         : the learned position bias, normal or all zero
    row_invariant: ask for arithmetic in which a row's bytes do not depend on what else stands in its batch
    """

    dtype: Format = "float64"
    hidden_width: int = 8
    block_width: int = 32
    rope_width: int = 32  # so wide that YaRN's ramp begins and ends inside it
    data: Literal["normal", "exact", "ramp", "offset"] = "normal"
    bias: Literal["normal", "zero"] = "normal"
    row_invariant: bool = False


@dataclass(frozen=True)
class Fixture(_Strict):
    """One condition, played on one geometry.

    proves         : one sentence, what a green play shows
    facts          : reach facts that the play must witness (`harness.rows.facts`)
    per_row_state  : False plays the scalar world, in which all rows share tokens and base
    uniform        : all rows stay equal; the play is repeated with per-row state off and with the ragged path
                     forced, and all three must agree to the byte
    every_depth    : at the end, probe every rollback depth 0..margin + 2 * ratio
    kv_window      : each sequence also carries a K/V slot with this window (0: none)
    payloads       : what is stored for a token while the fixture is played
    values         : sizes, format and data of the values lane
    """

    name: str
    proves: str
    ratio: int
    span: int
    step: tuple[Step, ...]
    margin: int = 16
    facts: tuple[str, ...] = ()
    stream: Literal["events"] = "events"
    per_row_state: bool = True
    uniform: bool = False
    every_depth: bool = False
    kv_window: int = 0
    payloads: tuple[Literal["hidden", "projected"], ...] = ("hidden", "projected")
    values: Values = Values()
