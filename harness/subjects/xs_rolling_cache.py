"""Production's XsRolling as an ordinary cache: what a user of it would write to have it verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch

from harness.caches.protocol import Axis, Geometry, NotOffered
from harness.rows.subject import Array, Weights, random_weights
from harness.subjects.xs_rolling import real_compressor
from reference_impl.compressor import CompressorWeights
from torch_impl import snapshot as snapshots
from torch_impl import xs_rolling as production
from torch_impl.geometry import Geometry as Layout
from torch_impl.refusals import Refusal

_HIDDEN, _BLOCK, _ROPE = 8, 32, 32


@lru_cache(maxsize=4)
def _weights(ratio: int, span: int) -> Weights:
    return random_weights(ratio, span, _HIDDEN, _BLOCK, _ROPE)


class XsRollingCache:
    """Completed blocks, and the hidden states that the next block will pool. Judged by the NumPy reference as well."""

    width = _HIDDEN
    supports: ClassVar[tuple[str, ...]] = (
        "prefill.ragged", "advance.ragged", "rollback.ragged", "select", "repeat", "split", "assemble", "trim",
        "snapshot", "poison", "reference",
    )  # fmt: skip
    axes: ClassVar[Mapping[str, Axis]] = {"comp": "blocks", "tail": "tokens"}
    refusal = Refusal

    def __init__(self, geometry: Geometry, rows: int) -> None:
        if geometry.span not in (1, 2):
            raise NotOffered(f"span {geometry.span}; a compressor looks back on 1 or 2 groups")
        self.layout = Layout(geometry.ratio, geometry.span, geometry.margin)
        compressor = real_compressor(_weights(geometry.ratio, geometry.span), geometry.ratio, geometry.span)
        self.state = production.XsRolling(compressor, self.layout, rows, retain="hidden")

    def _like(self, state: production.XsRolling) -> Self:
        other = object.__new__(type(self))
        other.layout, other.state = self.layout, state
        return other

    def advance(self, xs: Array, n_new: Sequence[int]) -> None:
        self.state.advance(torch.from_numpy(np.ascontiguousarray(xs)), n_new)

    def rollback(self, counts: Sequence[int]) -> None:
        self.state.rollback_rows(counts)

    def select(self, rows: Sequence[int]) -> None:
        self.state.select(rows)

    def split(self, row: int) -> Self:
        return self._like(self.state.split_row(row))

    def assemble(self, parts: Sequence[Self]) -> Self:
        return self._like(production.XsRolling.assemble([part.state for part in parts]))

    def trim(self, base: int) -> None:
        self.state.trim_tail_to(base)

    def snapshot(self, path: Path) -> None:
        snapshots.snapshot(self.state, path)

    def restore(self, path: Path) -> Self:
        return self._like(snapshots.restore(self.state, path))

    def poison(self) -> None:
        self.state.fill_dead(float("nan"))

    def read(self, row: int) -> Mapping[str, Array]:
        tail = self.state.tail([row])[0].numpy()
        tokens = self.state.tokens[row]
        seen = tokens - self.layout.need(tokens)
        return {"comp": self.state.comp(row).numpy(), "tail": tail[len(tail) - seen :]}

    def reference(self, xs: Array) -> Mapping[str, Array]:
        w = _weights(self.layout.ratio, self.layout.span)
        layer = CompressorWeights(
            w.wkv, w.wgate, w.bias, w.gamma, ratio=self.layout.ratio, span=self.layout.span, rope_width=_ROPE
        )  # fmt: skip
        return {"comp": layer.blocks(xs), "tail": xs[self.layout.need(len(xs)) :]}
