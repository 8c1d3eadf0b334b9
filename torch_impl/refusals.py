"""Typed refusals: what an operation cannot do, said before anything is touched.

Every refusal says what is, what should be and what to do, and leaves the state bit-identical.
`kind` is a stable word for machines: reports, fixtures and the identity harness compare kinds, never texts.
"""

from __future__ import annotations


class Refusal(Exception):
    """An operation that would give a wrong answer and is therefore not done; the state is untouched."""

    kind = "refusal"

    def __init__(self, message: str, kind: str | None = None) -> None:
        super().__init__(message)
        if kind is not None:
            self.kind = kind


class AdvanceRefused(Refusal):
    """The new tokens do not fit this batch."""

    kind = "advance"


class RollbackRefused(Refusal):
    """A row cannot go back that far: its promise does not reach."""

    kind = "rollback"


class SelectRefused(Refusal):
    """The chosen rows are not rows of this batch."""

    kind = "select"


class AssembleRefused(Refusal):
    """The caches cannot stand in one batch."""

    kind = "assemble"


class ReshapeRefused(Refusal):
    """Another batch size cannot be adopted, because the rows differ and only the caller knows which survive."""

    kind = "reshape"


class TrimRefused(Refusal):
    """The tail cannot start at that token."""

    kind = "trim"


class RestoreRefused(Refusal):
    """The stored state is of another geometry, payload or dtype, or breaks an invariant."""

    kind = "restore"


class AlignRefused(Refusal):
    """The K/V slots cannot be brought to one length."""

    kind = "align"


class MaskRefused(Refusal):
    """A mask does not speak of the queries and columns of this step."""

    kind = "mask"


class RowInvarianceRefused(Refusal):
    """This machine does not give a row the same bytes wherever it stands."""

    kind = "invariance"


class InvariantBroken(Exception):
    """The state contradicts its own rules: a fault of this package, never of the caller.

    row is the batch row that does, or None where it is not one row's.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message if row is None else f"row {row}: {message}")
        self.row = row
