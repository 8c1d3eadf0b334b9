"""Windowed keys and values of a batch whose rows may each stand at a token of their own.

What `torch_impl.kv_cache` keeps for one sequence, kept here for B rows: the last window - 1 + margin tokens, so that a
rollback of up to `margin` tokens still leaves a full window. A row is a ring, slot = absolute token mod slots: a step
writes only its new tokens, a rollback only lowers a count, and no row is ever shifted to stand beside another.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torch_impl.geometry import Count, Integers, at_least_zero, runs
from torch_impl.refusals import (
    AdvanceRefused,
    AssembleRefused,
    InvariantBroken,
    RollbackRefused,
    SelectRefused,
)


class KVRing:
    """One layer's keys, which are its values as well, of B rows.

    tokens        : how many tokens each row has consumed, base: the earliest one that it still keeps
    window        : a query sees itself and the window - 1 tokens before it
    per_row_state : off, all rows share their tokens and their base
    """

    def __init__(
        self,
        window: int,
        margin: int,
        rows: int,
        width: int,
        *,
        dtype: torch.dtype,
        per_row_state: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        if window < 1 or margin < 0 or rows < 1:
            raise ValueError(
                f"window is {window}, margin {margin}, rows {rows}; they should be at least 1, 0 and 1; correct the "
                "layer's configuration"
            )
        self.window, self.margin = window, margin
        self.per_row_state = per_row_state
        self.tokens = [0] * rows
        self.base = [0] * rows
        slots = -(-max(self.kept, 1) // 8) * 8
        self._ring = torch.zeros(rows, slots, width, dtype=dtype, device=device)

    @property
    def rows(self) -> int:
        return len(self.tokens)

    @property
    def kept(self) -> int:
        """Tokens of a row that has not been rolled back since its last step."""
        return self.window - 1 + self.margin

    def need(self, tokens: Count) -> Count:
        """The earliest token that the next query after `tokens` tokens sees."""
        return at_least_zero(tokens - self.window + 1)

    def run(self, row: int) -> Tensor:
        """The tokens [tokens - base, D] that the row keeps, oldest first. A copy."""
        kept = np.arange(self.base[row], self.tokens[row])
        return self._ring[row, self._to(kept % self._slots)]

    def history(self) -> tuple[Tensor, Integers]:
        """What the next query of each row sees before itself: keys [B, W, D], and the lead [B] of each row.

        All runs end in the last column; W is the longest. The first lead[i] columns of row i are dead. They hold
        zeros, which the mask must be told: a zero key scores 0 and would take softmax mass.
        """
        tokens = np.array(self.tokens)
        seen = tokens - self.need(tokens)  # [B]
        width = int(seen.max())
        lead = width - seen
        token = tokens[:, None] + np.arange(-width, 0)  # [B, W]
        keys = self._ring[self._to(np.arange(self.rows)[:, None]), self._to(token % self._slots)]
        if lead.any():
            dead = np.arange(width) < lead[:, None]
            keys = keys.masked_fill_(torch.from_numpy(dead).to(keys.device)[..., None], 0)
        return keys, lead

    def advance(self, kv: Tensor, n_new: Sequence[int] | None = None) -> None:
        """Append new tokens: kv [B, T, D], row i takes the first n_new[i] of its T columns (all, if None).

        A row with n_new 0 is not touched at all. Raises AdvanceRefused before anything changes.
        """
        counts = np.array(self._checked_counts(kv, n_new), dtype=np.int64)
        before, base = np.array(self.tokens), np.array(self.base)
        after = before + counts
        base = np.where(counts > 0, np.maximum(base, after - self.kept), base)
        first = np.maximum(before, base)
        row, token = runs(first, after - first)
        new = kv.detach()[self._to(row), self._to(token - before[row])]
        self._ring[self._to(row), self._to(token % self._slots)] = new
        self.tokens, self.base = after.tolist(), base.tolist()
        self.check_invariants()

    def _checked_counts(self, kv: Tensor, n_new: Sequence[int] | None) -> list[int]:
        rows, _, width = self._ring.shape
        if kv.dim() != 3 or kv.shape[0] != rows or kv.shape[2] != width:
            raise AdvanceRefused(
                f"kv is {list(kv.shape)}; it should be [{rows}, T, {width}]: one right-padded block of new tokens per "
                "row; pad to the longest",
                "advance-shape",
            )
        if kv.dtype != self._ring.dtype or kv.device.type != self._ring.device.type:
            raise AdvanceRefused(
                f"kv is {kv.dtype} on {kv.device.type}; this ring holds {self._ring.dtype} on "
                f"{self._ring.device.type}, and both should be equal; convert the new tokens first",
                "advance-dtype",
            )
        counts = [kv.shape[1]] * rows if n_new is None else [int(n) for n in n_new]
        if len(counts) != rows or min(counts) < 0 or max(counts) > kv.shape[1]:
            raise AdvanceRefused(
                f"n_new is {counts}; it should be {rows} counts in 0..{kv.shape[1]}, the columns of kv; count each "
                "row's own new tokens",
                "advance-counts",
            )
        if not self.per_row_state and len({*zip(self.tokens, self.base, counts, strict=True)}) > 1:
            raise AdvanceRefused(
                f"rows stand at tokens {self.tokens}, base {self.base} and would take {counts}; with per_row_state "
                "off all should be equal; turn it on, or advance the rows in separate caches",
                "advance-ragged",
            )
        return counts

    def rollback_refusal(self, row: int, n: int) -> RollbackRefused | None:
        """Why row `row` cannot drop its last n tokens, or None. Touches nothing."""
        self._check_rows([row])
        target = self.tokens[row] - n
        if n < 0 or target < 0:
            return RollbackRefused(
                f"row {row} holds {self.tokens[row]} tokens and should drop {n}; drop 0..{self.tokens[row]}",
                "rollback-below-zero",
            )
        if self.need(target) < self.base[row]:
            return RollbackRefused(
                f"row {row} at {self.tokens[row]} tokens should go back to {target}; the next query there sees token "
                f"{self.need(target)}, but the row keeps tokens from {self.base[row]} on; go back less, or prefill "
                "the row again",
                "rollback-below-window",
            )
        if not self.per_row_state and self.rows > 1 and n:
            return RollbackRefused(
                f"row {row} of {self.rows} should drop {n} tokens alone; with per_row_state off all rows keep equal "
                "tokens; turn it on, or use rollback_rows with equal counts",
                "rollback-ragged",
            )
        return None

    def rollback(self, row: int, n: int) -> None:
        """Drop the last n tokens of one row. Raises RollbackRefused."""
        refusal = self.rollback_refusal(row, n)
        if refusal:
            raise refusal
        self.tokens[row] -= n
        self.check_invariants()

    def rollback_rows_refusal(self, counts: Sequence[int]) -> RollbackRefused | None:
        """Why row i cannot drop its last counts[i] tokens, for the first such row, or None. Touches nothing."""
        if len(counts) != self.rows:
            return RollbackRefused(
                f"counts has {len(counts)} entries; it should have one per row, {self.rows}; use 0 for a row that stays",
                "rollback-counts",
            )
        for row, n in enumerate(counts):
            refusal = self.rollback_refusal(row, n)
            if refusal and not (refusal.kind == "rollback-ragged" and len(set(counts)) == 1):
                return refusal
        return None

    def rollback_rows(self, counts: Sequence[int]) -> None:
        """Drop the last counts[i] tokens of row i: all rows, or none and RollbackRefused."""
        refusal = self.rollback_rows_refusal(counts)
        if refusal:
            raise refusal
        self.tokens = [t - n for t, n in zip(self.tokens, counts, strict=True)]
        self.check_invariants()

    def split_row(self, row: int) -> KVRing:
        """Row `row` as a ring of its own. Never shares storage with the batch."""
        self._check_rows([row])
        return self._with(
            self._ring[row : row + 1].clone(), self.tokens[row : row + 1], self.base[row : row + 1]
        )

    @staticmethod
    def assemble(parts: Sequence[KVRing]) -> KVRing:
        """One batch of all rows of `parts`, in order; each row keeps its own tokens and its own base.

        Nothing is aligned: a token's slot does not depend on who stands beside it. Raises AssembleRefused, before
        anything is built.
        """
        if not parts:
            raise AssembleRefused(
                "no ring was given; there should be at least one; pass the rings of all rows",
                "assemble-empty",
            )
        first = parts[0]
        for k, part in enumerate(parts):
            if part._kind() != first._kind():
                raise AssembleRefused(
                    f"ring {k} is {part._kind()}; it should equal ring 0, {first._kind()}; build all from one layer",
                    "assemble-kind",
                )
        tokens = [t for part in parts for t in part.tokens]
        base = [b for part in parts for b in part.base]
        if not first.per_row_state and len({*zip(tokens, base, strict=True)}) > 1:
            raise AssembleRefused(
                f"rows stand at tokens {tokens}, base {base}; with per_row_state off all should be equal; turn it on, "
                "or keep the rows in separate caches",
                "assemble-ragged",
            )
        return first._with(torch.cat([part._ring for part in parts]), tokens, base)

    def select(self, rows: Sequence[int]) -> None:
        """Keep exactly `rows`, in that order (a row may be repeated): keys, tokens and base together."""
        if not rows:
            raise SelectRefused(
                "no row was chosen; a batch should keep at least one; drop the whole cache instead",
                "select-empty",
            )
        self._check_rows(rows)
        self._ring = self._ring[self._to(np.array(rows, dtype=np.int64))]
        self.tokens = [self.tokens[row] for row in rows]
        self.base = [self.base[row] for row in rows]
        self.check_invariants()

    def storage(self) -> dict[str, Tensor]:
        """The tensor that holds the keys, dead memory included: for byte comparison and aliasing checks."""
        return {"ring": self._ring}

    def fill_dead(self, value: float) -> None:
        """Overwrite all memory that no row keeps."""
        for row, (t, b) in enumerate(zip(self.tokens, self.base, strict=True)):
            live = torch.zeros(self._slots, dtype=torch.bool)
            live[torch.arange(b, t) % self._slots] = True
            self._ring[row, ~live.to(self._ring.device)] = value

    def check_invariants(self) -> None:
        """Raise InvariantBroken if the counts contradict each other or the storage."""
        if not len(self.tokens) == len(self.base) == self._ring.shape[0]:
            raise InvariantBroken(
                f"tokens has {len(self.tokens)} rows, base {len(self.base)}, the ring {self._ring.shape[0]}; all "
                "should be equal"
            )
        for row, (t, b) in enumerate(zip(self.tokens, self.base, strict=True)):
            if not 0 <= b <= t:
                raise InvariantBroken(f"base {b} should lie in 0..tokens={t}", row)
            if b + self._slots < t:
                raise InvariantBroken(f"keeps tokens {b}..{t - 1}, but the ring has {self._slots} slots", row)
            if self.need(t) < b:
                raise InvariantBroken(f"base {b} lies above {self.need(t)}, which the next query sees", row)

    @property
    def _slots(self) -> int:
        return self._ring.shape[1]

    def _with(self, ring: Tensor, tokens: list[int], base: list[int]) -> KVRing:
        """A ring of this one's kind with other rows."""
        other = copy.copy(self)
        other._ring, other.tokens, other.base = ring, tokens, base
        other.check_invariants()
        return other

    def _kind(self) -> tuple[object, ...]:
        """What rows of one batch must share."""
        ring = self._ring
        return (self.window, self.margin, ring.shape[2], ring.dtype, str(ring.device), self.per_row_state)

    def _check_rows(self, rows: Sequence[int]) -> None:
        if not all(0 <= row < self.rows for row in rows):
            raise SelectRefused(
                f"rows {list(rows)} were chosen; all should lie in 0..{self.rows - 1}; choose rows of this batch",
                "select-out-of-range",
            )

    def _to(self, index: Integers) -> Tensor:
        """What was worked out on the host, where the keys are."""
        return torch.from_numpy(index).to(self._ring.device, non_blocking=True)
