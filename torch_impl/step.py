"""One step of a batch: which blocks complete, what they pool, where they go, and which new tokens are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_impl import geometry as geo
from torch_impl.geometry import Integers
from torch_impl.storage import RowStorage

Plan = Literal["grouped", "gathered"]


class _Step(NamedTuple):
    """One ragged step. Row i's new token a (absolute) is payload[offset[i] + a]."""

    tokens: Integers  # [B], before the step
    n_new: Integers  # [B]
    payload: Tensor  # [sum of n_new, F]
    offset: Integers  # [B]


class RowSteps(RowStorage):
    """Storage that can take new tokens, on the uniform path or on the ragged one.

    plan: how completing blocks are pooled on the ragged path. "gathered": one call per step, every window
    gathered by absolute token. "grouped": one call per set of rows with equal windows.
    """

    plan: Plan = "gathered"

    def _advance_uniform(self, xs: Tensor, n: int) -> None:
        """The scalar path: every row has the same window, slots and columns. xs [B, n, H]."""
        t, g0, g1 = self.tokens[0], self.live_blocks(0), self.geometry.blocks(self.tokens[0] + n)
        fresh = self._payload(xs.reshape(-1, xs.shape[2])).unflatten(0, (self.rows, n))  # [B, n, F]
        if g1 > g0:
            first = self.geometry.need(t)
            stored = self._ring[:, self._slots(range(first, t))]
            run = torch.cat([stored, fresh[:, : g1 * self.geometry.ratio - t]], dim=1)
            blocks = np.arange(g0, g1)[None].repeat(self.rows, axis=0)
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
        tokens, n_new = np.array(self.tokens), np.array(counts)
        width = xs.shape[1]
        flat = xs.reshape(-1, xs.shape[2])
        if any(n != width for n in counts):
            _, taken = geo.runs(np.arange(self.rows) * width, n_new)
            flat = flat[self._to(taken)]
        return _Step(tokens, n_new, self._payload(flat), n_new.cumsum() - n_new - tokens)

    def _pool_gathered(self, step: _Step) -> tuple[Integers, Integers, Tensor]:
        """Every completed (row, block) is one window, gathered by absolute token; one pool call."""
        g0, g1 = self.geometry.blocks(step.tokens), self.geometry.blocks(step.tokens + step.n_new)
        rows, blocks = geo.runs(g0, g1 - g0)  # [N]
        if not len(rows):
            return rows, blocks, self._comp[:0, 0]
        windows = self._gather(step, rows, blocks)
        if self.retain == "hidden":
            series = [self.compressor.project(w.flatten(0, 1), k) for k, w in enumerate(windows.unbind(1))]
            windows = torch.stack([part.unflatten(0, (len(rows), -1)) for part in series], dim=1)
        return rows, blocks, self.compressor.pool(windows, torch.from_numpy(blocks))

    def _gather(self, step: _Step, rows: Integers, blocks: Integers) -> Tensor:
        """What the windows of blocks[n] of rows[n] hold: [N, span, ratio, F or series_width].

        Of a projected token only the series that its group serves is read. Block 0 has no predecessor:
        zeros stand there.
        """
        span, ratio, slots = self.geometry.span, self.geometry.ratio, self._ring.shape[1]
        row = rows[:, None]
        token = blocks[:, None] * ratio + np.arange((1 - span) * ratio, ratio)  # [N, span * ratio]
        # A projected token is `span` rows of its storage, one per series.
        parts = span if self.retain == "projected" else 1
        part = np.arange(parts).repeat(ratio) if parts > 1 else 0
        width = self._ring.shape[2] // parts
        arrived = token >= step.tokens[row]
        stored = (token >= 0) & ~arrived
        # One gather for everything; what is not stored gets some row, and is overwritten below.
        index = np.where(stored, (row * slots + token % slots) * parts + part, 0).flatten()
        windows = self._ring.view(-1, width).index_select(0, self._to(index))
        new = arrived.flatten().nonzero()[0]
        if len(new):
            index = ((step.offset[row] + token) * parts + part).flatten()[new]
            taken = step.payload.view(-1, width).index_select(0, self._to(index))
            windows.index_copy_(0, self._to(new), taken)
        if span == 2 and not blocks.all():
            windows[self._to(token.flatten() < 0)] = 0
        return windows.view(len(rows), span, ratio, width)

    def _pool_grouped(self, step: _Step) -> tuple[Integers, Integers, Tensor]:
        """Rows with equal windows share one pool call over their contiguous runs."""
        pooled, rows, blocks = [], [], []
        for group in geo.groups(self.geometry, step.tokens.tolist(), step.n_new.tolist()):
            row = np.array(group.rows)
            start, g0 = step.tokens[row], self.geometry.blocks(step.tokens[row])
            end = (g0[:1] + group.take) * self.geometry.ratio - start[:1]
            before = start[:, None] + np.arange(-group.behind, 0)
            after = start[:, None] + np.arange(int(end[0]))
            stored = self._ring[self._to(row[:, None]), self._to(before % self._ring.shape[1])]
            taken = step.payload[self._to(step.offset[row, None] + after)]
            block = g0[:, None] + np.arange(group.take)  # [n, take]
            pooled.append(self._pool_run(torch.cat([stored, taken], dim=1), block, group.opens).flatten(0, 1))
            rows.append(row.repeat(group.take))
            blocks.append(block.flatten())
        if not rows:
            none = np.empty(0, dtype=np.int64)
            return none, none, self._comp[:0, 0]
        return np.concatenate(rows), np.concatenate(blocks), torch.cat(pooled)

    def _pool_run(self, run: Tensor, blocks: Integers, opens: bool) -> Tensor:
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
        pooled = self.compressor.pool(windows.flatten(0, 1), torch.from_numpy(blocks.flatten()))
        return pooled.unflatten(0, (n, -1))

    def _scatter(self, rows: Integers, blocks: Integers, pooled: Tensor) -> None:
        """pooled [N, d] to comp, each to its own row and its own column."""
        self._comp[self._to(rows), self._to(blocks)] = pooled

    def _retain(self, step: _Step) -> None:
        """Write each row's new tokens that it promises to keep, then count them. Idle rows keep everything."""
        after, base = step.tokens + step.n_new, np.array(self.base)
        base = np.where(step.n_new > 0, self.geometry.base_after(after, base), base)
        first = np.maximum(step.tokens, base)
        row, token = geo.runs(first, after - first)
        source = step.payload
        if len(row) < len(source):  # else every new token is kept, in this order
            source = source[self._to(step.offset[row] + token)]
        self._ring[self._to(row), self._to(token % self._ring.shape[1])] = source
        self.tokens, self.base = after.tolist(), base.tolist()
