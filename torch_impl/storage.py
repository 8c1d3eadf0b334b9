"""What is stored for each row of a batch: a ring of payloads, columns of blocks, and two counts.

Two time bases need opposite anchors. comp is start-anchored: column j is absolute block j for every row,
and what lies beyond a row's live columns is stale and unreachable. The tail is end-anchored at its
interface: `tail()` puts every row's run at the end of the window. It is stored as a ring per row, slot =
absolute token mod slots, so that a step writes only its new tokens and a rollback only lowers a count.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_impl.geometry import Geometry, Integers, runs
from torch_impl.refusals import InvariantBroken

Retain = Literal["hidden", "projected"]


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

    def pool(self, windows: Tensor, block: Tensor) -> Tensor:
        """May overwrite the windows."""
        ...

    def describe(self) -> Mapping[str, str]: ...


class RowStorage:
    """The stored state of B rows.

    tokens : how many tokens each row has consumed, base: the earliest token it promises to resume from
    _ring  : [B, slots, F], row i's token a in slot a mod slots, of payloads ("hidden": inputs [H], "projected":
             kv and z [span * series_width])
    _comp  : [B, capacity, d], row i's block j in column j
    """

    def __init__(
        self,
        compressor: BlockPooler,
        geometry: Geometry,
        rows: int,
        retain: Retain,
        hidden_dtype: torch.dtype | None,
        device: torch.device | str,
    ) -> None:
        self.compressor = compressor
        self.geometry = geometry
        self.retain: Retain = retain
        self.device = torch.device(device)
        self.hidden_dtype = hidden_dtype or compressor.block_dtype
        self.tokens = [0] * rows
        self.base = [0] * rows
        self._ring = self._new_ring(rows, geometry.ring_slots(0))
        self._comp = self._new_comp(rows, 0)

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

    def columns(self) -> Tensor:
        """comp of all rows side by side, [B, most live blocks, d]. A view, and stale beyond a row's own blocks."""
        return self._comp[:, : max(map(self.live_blocks, range(self.rows)))]

    def read_blocks(self, block: Tensor) -> Tensor:
        """Row i's blocks block[i], int64 [B, N], as [B, N, d]; zeros where block is -1. A copy."""
        rows, capacity, width = self._comp.shape
        first = torch.arange(rows, device=self.device)[:, None] * capacity
        flat = (first + block.clamp(min=0)).flatten()
        # Not a product with a mask: what nobody promises may be anything, and 0 * nan is nan.
        read = self._comp.view(-1, width).index_select(0, flat).view(rows, -1, width)
        return read.masked_fill_((block < 0)[..., None], 0)

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
        counts, ratio = np.array(self.tokens), self.geometry.ratio
        need, live = self.geometry.need(counts).tolist(), self.geometry.blocks(counts).tolist()
        for row, (t, b, first, blocks) in enumerate(zip(self.tokens, self.base, need, live, strict=True)):
            if not 0 <= b <= t:
                raise InvariantBroken(f"base {b} should lie in 0..tokens={t}", row)
            if b + slots < t:
                raise InvariantBroken(
                    f"promises tokens {b}..{t - 1}, but the ring has {slots} slots",
                    row,
                )
            if first < b:
                raise InvariantBroken(f"base {b} lies above {first}, the first token of the next block", row)
            if b % ratio:
                raise InvariantBroken(f"base {b} should be a multiple of {ratio}", row)
            if blocks > capacity:
                raise InvariantBroken(f"{blocks} blocks in {capacity} comp columns", row)

    def _read_tail(self, rows: Sequence[int], width: int) -> Tensor:
        """The last `width` tokens of each of `rows` [n, width, F], zeros where a row promises none."""
        tokens = np.array([self.tokens[row] for row in rows])[:, None] + np.arange(-width, 0)
        promised = tokens >= np.array([self.base[row] for row in rows])[:, None]
        tail = self._ring[self._index(rows)[:, None], self._to(tokens % self._ring.shape[1])]
        return tail.masked_fill_(self._to(~promised)[..., None], 0)

    def _adopt(self, comp: Tensor, tail: Tensor, tokens: list[int], base: list[int]) -> Self:
        """A cache of this one's kind with copies of the given blocks and runs."""
        other = copy.copy(self)
        other._install(comp, tail, tokens, base)
        return other

    def _install(self, comp: Tensor, tail: Tensor, tokens: list[int], base: list[int]) -> None:
        """Replace everything at once: comp [B, live, d], tail [B, W, F] with every run at its end."""
        comp, tail = comp.detach(), tail.detach()
        rows, width = tail.shape[:2]
        ring = self._new_ring(rows, self.geometry.ring_slots(width))
        start, end = np.array(base), np.array(tokens)
        row, token = runs(start, end - start)
        column = token - end[row] + width
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

    def _slots(self, tokens: range) -> Tensor:
        """The ring slots of absolute tokens."""
        slots = self._ring.shape[1]
        return self._index([token % slots for token in tokens])

    def _index(self, values: Sequence[int]) -> Tensor:
        return self._to(np.array(values, dtype=np.int64))

    def _to(self, index: Integers | NDArray[np.bool_]) -> Tensor:
        """What was worked out on the host, where the payloads are."""
        return torch.from_numpy(index).to(self.device, non_blocking=True)
