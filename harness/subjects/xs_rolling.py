"""Production's XsRolling, as row identity plays it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.rows.subject import Array, Rows, Setup, Weights
from harness.subjects.token_compressor import TokenCompressor
from harness.subjects.writes import CountWrites, address
from torch_impl import snapshot as snapshots
from torch_impl.compressor import Compressor
from torch_impl.geometry import Geometry
from torch_impl.kv_cache import KVSlot, drop_dead_prefix, first_mismatched_cache_len, front_align_batch
from torch_impl.refusals import InvariantBroken, Refusal
from torch_impl.rope import Rope, Yarn
from torch_impl.storage import BlockPooler
from torch_impl.xs_rolling import XsRolling, reconcile_xs_bases


def real_compressor(
    weights: Weights, ratio: int, span: int, device: str = "cpu", *, row_invariant: bool = False
) -> Compressor:
    """The production compressor with the given weights, in their format, and the rope of compressed layers."""
    wkv, wgate, bias, gamma = (
        torch.from_numpy(array).to(device, getattr(torch, weights.dtype))
        for array in (weights.wkv, weights.wgate, weights.bias, weights.gamma)
    )
    rope = Rope(weights.rope_width, 160000.0, Yarn())
    compressor = Compressor(wkv, wgate, bias, gamma, rope, row_invariant=row_invariant)
    assert (compressor.ratio, compressor.span) == (ratio, span)
    return compressor


class XsRollingRows:
    """A batch of production rows; arrays in and out."""

    def __init__(self, cache: XsRolling, device: str) -> None:
        self.cache, self.device = cache, device

    def _in(self, array: Array) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.to(self.device, self.cache.compressor.block_dtype)

    def advance(self, xs: Array, n_new: Sequence[int]) -> None:
        self.cache.advance(self._in(xs), n_new)

    def advance_counting(self, xs: Array, n_new: Sequence[int]) -> int:
        with CountWrites() as writes:
            self.cache.advance(self._in(xs), n_new)
        return int(writes.elements[address(self.cache.storage()["comp"])])

    def rollback(self, row: int, n: int) -> None:
        self.cache.rollback(row, n)

    def rollback_rows(self, counts: Sequence[int]) -> None:
        self.cache.rollback_rows(counts)

    def rollback_refusal(self, row: int, n: int) -> str | None:
        refusal = self.cache.rollback_refusal(row, n)
        return None if refusal is None else refusal.kind

    def select(self, rows: Sequence[int]) -> None:
        self.cache.select(rows)

    def reshape(self, rows: Sequence[int]) -> None:
        live = max(self.cache.live_blocks(row) for row in range(self.cache.rows))
        index = torch.tensor(list(rows))
        self.cache.reshape(self.cache.storage()["comp"][index, :live], self.cache.tail()[index])

    def trim(self, base: int) -> None:
        self.cache.trim_tail_to(base)

    def split(self, row: int) -> XsRollingRows:
        return XsRollingRows(self.cache.split_row(row), self.device)

    def snapshot(self, path: Path) -> None:
        snapshots.snapshot(self.cache, path)

    def restore(self, path: Path) -> XsRollingRows:
        return XsRollingRows(snapshots.restore(self.cache, path), self.device)

    def read(self, row: int) -> Mapping[str, Array]:
        tail = self.cache.tail([row])[0]
        held = {
            "tokens": np.int64(self.cache.tokens[row]),
            "base": np.int64(self.cache.base[row]),
            "width": np.int64(self.cache.width),
            "comp": _out(self.cache.comp(row)),
            "tail": _out(tail),
        }
        if self.cache.retain == "projected" and tail.is_floating_point():
            compressor = self.cache.compressor
            halves = tail.view(len(tail), compressor.span, 2, compressor.block_width)
            held |= {name: _out(halves[:, :, i].flatten(1)) for i, name in enumerate(("kv", "z"))}
        return held  # type: ignore[return-value]

    def memory(self) -> Mapping[str, Array]:
        counts = {"tokens": np.array(self.cache.tokens), "base": np.array(self.cache.base)}
        return {name: _bits(tensor).copy() for name, tensor in self.cache.storage().items()} | counts

    def check_invariants(self) -> None:
        self.cache.check_invariants()

    def poison(self, value: float) -> None:
        self.cache.fill_dead(value)

    def storages(self) -> frozenset[int]:
        return frozenset(address(tensor) for tensor in self.cache.storage().values())

    def pool_calls(self) -> int:
        compressor = self.cache.compressor
        return compressor.pool_calls if isinstance(compressor, TokenCompressor) else 0


def _out(tensor: Tensor) -> Array:
    """Token ids as they are, floats as float64, which holds all of them."""
    array: Array = (tensor.double() if tensor.is_floating_point() else tensor).cpu().numpy()
    return array


def _bits(tensor: Tensor) -> Array:
    """What is stored, to the bit: NumPy has no bfloat16, so that comes as the integers behind it."""
    array: Array = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()
    return array


class KVSlots:
    """One windowed K/V slot per sequence, in front of the sequence's compressor slot."""

    def __init__(self, window: int, margin: int, width: int, device: str) -> None:
        self._window, self._margin, self._width, self._device = window, margin, width, device
        self._slots: dict[int, KVSlot] = {}

    def _slot(self, sequence: int) -> KVSlot:
        if sequence not in self._slots:
            self._slots[sequence] = KVSlot(self._window, self._margin, self._width, torch.int64, self._device)
        return self._slots[sequence]

    def append(self, sequence: int, kv: Array) -> None:
        self._slot(sequence).append(torch.from_numpy(kv).to(self._device))

    def rollback(self, sequence: int, n: int) -> None:
        self._slot(sequence).rollback(n)

    def rollback_refusal(self, sequence: int, n: int) -> str | None:
        refusal = self._slot(sequence).rollback_refusal(n)
        return None if refusal is None else refusal.kind

    def _beside(self, sequences: Sequence[int], compressors: Sequence[Any]) -> list[list[KVSlot | XsRolling]]:
        return [[self._slot(s), rows.cache] for s, rows in zip(sequences, compressors, strict=True)]

    def align(self, sequences: Sequence[int], compressors: Sequence[Rows]) -> list[int]:
        return front_align_batch(self._beside(sequences, compressors))

    def mismatched(self, sequences: Sequence[int], compressors: Sequence[Any]) -> int | None:
        per_row_state = all(rows.cache.per_row_state for rows in compressors)
        return first_mismatched_cache_len(self._beside(sequences, compressors), per_row_state)

    def drop(self, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            drop_dead_prefix(self._slot(sequence))

    def columns(self, sequence: int) -> Array:
        return self._slot(sequence).columns.cpu().numpy()


class XsRollingSubject:
    """Opens production state for a play. options: retain (hidden, projected), plan (grouped, gathered)."""

    refusal: type[Exception] = Refusal
    invariant_broken: type[Exception] = InvariantBroken

    def open(self, setup: Setup, rows: int) -> XsRollingRows:
        return XsRollingRows(self._cache(setup, rows), setup.device)

    def _cache(self, setup: Setup, rows: int) -> XsRolling:
        compressor: BlockPooler = TokenCompressor(setup.ratio, setup.span, setup.channels)
        if setup.weights is not None:
            compressor = real_compressor(
                setup.weights, setup.ratio, setup.span, setup.device, row_invariant=setup.row_invariant
            )
        return XsRolling(
            compressor,
            Geometry(setup.ratio, setup.span, setup.margin),
            rows,
            per_row_state=setup.per_row_state,
            always_ragged=setup.always_ragged,
            device=setup.device,
            **setup.options,  # type: ignore[arg-type]
        )

    def assemble(self, parts: Sequence[Any]) -> XsRollingRows:
        return XsRollingRows(XsRolling.assemble([part.cache for part in parts]), parts[0].device)

    def reconcile(self, rows: Sequence[Any]) -> None:
        reconcile_xs_bases([row.cache for row in rows])

    def adopt(self, setup: Setup, xs: Array, base: int) -> XsRollingRows:
        """What another program would have stored: blocks of the whole history, payloads from `base` on."""
        donor = self._cache(setup, 1)
        whole = torch.from_numpy(xs).to(setup.device, donor.compressor.block_dtype)
        donor.advance(whole[None])
        kept = whole[base:]
        payload = kept if donor.retain == "hidden" else donor.compressor.project(kept).flatten(1)
        adopted = donor.adopt(donor.comp(0)[None], payload[None], [len(xs)], [base])
        return XsRollingRows(adopted, setup.device)

    def slots(self, setup: Setup, width: int) -> KVSlots:
        return KVSlots(setup.kv_window, setup.margin, width, setup.device)


subject = XsRollingSubject()
