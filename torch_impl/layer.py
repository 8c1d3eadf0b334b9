"""One attention layer of a batch: what is kept of each row, what each query sees of it, and which blocks it picks.

The arithmetic is a `LayerMath`, given from outside, as a state's compressor is. What is decided here is decided in
integers, so that a stand-in which carries token ids instead of numbers shows exactly what every query was given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from torch_impl import masks
from torch_impl.geometry import Geometry, Integers
from torch_impl.indexer import UNREACHED, pick
from torch_impl.kv_ring import KVRing
from torch_impl.masks import Positions
from torch_impl.refusals import AdvanceRefused
from torch_impl.schedule import SlotKind
from torch_impl.storage import BlockPooler
from torch_impl.xs_rolling import XsRolling

Slot = KVRing | XsRolling

_GATHERED_MAX = 16
"""Queries of a row up to which picked blocks are gathered: more than any verify has."""


class Branch(NamedTuple):
    """What one branch of the attention offers: keys [B, N, d], and keep, bool [B, T, N], which of them a query sees.

    Columns that are nobody's are zero: padding, dead columns before a run, blocks that no query sees.
    """

    keys: Tensor
    keep: Tensor


class IndexerMath(Protocol):
    """What the choice of blocks asks of an indexer; `torch_impl.indexer.Indexer` is the real one."""

    @property
    def compressor(self) -> BlockPooler: ...

    @property
    def topk(self) -> int: ...

    def scores(self, hidden: Tensor, residual: Tensor, position: Tensor, keys: Tensor) -> Tensor:
        """hidden [B, T, H], residual [B, T, q_lora], position [B, T], keys [B, N, index_d] to float [B, T, N].

        keys hold stale blocks beyond a row's own; their scores are not looked at.
        """
        ...


class LayerMath(Protocol):
    """What a layer computes; `torch_impl.attention.Attention` is the real one. A key is its own value."""

    @property
    def key_width(self) -> int: ...

    @property
    def key_dtype(self) -> torch.dtype: ...

    @property
    def compressor(self) -> BlockPooler | None: ...

    @property
    def indexer(self) -> IndexerMath | None: ...

    def queries(self, hidden: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """hidden [B, T, H] to queries [B, T, ...] at position [B, T], and the residual [B, T, ...] for the indexer."""
        ...

    def keys(self, hidden: Tensor, position: Tensor) -> Tensor:
        """hidden [B, T, H] to raw keys [B, T, key_width]."""
        ...

    def attend(self, queries: Tensor, raw: Branch, blocks: Branch | None) -> Tensor:
        """One softmax over both branches: what each query reads, [B, T, ...]. A query that sees nothing reads 0."""
        ...

    def output(self, read: Tensor, position: Tensor) -> Tensor:
        """What the queries read to the layer's output [B, T, H]."""
        ...


@dataclass
class LayerSlots:
    """One layer's part of the cache: keys always, a compressor in CSA and HCA layers, an indexer in CSA layers."""

    kv: KVRing
    compressor: XsRolling | None = None
    indexer: XsRolling | None = None

    @staticmethod
    def open(math: LayerMath, rows: int, window: int, margin: int, per_row_state: bool = True) -> LayerSlots:
        """Empty slots of `rows` rows, all with one margin: a rollback that one slot takes, all take."""

        def state(compressor: BlockPooler) -> XsRolling:
            geometry = Geometry(compressor.ratio, compressor.span, margin)
            return XsRolling(compressor, geometry, rows, per_row_state=per_row_state)

        kv = KVRing(window, margin, rows, math.key_width, dtype=math.key_dtype, per_row_state=per_row_state)
        return LayerSlots(
            kv,
            state(math.compressor) if math.compressor else None,
            state(math.indexer.compressor) if math.indexer else None,
        )

    def advance(self, keys: Tensor, hidden: Tensor, n_new: Sequence[int]) -> None:
        """Append a step to every slot: keys [B, T, d], hidden [B, T, H]. Raises AdvanceRefused."""
        self.kv.advance(keys, n_new)
        for state in (self.compressor, self.indexer):
            if state:
                state.advance(hidden, n_new)

    def named(self) -> Iterator[tuple[SlotKind, Slot]]:
        """The slots that this layer has."""
        yield "kv", self.kv
        if self.compressor:
            yield "compressor", self.compressor
        if self.indexer:
            yield "indexer", self.indexer


