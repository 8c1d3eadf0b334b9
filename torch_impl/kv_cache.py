"""Windowed K/V slots of single sequences, and how slots of unequal length are brought side by side.

A slot keeps the last window - 1 + margin tokens, so that a rollback of up to `margin` tokens still leaves a
full window. Alignment moves a shorter run right until all runs end in one column; the columns before it are
dead. A zero key is not masked (it scores 0 and takes softmax mass), so every dead prefix is reported as a
`lead` that the mask must be given.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_impl.refusals import AdvanceRefused, AlignRefused, RollbackRefused
from torch_impl.xs_rolling import XsRolling


class KVSlot:
    """One layer's keys (which are also its values) of one sequence, in a sliding window.

    columns : [lead + live_len, D]; the first `lead` are dead, the run of the last tokens follows
    tokens  : how many tokens the sequence has consumed
    """

    def __init__(
        self, window: int, margin: int, width: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        if window < 1 or margin < 0:
            raise ValueError(
                f"window is {window}, margin {margin}; they should be at least 1 and 0; correct the layer's "
                "configuration"
            )
        self.window, self.margin = window, margin
        self.columns = torch.zeros(0, width, dtype=dtype, device=device)
        self.tokens = 0
        self.lead = 0

    @property
    def live_len(self) -> int:
        """Retained tokens; dead columns are not counted."""
        return len(self.columns) - self.lead

    def live(self) -> Tensor:
        """The retained run [live_len, D], oldest first. A view: do not write."""
        return self.columns[self.lead :]

    def append(self, kv: Tensor) -> None:
        """Append kv [T, D] and forget what lies more than window - 1 + margin tokens back."""
        if kv.dim() != 2 or kv.shape[1] != self.columns.shape[1]:
            raise AdvanceRefused(
                f"kv is {list(kv.shape)}; it should be [T, {self.columns.shape[1]}]; pass the new tokens of one sequence",
                "advance-shape",
            )
        if kv.dtype != self.columns.dtype or kv.device.type != self.columns.device.type:
            raise AdvanceRefused(
                f"kv is {kv.dtype} on {kv.device.type}; this slot holds {self.columns.dtype} on "
                f"{self.columns.device.type}, and both should be equal; convert the new tokens first",
                "advance-dtype",
            )
        keep = self.window - 1 + self.margin
        run = torch.cat([self.live(), kv.detach()])
        forgotten = max(len(run) - keep, 0)
        self.columns = torch.cat([self.columns[: self.lead], run[forgotten:]])
        self.tokens += len(kv)

    def rollback_refusal(self, n: int) -> RollbackRefused | None:
        """Why the last n tokens cannot be dropped, or None. Touches nothing."""
        if not 0 <= n <= self.tokens:
            return RollbackRefused(
                f"the slot holds {self.tokens} tokens and should drop {n}; drop 0..{self.tokens}",
                "rollback-below-zero",
            )
        left, wanted = self.live_len - n, min(self.tokens - n, self.window - 1)
        if left < wanted:
            return RollbackRefused(
                f"dropping {n} of {self.tokens} tokens would leave {left}; the next query sees {wanted}, so as many should "
                f"stay; drop {self.live_len - self.window + 1} at most, or prefill the row again",
                "rollback-below-window",
            )
        return None

    def rollback(self, n: int) -> None:
        """Drop the last n tokens. Raises RollbackRefused."""
        refusal = self.rollback_refusal(n)
        if refusal:
            raise refusal
        self.columns = self.columns[: len(self.columns) - n]
        self.tokens -= n


Slot = KVSlot | XsRolling


def front_pad_kv_cache(slot: KVSlot, target: int) -> int:
    """Move the slot's run right so that it ends in column `target`; return its lead = target - live_len.

    A prefix from an earlier alignment is replaced, never added to. Raises AlignRefused if the run is longer
    than `target`.
    """
    lead = target - slot.live_len
    if lead < 0:
        raise AlignRefused(
            f"the slot's run is {slot.live_len} long and should end in column {target}; align to the longest run",
            "align-too-short",
        )
    dead = slot.columns.new_zeros(lead, slot.columns.shape[1])
    slot.columns, slot.lead = torch.cat([dead, slot.live()]), lead
    return lead


def drop_dead_prefix(slot: KVSlot) -> None:
    """Forget the dead columns; without it a prefix would outlive the batch it was made for."""
    slot.columns, slot.lead = slot.live(), 0


def front_align_batch(sequences: Sequence[Sequence[Slot]]) -> list[int]:
    """Pad every K/V slot of every sequence to the longest run; return one lead per sequence, for the mask.

    Compressor slots carry their own per-row counts: they are exempt, take no part in the target and say
    nothing about the lead. They usually come last in a sequence's slot list. Raises AlignRefused, before any
    slot is moved, if one sequence's K/V slots have different lengths: it would need more than one lead.
    """
    runs = [[slot for slot in slots if isinstance(slot, KVSlot)] for slots in sequences]
    for k, slots in enumerate(runs):
        if len({slot.live_len for slot in slots}) != 1:
            raise AlignRefused(
                f"sequence {k}'s K/V slots are {[slot.live_len for slot in slots]} long; they should be equal, "
                "because the mask takes one lead per sequence; align slots of one window and one history",
                "align-uneven-layers",
            )
    target = max((slot.live_len for slots in runs for slot in slots), default=0)
    leads = []
    for slots in runs:
        for slot in slots:
            lead = front_pad_kv_cache(slot, target)
        leads.append(lead)
    return leads


def first_mismatched_cache_len(sequences: Sequence[Sequence[Slot]], per_row_state: bool) -> int | None:
    """The first slot whose length differs between the sequences, or None if a scalar batch can hold them.

    With per_row_state on, compressor slots may differ, because each row carries its own counts; nothing else
    may. A compressor slot's length is the width of its tail.
    """
    for index, slots in enumerate(zip(*sequences, strict=True)):
        if per_row_state and all(isinstance(slot, XsRolling) for slot in slots):
            continue
        lengths = {slot.live_len if isinstance(slot, KVSlot) else slot.width for slot in slots}
        if len(lengths) > 1:
            return index
    return None
