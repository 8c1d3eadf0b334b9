"""Every slot of every layer of a batch: rows join, leave, move and go back in all of them together, or in none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_impl.kv_ring import KVRing
from torch_impl.layer import LayerMath, LayerSlots, Slot
from torch_impl.refusals import (
    AdvanceRefused,
    AssembleRefused,
    InvariantBroken,
    RollbackRefused,
)
from torch_impl.xs_rolling import XsRolling


class Cache:
    """The slots of all layers. All rows stand at the same token in every slot."""

    def __init__(self, layers: Sequence[LayerSlots]) -> None:
        self.layers = list(layers)
        self.check_invariants()

    @staticmethod
    def open(
        layers: Sequence[LayerMath], rows: int, window: int, margin: int = 16, per_row_state: bool = True
    ) -> Cache:
        """An empty cache for `rows` rows of a model of these layers."""
        return Cache([LayerSlots.open(math, rows, window, margin, per_row_state) for math in layers])

    @property
    def rows(self) -> int:
        return self.layers[0].kv.rows

    @property
    def tokens(self) -> list[int]:
        """How many tokens each row has consumed."""
        return self.layers[0].kv.tokens

    @property
    def margin(self) -> int:
        """How deep a rollback is possible after any step that is at least as long."""
        return self.layers[0].kv.margin

    def slots(self) -> list[tuple[str, Slot]]:
        """All slots with their names: every layer's keys, then the compressors, then the indexers."""
        held = [(kind, i, slot) for i, layer in enumerate(self.layers) for kind, slot in layer.named()]
        order = ("kv", "compressor", "indexer")
        held.sort(key=lambda entry: (order.index(entry[0]), entry[1]))
        return [(f"layers.{i}.{kind}", slot) for kind, i, slot in held]

    def step_refusal(self, columns: int, n_new: Sequence[int] | None) -> AdvanceRefused | None:
        """Why the rows cannot take n_new of `columns` new tokens, or None. Touches nothing.

        Layers advance one after the other: what is not refused here must not be refused by the second.
        """
        counts = [columns] * self.rows if n_new is None else list(n_new)
        if len(counts) != self.rows or min(counts) < 0 or max(counts) > columns:
            return AdvanceRefused(
                f"n_new is {counts}; it should be {self.rows} counts in 0..{columns}, the columns of the step; count "
                "each row's own new tokens",
                "advance-counts",
            )
        for name, slot in self.slots():
            if not slot.per_row_state and len({*zip(slot.tokens, slot.base, counts, strict=True)}) > 1:
                return AdvanceRefused(
                    f"in {name} rows stand at tokens {slot.tokens}, base {slot.base} and would take {counts}; with "
                    "per_row_state off all should be equal; turn it on, or advance the rows in separate caches",
                    "advance-ragged",
                )
        return None

    def rollback_refusal(self, counts: Sequence[int]) -> RollbackRefused | None:
        """Why row i cannot drop its last counts[i] tokens, from the first slot that cannot, or None. Touches nothing."""
        for name, slot in self.slots():
            refusal = slot.rollback_rows_refusal(counts)
            if refusal:
                refusal.add_note(f"in {name}")
                return refusal
        return None

    def rollback_rows(self, counts: Sequence[int]) -> None:
        """Drop the last counts[i] tokens of row i in every slot; or in none, and RollbackRefused."""
        refusal = self.rollback_refusal(counts)
        if refusal:
            raise refusal
        for _, slot in self.slots():
            slot.rollback_rows(counts)
        self.check_invariants()

    def select(self, rows: Sequence[int]) -> None:
        """Keep exactly `rows`, in that order, in every slot; a row may be repeated. Raises SelectRefused.

        All slots have the same rows, so the first one refuses for all.
        """
        for _, slot in self.slots():
            slot.select(rows)
        self.check_invariants()

    def split_row(self, row: int) -> Cache:
        """Row `row` as a cache of its own. Never shares storage with the batch."""
        return self._of({name: slot.split_row(row) for name, slot in self.slots()})

    @staticmethod
    def assemble(parts: Sequence[Cache]) -> Cache:
        """One batch of all rows of `parts`, in order; each keeps its tokens and its bases in every slot.

        Nothing of the parts is touched. Raises AssembleRefused.
        """
        if not parts:
            raise AssembleRefused(
                "no cache was given; there should be at least one; pass the caches of all rows",
                "assemble-empty",
            )
        names = [[name for name, _ in part.slots()] for part in parts]
        for k, found in enumerate(names):
            if found != names[0]:
                raise AssembleRefused(
                    f"cache {k} has {len(found)} slots, the last {found[-1]}; it should have those of cache 0, "
                    f"{len(names[0])}, the last {names[0][-1]}; build all from one model",
                    "assemble-slots",
                )
        held = [dict(part.slots()) for part in parts]
        kinds: list[Any] = [KVRing if name.endswith(".kv") else XsRolling for name in names[0]]
        made = {
            name: kind.assemble([slots[name] for slots in held])
            for name, kind in zip(names[0], kinds, strict=True)
        }
        return parts[0]._of(made)

    def check_invariants(self) -> None:
        """Raise InvariantBroken if a row does not stand at one token in all slots."""
        for name, slot in self.slots():
            if slot.tokens != self.tokens:
                raise InvariantBroken(f"{name} stands at {slot.tokens}, layers.0.kv at {self.tokens}")

    def _of(self, slots: dict[str, Any]) -> Cache:
        """A cache of this one's form with the given slots."""
        layers = [
            LayerSlots(**{kind: slots[f"layers.{i}.{kind}"] for kind, _ in layer.named()})
            for i, layer in enumerate(self.layers)
        ]
        return Cache(layers)