def step(
    math: LayerMath,
    slots: LayerSlots,
    hidden: Tensor,
    n_new: Sequence[int] | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """One step of one layer: hidden [B, T, H] to [B, T, H]; row i takes the first n_new[i] columns (all, if None).

    mask: a caller's keep-mask over the raw columns, or over raw columns and blocks (`masks.compose_branches`).
    Raises AdvanceRefused and MaskRefused before a slot is touched.
    """
    if hidden.dim() != 3 or hidden.shape[0] != slots.kv.rows:
        raise AdvanceRefused(
            f"hidden is {list(hidden.shape)}; it should be [{slots.kv.rows}, T, H]: one right-padded block of new "
            "tokens per row; pad to the longest",
            "advance-shape",
        )
    positions = Positions.of(slots.kv.tokens, n_new, hidden.shape[1])
    history, lead = slots.kv.history()  # [B, W, d], [B]
    raw_keep, block_keep = _visible(
        slots, positions, lead, history.shape[1], mask
    )  # [B, T, W + T], [B, T, N]
    position = torch.from_numpy(positions.tokens()).to(hidden.device)  # [B, T]
    keys = math.keys(hidden, position)  # [B, T, d]
    queries, residual = math.queries(hidden, position)  # [B, T, heads, d], [B, T, q_lora]

    slots.advance(keys, hidden, positions.n_new.tolist())
    padding = torch.from_numpy(~positions.real()).to(hidden.device)[..., None]  # [B, T, 1]
    raw = Branch(torch.cat([history, keys.masked_fill(padding, 0)], dim=1), raw_keep.to(hidden.device))
    blocks = None
    if slots.compressor:
        seen = block_keep.to(hidden.device)
        picks = _picks(math, slots, hidden, residual, position, seen)  # [B, T, topk]
        blocks = _offered(slots.compressor, seen, picks)
    read = math.attend(queries, raw, blocks)  # [B, T, heads, d]
    return math.output(read, position)


def _visible(
    slots: LayerSlots, positions: Positions, lead: Integers, history: int, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Which raw columns and which blocks each query may see, the blocks that this step completes included."""
    raw = masks.raw(positions, lead, history, slots.kv.window)
    if slots.compressor:
        geometry = slots.compressor.geometry
        count = int(geometry.blocks(positions.start + positions.n_new).max())
        blocks = masks.compressed(positions, count, geometry.ratio)
    else:
        blocks = raw[..., :0]
    return (raw, blocks) if mask is None else masks.compose_branches(raw, blocks, mask)


def _picks(
    math: LayerMath, slots: LayerSlots, hidden: Tensor, residual: Tensor, position: Tensor, seen: Tensor
) -> Tensor | None:
    """The blocks that the indexer picks for each query, [B, T, topk]; None if all visible ones are attended to."""
    if not math.indexer or not slots.indexer or seen.shape[2] <= math.indexer.topk:
        return None
    scores = math.indexer.scores(hidden, residual, position, slots.indexer.columns())
    return pick(scores, seen, math.indexer.topk)


def _offered(state: XsRolling, seen: Tensor, picks: Tensor | None) -> Branch:
    """The blocks that are attended to: all that are seen, or each query's picks of them."""
    if picks is None:
        return _all(state, seen)
    # A decoding step reads a few blocks of many. A prompt's queries together read most of them, and side by side
    # their picks would be T * k columns for each of T queries.
    return _picked(state, picks) if picks.shape[1] <= _GATHERED_MAX else _all(state, _marked(seen, picks))


def _marked(seen: Tensor, picks: Tensor) -> Tensor:
    """Which columns are picked, bool [B, T, N]: picks [B, T, k] as a mask."""
    marked = seen.new_zeros(*seen.shape[:2], seen.shape[2] + 1)  # the last column takes what is unreached
    return marked.scatter_(2, picks.remainder(seen.shape[2] + 1), True)[..., :-1]


def _all(state: XsRolling, seen: Tensor) -> Branch:
    """All columns, each query with what it sees of them."""
    column = torch.arange(seen.shape[2], device=seen.device)
    block = column.where(seen.any(dim=1), UNREACHED)  # [B, N]
    return Branch(state.read_blocks(block), seen)


def _picked(state: XsRolling, picks: Tensor) -> Branch:
    """Each query's own picks [B, T, k], gathered side by side: T * k columns, of which a query sees its k, oldest first."""
    picks = picks.sort(dim=2).values  # the order in which blocks stand where all are offered
    columns = picks.shape[1]
    own = torch.eye(columns, dtype=torch.bool, device=picks.device)[:, :, None]  # [T, T, 1]
    keep = own & (picks != UNREACHED)[:, None]  # [B, T, T, k]
    return Branch(state.read_blocks(picks.flatten(1)), keep.flatten(2))
