"""Which columns a query may see: keep-masks (bool, True = seen) of a batch whose rows stand at positions of their own.

A query's keys are two branches side by side. The raw branch is the row's history, all runs ending in one column, then
the new tokens of this step. The compressed branch is start-anchored: column b is block b for every row. A right-padded
query sees nothing in either branch, so what it reads is exactly zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torch_impl.geometry import Integers
from torch_impl.refusals import MaskRefused


@dataclass(frozen=True, eq=False)
class Positions:
    """Where the queries of one step stand: query k of row i at absolute token start[i] + k, for k < n_new[i].

    start, n_new : [B]
    columns      : T, the columns of the step; row i's are padding from n_new[i] on
    """

    start: Integers
    n_new: Integers
    columns: int

    @staticmethod
    def of(start: Sequence[int], n_new: Sequence[int] | None, columns: int) -> Positions:
        """From counts; every row fills all columns if n_new is None. Raises MaskRefused for counts that do not fit."""
        counts = [columns] * len(start) if n_new is None else list(n_new)
        if len(counts) != len(start) or min(start) < 0 or min(counts) < 0 or max(counts) > columns:
            raise MaskRefused(
                f"rows start at {list(start)} and take {counts} of {columns} columns; there should be one start of at "
                f"least 0 and one count in 0..{columns} per row; count each row's own tokens",
                "mask-positions",
            )
        return Positions(np.array(start, dtype=np.int64), np.array(counts, dtype=np.int64), columns)

    @property
    def rows(self) -> int:
        return len(self.start)

    def tokens(self) -> Integers:
        """The absolute token of every query [B, T]; padding counts on."""
        return self.start[:, None] + np.arange(self.columns)

    def real(self) -> NDArray[np.bool_]:
        """Which queries are no padding: bool [B, T]."""
        return np.arange(self.columns) < self.n_new[:, None]


def raw(positions: Positions, lead: Integers, history: int, window: int) -> Tensor:
    """The raw branch: keep [B, T, history + T], of `history` columns before the step and its T own.

    Causality and window, `t - window < j <= t`, are differences of columns: the run's end is one column for all
    rows, so they need no position. lead [B] does differ: row i's first lead[i] columns are dead.
    Raises MaskRefused for a lead that is not one of each row's in 0..history.
    """
    if lead.shape != (positions.rows,) or lead.min() < 0 or lead.max() > history:
        raise MaskRefused(
            f"lead is {lead.tolist()}; it should have {positions.rows} counts in 0..{history}, the dead columns before "
            "each row's run; take it from the K/V slots of this batch",
            "mask-lead",
        )
    column = np.arange(history + positions.columns)
    query = history + np.arange(positions.columns)[:, None]
    near = (query - window < column) & (column <= query)  # [T, N]
    live = column >= lead[:, None]  # [B, N]
    return torch.from_numpy(near & live[:, None] & positions.real()[:, :, None])


def compressed(positions: Positions, blocks: int, ratio: int) -> Tensor:
    """The compressed branch: keep [B, T, blocks]; block b is seen iff `b < floor((start_i + k + 1) / ratio)`.

    Each row's own position decides: one position for all would let short rows see blocks that they have not
    reached. The query that completes a block sees it.
    """
    reached = (positions.tokens() + 1) // ratio  # [B, T]
    visible = np.arange(blocks) < reached[:, :, None]
    return torch.from_numpy(visible & positions.real()[:, :, None])


def compose(keep: Tensor, mask: Tensor) -> Tensor:
    """keep [B, T, N] where the caller's mask allows it as well.

    The mask is a keep-mask too (bool, True = may be seen): [T, N] for all rows alike, [B, T, N], or [B, 1, T, N].
    Raises MaskRefused for one of another kind, batch, query count or width; nothing is broadcast that the rank
    does not say, because a mask made for one row is right for no other.
    """
    rows, columns, width = keep.shape
    if mask.dtype != torch.bool:
        raise MaskRefused(
            f"the mask is {mask.dtype}; it should be torch.bool, True where a query may see a column; turn an additive "
            "mask into one with `mask > -inf`",
            "mask-dtype",
        )
    if mask.dim() not in (2, 3, 4) or (mask.dim() == 4 and mask.shape[1] != 1):
        raise MaskRefused(
            f"the mask is {list(mask.shape)}; it should be [T, N], [B, T, N] or [B, 1, T, N], because all heads see "
            "the same; drop the other axes",
            "mask-rank",
        )
    if mask.dim() > 2 and mask.shape[0] != rows:
        raise MaskRefused(
            f"the mask is for {mask.shape[0]} rows; it should be for {rows}, the rows of this batch; make it again for "
            "the rows that are here now",
            "mask-batch",
        )
    if mask.shape[-2] != columns:
        raise MaskRefused(
            f"the mask is for {mask.shape[-2]} queries; it should be for {columns}, the columns of this step; make it "
            "for the padded step",
            "mask-queries",
        )
    if mask.shape[-1] != width:
        raise MaskRefused(
            f"the mask is {mask.shape[-1]} columns wide; it should be {width}, the dead columns of an alignment "
            "included; make it from the aligned batch",
            "mask-width",
        )
    mask = mask.squeeze(1) if mask.dim() == 4 else mask
    return keep & mask.to(keep.device)


def compose_branches(raw: Tensor, blocks: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Both branches [B, T, R] and [B, T, N] under one caller's mask.

    A mask R wide speaks of raw columns and leaves blocks as they are; one R + N wide speaks of both.
    """
    split = raw.shape[2]
    if mask.dim() and mask.shape[-1] == split:
        return compose(raw, mask), blocks
    both = compose(torch.cat([raw, blocks], dim=2), mask)
    return both[..., :split], both[..., split:]
