"""Per-row compressed state of a batch: completed blocks, the raw tail, and how far each row may go back.

Words (the same everywhere): row = one sequence of the batch; run = its retained tokens base..tokens-1;
block = one completed compressed entry; comp = the completed blocks; tail = the retained raw window.

Invariants, checked after every operation: 0 <= base <= tokens; base + slots >= tokens (the run is stored);
need(tokens) >= base (the next block can be built); base is a multiple of ratio. `torch_impl.storage` says how
rows are stored, `torch_impl.step` what a step does; here is what a caller may ask for, and what is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_impl.geometry import Geometry
from torch_impl.refusals import (
    AdvanceRefused,
    AssembleRefused,
    ReshapeRefused,
    RestoreRefused,
    RollbackRefused,
    SelectRefused,
    TrimRefused,
)
from torch_impl.step import Plan, RowSteps
from torch_impl.storage import BlockPooler, Retain


class XsRolling(RowSteps):
    """The compressor state of B rows that may each stand at a token of their own.

    retain         : payload of the tail. "hidden" keeps raw inputs [H] and projects when a block completes;
                     "projected" keeps kv and z [span * series_width], each token projected once.
    plan           : how completing blocks are pooled. "gathered": one call per step, every window gathered by
                     absolute token. "grouped": one call per set of rows with equal windows.
    per_row_state  : off, only the uniform path exists: all rows share their tokens and their base.
    always_ragged  : never take the uniform path, also where it would be right (for verification).
    """

    def __init__(
        self,
        compressor: BlockPooler,
        geometry: Geometry,
        rows: int,
        *,
        retain: Retain = "projected",
        plan: Plan = "gathered",
        per_row_state: bool = True,
        always_ragged: bool = False,
        hidden_dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if (compressor.ratio, compressor.span) != (geometry.ratio, geometry.span):
            raise ValueError(
                f"the compressor has ratio {compressor.ratio}, span {compressor.span}; the geometry has ratio "
                f"{geometry.ratio}, span {geometry.span}; they should be equal: build both from one layer"
            )
        if retain not in ("hidden", "projected") or plan not in ("grouped", "gathered"):
            raise ValueError(
                f"retain is {retain!r} and plan is {plan!r}; they should be 'hidden' or 'projected', and "
                "'grouped' or 'gathered'"
            )
        if rows < 1:
            raise ValueError(f"rows is {rows}; a batch should have at least one row")
        super().__init__(compressor, geometry, rows, retain, hidden_dtype, device)
        self.plan = plan
        self.per_row_state = per_row_state
        self.always_ragged = always_ragged

    def advance(self, xs: Tensor, n_new: Sequence[int] | None = None) -> None:
        """Append new tokens: xs [B, T, H], row i takes the first n_new[i] of its T columns (all, if None).

        Blocks that complete go to their row's own columns. A row with n_new 0 is not touched at all.
        Raises AdvanceRefused, before anything changes, for shapes that do not fit and, with per_row_state
        off, for rows that would no longer be equal.
        """
        counts = self._checked_counts(xs, n_new)
        if not any(counts):
            return
        xs = xs.detach()
        if self._is_uniform(counts) and not self.always_ragged:
            self._advance_uniform(xs[:, : counts[0]], counts[0])
        else:
            self._advance_ragged(xs, counts)
        self.check_invariants()

    def _checked_counts(self, xs: Tensor, n_new: Sequence[int] | None) -> list[int]:
        if xs.dim() != 3 or xs.shape[0] != self.rows or xs.shape[2] != self.compressor.hidden_width:
            raise AdvanceRefused(
                f"xs is {list(xs.shape)}; it should be [{self.rows}, T, {self.compressor.hidden_width}]: one "
                "right-padded block of new tokens per row; pad to the longest",
                "advance-shape",
            )
        if xs.dtype != self.hidden_dtype or xs.device.type != self.device.type:
            raise AdvanceRefused(
                f"xs is {xs.dtype} on {xs.device.type}; this state takes {self.hidden_dtype} on "
                f"{self.device.type}, and both should be equal; convert the new tokens first",
                "advance-dtype",
            )
        counts = [xs.shape[1]] * self.rows if n_new is None else [int(n) for n in n_new]
        if len(counts) != self.rows or min(counts) < 0 or max(counts) > xs.shape[1]:
            raise AdvanceRefused(
                f"n_new is {counts}; it should be {self.rows} counts in 0..{xs.shape[1]}, the columns of xs; count "
                "each row's own new tokens",
                "advance-counts",
            )
        if not self.per_row_state and not self._is_uniform(counts):
            raise AdvanceRefused(
                f"rows stand at tokens {self.tokens}, base {self.base} and would take {counts}; with per_row_state "
                "off all should be equal; turn it on, or advance the rows in separate caches",
                "advance-ragged",
            )
        return counts

    def _is_uniform(self, counts: Sequence[int]) -> bool:
        """One shape serves all rows. Tokens alone do not decide it: rows that rolled back promise less."""
        return all(values.count(values[0]) == self.rows for values in (self.tokens, self.base, counts))

    def rollback_refusal(self, row: int, n: int) -> RollbackRefused | None:
        """Why row `row` cannot drop its last n tokens, or None. Touches nothing."""
        self._check_rows([row])
        target = self.tokens[row] - n
        if n < 0 or target < 0:
            return RollbackRefused(
                f"row {row} holds {self.tokens[row]} tokens and should drop {n}; drop 0..{self.tokens[row]}",
                "rollback-below-zero",
            )
        if self.geometry.need(target) < self.base[row]:
            return RollbackRefused(
                f"row {row} at {self.tokens[row]} tokens should go back to {target}; the next block there needs "
                f"token {self.geometry.need(target)}, but the row keeps tokens from {self.base[row]} on; go back "
                "less, or prefill the row again",
                "rollback-below-base",
            )
        if not self.per_row_state and self.rows > 1 and n:
            return RollbackRefused(
                f"row {row} of {self.rows} should drop {n} tokens alone; with per_row_state off all rows keep equal "
                "tokens; turn it on, or use rollback_rows with equal counts",
                "rollback-ragged",
            )
        return None

    def rollback(self, row: int, n: int) -> None:
        """Drop the last n tokens of one row. Raises RollbackRefused; stale blocks stay unreachable in place."""
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

    def split_row(self, row: int) -> XsRolling:
        """Row `row` as a cache of its own: its live blocks and its run. Never shares storage with the batch."""
        self._check_rows([row])
        share = self.tokens[row] - self.base[row]
        return self._adopt(
            self.comp(row)[None], self._read_tail([row], share), [self.tokens[row]], [self.base[row]]
        )

    @staticmethod
    def assemble(parts: Sequence[XsRolling]) -> XsRolling:
        """One batch of all rows of `parts`, in order; each row keeps its own tokens and its own base.

        Raises AssembleRefused, before anything is built, for parts of another geometry, payload or dtype and,
        with per_row_state off, for unequal tokens or tail widths (reconcile_xs_bases first).
        """
        if not parts:
            raise AssembleRefused(
                "no cache was given; there should be at least one; pass the caches of all rows",
                "assemble-empty",
            )
        first = parts[0]
        for k, part in enumerate(parts):
            if part._kind() != first._kind():
                raise AssembleRefused(
                    f"cache {k} is {part._kind()}; it should equal cache 0, {first._kind()}; build all from one layer",
                    "assemble-kind",
                )
        tokens = [t for part in parts for t in part.tokens]
        base = [b for part in parts for b in part.base]
        if not first.per_row_state and (len(set(tokens)) > 1 or len({p.width for p in parts}) > 1):
            raise AssembleRefused(
                f"rows stand at tokens {tokens} with tails {[p.width for p in parts]} wide; with per_row_state off "
                "both should be equal; reconcile_xs_bases first, or turn per_row_state on",
                "assemble-ragged",
            )
        width = max(part.width for part in parts)
        live = max(first.geometry.blocks(t) for t in tokens)
        tail = first._ring.new_zeros(len(tokens), width, first._ring.shape[2])
        comp = first._comp.new_zeros(len(tokens), live, first._comp.shape[2])
        row = 0
        for part in parts:
            end = row + part.rows
            tail[row:end, width - part.width :] = part.tail()
            blocks = max(part.live_blocks(i) for i in range(part.rows))
            comp[row:end, :blocks] = part._comp[:, :blocks]
            row = end
        return first._adopt(comp, tail, tokens, base)

    def select(self, rows: Sequence[int]) -> None:
        """Keep exactly `rows`, in that order (a row may be repeated): tail, blocks, tokens and base together."""
        if not rows:
            raise SelectRefused(
                "no row was chosen; a batch should keep at least one; drop the whole cache instead",
                "select-empty",
            )
        self._check_rows(rows)
        index, live = self._index(rows), max(map(self.live_blocks, rows))
        comp = self._new_comp(len(rows), live)  # not wider than the rows that stay would have made it
        comp[:, :live] = self._comp[index, :live]
        self._ring, self._comp = self._ring[index], comp
        self.tokens = [self.tokens[row] for row in rows]
        self.base = [self.base[row] for row in rows]
        self.check_invariants()

    def reshape(self, comp: Tensor, tail: Tensor) -> None:
        """Adopt tensors of another batch size that the caller has built: comp [B', live, d], tail [B', W, F].

        Counts are kept, because all rows have the same. Raises ReshapeRefused when tokens or base differ:
        which rows survive is then the caller's knowledge (use select), and for tensors that do not fit.
        """
        if len(set(self.tokens)) > 1 or len(set(self.base)) > 1:
            raise ReshapeRefused(
                f"rows stand at tokens {self.tokens}, base {self.base}; reshape keeps one count for all rows, so they "
                "should be equal; choose the rows with select",
                "reshape-ragged",
            )
        live, width = self.live_blocks(0), self.width
        want = ([live, self._comp.shape[2]], [width, self._ring.shape[2]])
        if (
            (list(comp.shape[1:]), list(tail.shape[1:])) != want
            or comp.shape[0] != tail.shape[0]
            or not len(comp)
        ):
            raise ReshapeRefused(
                f"comp is {list(comp.shape)}, tail {list(tail.shape)}; they should be [B, {live}, {want[0][1]}] and "
                f"[B, {width}, {want[1][1]}] with one B >= 1; build both from the same rows",
                "reshape-shape",
            )
        if (comp.dtype, tail.dtype) != (self._comp.dtype, self._ring.dtype):
            raise ReshapeRefused(
                f"comp is {comp.dtype}, tail {tail.dtype}; they should be {self._comp.dtype} and {self._ring.dtype}; "
                "convert them first",
                "reshape-dtype",
            )
        rows = len(comp)
        self._install(comp, tail, self.tokens[:1] * rows, self.base[:1] * rows)

    def trim_refusal(self, new_base: int) -> TrimRefused | None:
        """Why the tail cannot start at new_base, or None. Touches nothing."""
        if self.rows != 1:
            return TrimRefused(
                f"the cache has {self.rows} rows and should have 1: one base cannot describe rows with different resume "
                "points; split them first",
                "trim-multi-row",
            )
        if new_base % self.geometry.ratio:
            return TrimRefused(
                f"the new base is {new_base}; it should be a multiple of {self.geometry.ratio}; trim to "
                f"{new_base - new_base % self.geometry.ratio}",
                "trim-not-a-multiple",
            )
        need = self.geometry.need(self.tokens[0])
        if new_base > need:
            return TrimRefused(
                f"the new base is {new_base}; it should not lie above {need}, which the next block after "
                f"{self.tokens[0]} tokens needs; trim to {need} at most",
                "trim-above-need",
            )
        if new_base < self.base[0]:
            return TrimRefused(
                f"the new base is {new_base}; it should not lie below {self.base[0]}, because earlier tokens are gone; "
                f"trim to {self.base[0]} or later",
                "trim-below-base",
            )
        return None

    def trim_tail_to(self, new_base: int) -> None:
        """Drop the oldest tokens, so that the run starts at new_base. Raises TrimRefused."""
        refusal = self.trim_refusal(new_base)
        if refusal:
            raise refusal
        self.base[0] = new_base
        self.check_invariants()

    def adopt(self, comp: Tensor, tail: Tensor, tokens: Sequence[int], base: Sequence[int]) -> XsRolling:
        """A cache of this kind that continues from a stored state: comp [B, live, d], tail [B, W, F].

        Each row's run lies at the end of the tail; a run may be wider than the row would have kept.
        Raises RestoreRefused for tensors that do not fit and for counts that break an invariant.
        """
        tokens, base = list(tokens), list(base)
        self._check_counts(tokens, base)
        width = max(t - b for t, b in zip(tokens, base, strict=True))
        live = max(self.geometry.blocks(t) for t in tokens)
        want = {
            "comp": ([len(tokens), live, self._comp.shape[2]], self._comp.dtype),
            "tail": ([len(tokens), width, self._ring.shape[2]], self._ring.dtype),
        }
        for name, tensor in (("comp", comp), ("tail", tail)):
            if (list(tensor.shape), tensor.dtype) != want[name]:
                raise RestoreRefused(
                    f"{name} is {list(tensor.shape)} {tensor.dtype}; for tokens {tokens} and base {base} it should be "
                    f"{want[name][0]} {want[name][1]}; take the snapshot again",
                    "restore-shape",
                )
        if not self.per_row_state and (len(set(tokens)) > 1 or len(set(base)) > 1):
            raise RestoreRefused(
                f"the state has tokens {tokens}, base {base}; with per_row_state off all rows should be equal; "
                "turn it on, or restore the rows one by one",
                "restore-ragged",
            )
        return self._adopt(comp.to(self.device), tail.to(self.device), tokens, base)

    def _check_counts(self, tokens: Sequence[int], base: Sequence[int]) -> None:
        """Raise RestoreRefused for counts that break an invariant: they come from outside."""
        if not tokens or len(tokens) != len(base):
            raise RestoreRefused(
                f"the state has {len(tokens)} counts of tokens and {len(base)} bases; it should have one of each "
                "per row, for at least one row; take the snapshot again",
                "restore-rows",
            )
        for row, (t, b) in enumerate(zip(tokens, base, strict=True)):
            need = self.geometry.need(t)
            if not 0 <= b <= t:
                raise RestoreRefused(
                    f"row {row} has tokens {t} and base {b}; the base should lie in 0..tokens; take the snapshot "
                    "again",
                    "restore-base-above-tokens",
                )
            if b % self.geometry.ratio:
                raise RestoreRefused(
                    f"row {row} has base {b}; it should be a multiple of {self.geometry.ratio}; take the snapshot "
                    "again",
                    "restore-not-a-multiple",
                )
            if b > need:
                raise RestoreRefused(
                    f"row {row} has tokens {t} and base {b}; the next block needs token {need}, so the base should "
                    f"be {need} at most; take the snapshot again",
                    "restore-above-need",
                )

    def _kind(self) -> tuple[object, ...]:
        """What rows of one batch must share."""
        described = tuple(sorted(self.compressor.describe().items()))
        return (self.geometry, described, self.retain, self._ring.dtype, self._comp.dtype, self.per_row_state)

    def _check_rows(self, rows: Sequence[int]) -> None:
        if not all(0 <= row < self.rows for row in rows):
            raise SelectRefused(
                f"rows {list(rows)} were chosen; all should lie in 0..{self.rows - 1}; choose rows of this batch",
                "select-out-of-range",
            )


def reconcile_xs_bases(rows: Sequence[XsRolling]) -> None:
    """Bring single-row caches to one base, the largest, before they are assembled with per_row_state off.

    With per_row_state on this does nothing: it would turn a promise that each row has made for itself into
    one for the whole batch. Raises TrimRefused, before any row is trimmed, if that cuts below what a row needs.
    """
    if any(row.per_row_state for row in rows) or not rows:
        return
    target = max(row.base[0] for row in rows)
    for row in rows:
        refusal = row.trim_refusal(target)
        if refusal:
            raise refusal
    for row in rows:
        row.trim_tail_to(target)
