"""Per-row compressed state of a batch: completed blocks, the raw tail, and how far each row may go back.

Words (the same everywhere): row = one sequence of the batch; run = its retained tokens base..tokens-1;
block = one completed compressed entry; comp = the completed blocks; tail = the retained raw window.

Two time bases need opposite anchors. comp is start-anchored: column j is absolute block j for every row,
and what lies beyond a row's live columns is stale and unreachable. The tail is end-anchored at its
interface: `tail()` puts every row's run at the end of the window. It is stored as a ring per row, slot =
absolute token mod slots, so that a step writes only its new tokens and a rollback only lowers a count.

Invariants, checked after every operation: 0 <= base <= tokens; base + slots >= tokens (the run is stored);
need(tokens) >= base (the next block can be built); base is a multiple of ratio.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from torch_impl import geometry as geo
from torch_impl.geometry import Geometry
from torch_impl.refusals import (
    AdvanceRefused,
    AssembleRefused,
    InvariantBroken,
    ReshapeRefused,
    RestoreRefused,
    RollbackRefused,
    SelectRefused,
    TrimRefused,
)

Retain = Literal["hidden", "projected"]
Plan = Literal["grouped", "gathered"]


class BlockPooler(Protocol):
    """What the state asks of a compressor; `torch_impl.compressor.Compressor` is the real one."""

    ratio: int
    span: int
    hidden_width: int
    series_width: int
    block_width: int
    payload_dtype: torch.dtype
    block_dtype: torch.dtype

    def project(self, hidden: Tensor, series: int | None = None) -> Tensor: ...

    def pool(self, windows: Tensor, block: Tensor) -> Tensor: ...

    def describe(self) -> Mapping[str, str]: ...


class XsRolling:
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
        self.compressor = compressor
        self.geometry = geometry
        self.retain: Retain = retain
        self.plan: Plan = plan
        self.per_row_state = per_row_state
        self.always_ragged = always_ragged
        self.device = torch.device(device)
        self.hidden_dtype = hidden_dtype or compressor.block_dtype
        self.tokens = [0] * rows
        self.base = [0] * rows
        self._ring = self._new_ring(rows, geometry.ring_slots(0))  # [B, slots, F]
        self._comp = self._new_comp(rows, 0)  # [B, capacity, d]

    # -- what a row holds ---------------------------------------------------------------------------------

    @property
    def rows(self) -> int:
        return len(self.tokens)

    @property
    def width(self) -> int:
        """Columns of `tail()`: the longest run of the batch. Derived, never stored."""
        return max(t - b for t, b in zip(self.tokens, self.base, strict=True))

    def live_blocks(self, row: int) -> int:
        return self.geometry.blocks(self.tokens[row])

    def comp(self, row: int) -> Tensor:
        """The row's completed blocks [live, d]; column j is absolute block j. A view: do not write."""
        return self._comp[row, : self.live_blocks(row)]

    def tail(self, rows: Sequence[int] | None = None) -> Tensor:
        """The retained payloads [B, W, F] of the batch (or of `rows` alone, in the batch's window).

        Row i's run fills the last tokens[i] - base[i] columns; there are zeros before it.
        """
        return self._read_tail(range(self.rows) if rows is None else rows, self.width)

    def storage(self) -> dict[str, Tensor]:
        """The tensors that hold the state, dead memory included: for byte comparison and aliasing checks."""
        return {"ring": self._ring, "comp": self._comp}

    def fill_dead(self, value: float) -> None:
        """Overwrite all memory that no row promises: ring slots outside the runs, stale comp columns."""
        slots = self._ring.shape[1]
        for row, (t, b) in enumerate(zip(self.tokens, self.base, strict=True)):
            live = torch.zeros(slots, dtype=torch.bool)
            live[torch.arange(b, t) % slots] = True
            self._ring[row, ~live.to(self.device)] = value
            self._comp[row, self.geometry.blocks(t) :] = value

    def check_invariants(self) -> None:
        """Raise InvariantBroken if the counts contradict each other or the storage."""
        slots, capacity = self._ring.shape[1], self._comp.shape[1]
        if not len(self.tokens) == len(self.base) == self._ring.shape[0] == self._comp.shape[0]:
            raise InvariantBroken(
                f"tokens has {len(self.tokens)} rows, base {len(self.base)}, the ring {self._ring.shape[0]}, "
                f"comp {self._comp.shape[0]}; all should be equal"
            )
        for row, (t, b) in enumerate(zip(self.tokens, self.base, strict=True)):
            if not 0 <= b <= t:
                raise InvariantBroken(f"base {b} should lie in 0..tokens={t}", row)
            if b + slots < t:
                raise InvariantBroken(
                    f"promises tokens {b}..{t - 1}, but the ring has {slots} slots",
                    row,
                )
            if self.geometry.need(t) < b:
                raise InvariantBroken(
                    f"base {b} lies above {self.geometry.need(t)}, the first token of the next block",
                    row,
                )
            if b % self.geometry.ratio:
                raise InvariantBroken(f"base {b} should be a multiple of {self.geometry.ratio}", row)
            if self.geometry.blocks(t) > capacity:
                raise InvariantBroken(
                    f"{self.geometry.blocks(t)} blocks in {capacity} comp columns",
                    row,
                )

    # -- advance ------------------------------------------------------------------------------------------

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
        if len(counts) != self.rows or not all(0 <= n <= xs.shape[1] for n in counts):
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
        return all(len(set(values)) == 1 for values in (self.tokens, self.base, counts))

    def _advance_uniform(self, xs: Tensor, n: int) -> None:
        """The scalar path: every row has the same window, slots and columns. xs [B, n, H]."""
        t, g0, g1 = self.tokens[0], self.live_blocks(0), self.geometry.blocks(self.tokens[0] + n)
        fresh = self._payload(xs.reshape(-1, xs.shape[2])).unflatten(0, (self.rows, n))  # [B, n, F]
        if g1 > g0:
            first = self.geometry.need(t)
            stored = self._ring[:, self._slots(range(first, t))]
            run = torch.cat([stored, fresh[:, : g1 * self.geometry.ratio - t]], dim=1)
            blocks = torch.arange(g0, g1).expand(self.rows, -1)
            pooled = self._pool_run(run, blocks, opens=self.geometry.span == 2 and g0 == 0)
            self._reserve(g1)
            self._comp[:, g0:g1] = pooled
        base = self.geometry.base_after(t + n, self.base[0])
        kept = range(max(t, base), t + n)
        self._ring[:, self._slots(kept)] = fresh[:, kept.start - t :]
        self.tokens = [t + n] * self.rows
        self.base = [base] * self.rows

    def _advance_ragged(self, xs: Tensor, counts: Sequence[int]) -> None:
        """Every row has its own window, slots and columns. xs [B, T, H], right-padded."""
        step = self._pack(xs, counts)
        pool = self._pool_gathered if self.plan == "gathered" else self._pool_grouped
        rows, blocks, pooled = pool(step)
        if len(rows):
            self._reserve(1 + int(blocks.max()))
            self._scatter(rows, blocks, pooled)
        self._retain(step)

    def _pack(self, xs: Tensor, counts: Sequence[int]) -> _Step:
        """The plan of one step, and the payloads of its new tokens without the padding, in one projection."""
        tokens, n_new = torch.tensor([self.tokens, counts])
        width = xs.shape[1]
        flat = xs.reshape(-1, xs.shape[2])
        if any(n != width for n in counts):
            _, taken = geo.runs(torch.arange(self.rows) * width, n_new)
            flat = flat[self._to(taken)]
        return _Step(tokens, n_new, self._payload(flat), n_new.cumsum(0) - n_new - tokens)

    def _pool_gathered(self, step: _Step) -> tuple[Tensor, Tensor, Tensor]:
        """Every completed (row, block) is one window, gathered by absolute token; one pool call."""
        g0, g1 = self.geometry.blocks(step.tokens), self.geometry.blocks(step.tokens + step.n_new)
        rows, blocks = geo.runs(g0, g1 - g0)  # [N]
        if not len(rows):
            return rows, blocks, self._comp[:0, 0]
        windows = self._gather(step, rows, blocks)
        if self.retain == "hidden":
            series = [self.compressor.project(w.flatten(0, 1), k) for k, w in enumerate(windows.unbind(1))]
            windows = torch.stack([part.unflatten(0, (len(rows), -1)) for part in series], dim=1)
        return rows, blocks, self.compressor.pool(windows, blocks)

    def _gather(self, step: _Step, rows: Tensor, blocks: Tensor) -> Tensor:
        """What the windows of blocks[n] of rows[n] hold: [N, span, ratio, F or series_width].

        Of a projected token only the series that its group serves is read. Block 0 has no predecessor:
        zeros stand there.
        """
        span, ratio, slots = self.geometry.span, self.geometry.ratio, self._ring.shape[1]
        group = blocks[:, None] + torch.arange(1 - span, 1)  # [N, span]
        token = (group[..., None] * ratio + torch.arange(ratio)).flatten()
        row = rows.repeat_interleave(span * ratio)
        # A projected token is `span` rows of its storage, one per series.
        parts = span if self.retain == "projected" else 1
        part = torch.arange(parts).repeat_interleave(ratio).repeat(len(rows)) if parts > 1 else 0
        width = self._ring.shape[2] // parts
        arrived = token >= step.tokens[row]
        stored = (token >= 0) & ~arrived
        # One gather for everything; what is not stored gets some row, and is overwritten below.
        index = torch.where(stored, (row * slots + token % slots) * parts + part, 0)
        windows = self._ring.view(-1, width).index_select(0, self._to(index))
        new = arrived.nonzero().squeeze(1)
        if len(new):
            index = ((step.offset[row] + token) * parts + part)[new]
            taken = step.payload.view(-1, width).index_select(0, self._to(index))
            windows.index_copy_(0, self._to(new), taken)
        if span == 2 and bool((blocks == 0).any()):
            windows[self._to(token < 0)] = 0
        return windows.unflatten(0, (len(rows), span, ratio))

    def _pool_grouped(self, step: _Step) -> tuple[Tensor, Tensor, Tensor]:
        """Rows with equal windows share one pool call over their contiguous runs."""
        pooled, rows, blocks = [], [], []
        for group in geo.groups(self.geometry, step.tokens.tolist(), step.n_new.tolist()):
            row = torch.tensor(group.rows)
            start, g0 = step.tokens[row], self.geometry.blocks(step.tokens[row])
            end = (g0[:1] + group.take) * self.geometry.ratio - start[:1]
            before = start[:, None] + torch.arange(-group.behind, 0)
            after = start[:, None] + torch.arange(int(end))
            stored = self._ring[self._to(row[:, None]), self._to(before % self._ring.shape[1])]
            taken = step.payload[self._to(step.offset[row, None] + after)]
            block = g0[:, None] + torch.arange(group.take)  # [n, take]
            pooled.append(self._pool_run(torch.cat([stored, taken], dim=1), block, group.opens).flatten(0, 1))
            rows.append(row[:, None].expand_as(block).flatten())
            blocks.append(block.flatten())
        if not rows:
            none = torch.empty(0, dtype=torch.int64)
            return none, none, self._comp[:0, 0]
        return torch.cat(rows), torch.cat(blocks), torch.cat(pooled)

    def _pool_run(self, run: Tensor, blocks: Tensor, opens: bool) -> Tensor:
        """Pool the contiguous payloads run [n, G * ratio, F] to blocks [n, take, d] with indices [n, take].

        With span 2 the first group only serves as predecessor, unless the run opens the sequence.
        """
        n, length, width = run.shape
        if self.retain == "hidden":
            parts = self.compressor.project(run.reshape(-1, width)).unflatten(0, (n, length))
        else:
            parts = run.unflatten(2, (self.geometry.span, -1))
        parts = parts.unflatten(1, (-1, self.geometry.ratio))  # [n, G, ratio, span, series_width]
        own = parts[..., -1, :]
        if self.geometry.span == 1:
            windows = own[:, :, None]
        else:
            before = parts[..., 0, :][:, :-1]
            if opens:
                before = torch.cat([torch.zeros_like(own[:, :1]), before], dim=1)
            else:
                own = own[:, 1:]
            windows = torch.stack([before, own], dim=2)  # [n, take, span, ratio, series_width]
        pooled = self.compressor.pool(windows.flatten(0, 1), blocks.flatten())
        return pooled.unflatten(0, (n, -1))

    def _scatter(self, rows: Tensor, blocks: Tensor, pooled: Tensor) -> None:
        """pooled [N, d] to comp, each to its own row and its own column."""
        self._comp[self._to(rows), self._to(blocks)] = pooled

    def _retain(self, step: _Step) -> None:
        """Write each row's new tokens that it promises to keep, then count them. Idle rows keep everything."""
        after, base = step.tokens + step.n_new, torch.tensor(self.base)
        base = torch.where(step.n_new > 0, self.geometry.base_after(after, base), base)
        first = torch.maximum(step.tokens, base)
        row, token = geo.runs(first, after - first)
        source = step.payload
        if len(row) < len(source):  # else every new token is kept, in this order
            source = source[self._to(step.offset[row] + token)]
        self._ring[self._to(row), self._to(token % self._ring.shape[1])] = source
        self.tokens, self.base = after.tolist(), base.tolist()

    # -- rollback -----------------------------------------------------------------------------------------

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

    def rollback_rows(self, counts: Sequence[int]) -> None:
        """Drop the last counts[i] tokens of row i: all rows, or none and RollbackRefused."""
        if len(counts) != self.rows:
            raise RollbackRefused(
                f"counts has {len(counts)} entries; it should have one per row, {self.rows}; use 0 for a row that stays",
                "rollback-counts",
            )
        for row, n in enumerate(counts):
            refusal = self.rollback_refusal(row, n)
            if refusal and not (refusal.kind == "rollback-ragged" and len(set(counts)) == 1):
                raise refusal
        self.tokens = [t - n for t, n in zip(self.tokens, counts, strict=True)]
        self.check_invariants()

    # -- rows in and out ----------------------------------------------------------------------------------

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

    # -- trimming and reconciling -------------------------------------------------------------------------

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

    # -- snapshots ----------------------------------------------------------------------------------------

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

    # -- storage ------------------------------------------------------------------------------------------

    def _read_tail(self, rows: Sequence[int], width: int) -> Tensor:
        """The last `width` tokens of each of `rows` [n, width, F], zeros where a row promises none."""
        tokens = torch.tensor([self.tokens[row] for row in rows])[:, None] + torch.arange(-width, 0)
        promised = tokens >= torch.tensor([self.base[row] for row in rows])[:, None]
        tail = self._ring[self._index(rows)[:, None], self._to(tokens % self._ring.shape[1])]
        return tail.masked_fill_(self._to(~promised)[..., None], 0)

    def _adopt(self, comp: Tensor, tail: Tensor, tokens: list[int], base: list[int]) -> XsRolling:
        """A cache of this one's kind with copies of the given blocks and runs."""
        other = copy.copy(self)
        other._install(comp, tail, tokens, base)
        return other

    def _install(self, comp: Tensor, tail: Tensor, tokens: list[int], base: list[int]) -> None:
        """Replace everything at once: comp [B, live, d], tail [B, W, F] with every run at its end."""
        comp, tail = comp.detach(), tail.detach()
        rows, width = tail.shape[:2]
        ring = self._new_ring(rows, self.geometry.ring_slots(width))
        index = [(row, t) for row in range(rows) for t in range(base[row], tokens[row])]
        if index:
            row, token = torch.tensor(index).unbind(1)
            column = token - torch.tensor(tokens)[row] + width
            ring[self._to(row), self._to(token % ring.shape[1])] = tail[self._to(row), self._to(column)]
        stored = self._new_comp(rows, comp.shape[1])
        stored[:, : comp.shape[1]] = comp
        self._ring, self._comp, self.tokens, self.base = ring, stored, tokens, base
        self.check_invariants()

    def _new_ring(self, rows: int, slots: int) -> Tensor:
        hidden = self.retain == "hidden"
        width = self.compressor.hidden_width if hidden else self.geometry.span * self.compressor.series_width
        dtype = self.hidden_dtype if hidden else self.compressor.payload_dtype
        return torch.zeros(rows, slots, width, dtype=dtype, device=self.device)

    def _new_comp(self, rows: int, live: int) -> Tensor:
        """Zeroed columns for `live` blocks and half as many again, at least 16."""
        shape = (rows, live + max(live // 2, 16), self.compressor.block_width)
        return torch.zeros(shape, dtype=self.compressor.block_dtype, device=self.device)

    def _reserve(self, live: int) -> None:
        """Grow comp, geometrically, so that `live` columns fit."""
        if live > self._comp.shape[1]:
            grown = self._new_comp(self.rows, live)
            grown[:, : self._comp.shape[1]] = self._comp
            self._comp = grown

    def _payload(self, hidden: Tensor) -> Tensor:
        """hidden [N, H] to what the tail keeps [N, F]."""
        return hidden if self.retain == "hidden" else self.compressor.project(hidden).flatten(1)

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

    def _slots(self, tokens: range) -> Tensor:
        """The ring slots of absolute tokens."""
        slots = self._ring.shape[1]
        return self._index([token % slots for token in tokens])

    def _index(self, values: Sequence[int]) -> Tensor:
        return self._to(torch.tensor(values, dtype=torch.int64))

    def _to(self, index: Tensor) -> Tensor:
        return index.to(self.device, non_blocking=True)


class _Step(NamedTuple):
    """One ragged step. Counts are on the CPU; row i's new token a (absolute) is payload[offset[i] + a]."""

    tokens: Tensor  # [B] int64, before the step
    n_new: Tensor  # [B] int64
    payload: Tensor  # [sum of n_new, F]
    offset: Tensor  # [B] int64


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
