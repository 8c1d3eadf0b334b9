"""The state step at real sizes: batches in mid-decode, and what a step costs beside its projection."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from torch_impl.compressor import Compressor
from torch_impl.geometry import Geometry
from torch_impl.rope import Rope
from torch_impl.step import Plan
from torch_impl.storage import Retain
from torch_impl.xs_rolling import XsRolling

HIDDEN, HEAD, ROPE_WIDTH = 4096, 512, 64


@dataclass(frozen=True)
class Layer:
    """One compressor layer of V4-Flash. name: csa or hca."""

    name: Literal["csa", "hca"]
    dtype: torch.dtype
    device: str = "cpu"
    hidden: int = HIDDEN
    head: int = HEAD

    @property
    def geometry(self) -> Geometry:
        return Geometry(4, 2) if self.name == "csa" else Geometry(128, 1)

    def compressor(self, *, row_invariant: bool = False) -> Compressor:
        """Random weights of unit gain, fixed seed. Raises RowInvarianceRefused as the compressor does."""
        generator = torch.Generator().manual_seed(4)
        geometry = self.geometry
        width = geometry.span * self.head

        def weight(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        scale = self.hidden**-0.5
        wkv, wgate = weight(width, self.hidden) * scale, weight(width, self.hidden) * scale
        bias, norm = weight(geometry.ratio, width), 1 + 0.25 * weight(self.head)
        return Compressor(
            wkv.to(self.device, self.dtype),
            wgate.to(self.device, self.dtype),
            bias.to(self.device),
            norm.to(self.device),
            Rope(ROPE_WIDTH),
            row_invariant=row_invariant,
        )

    @property
    def short(self) -> str:
        return (
            f"{self.name} {str(self.dtype).removeprefix('torch.').replace('float', 'f').replace('bf', 'bf')}"
        )


@dataclass(frozen=True)
class Batch:
    """A batch in mid-decode. Row i stands at tokens[i]; its state is as if it had decoded to there."""

    layer: Layer
    tokens: tuple[int, ...]
    retain: Retain = "projected"
    plan: Plan = "gathered"
    per_row_state: bool = True
    always_ragged: bool = False

    def open(self, compressor: Compressor) -> XsRolling:
        """The cache, with random blocks and tails of the right shapes: a step's cost does not see values."""
        layer, geometry = self.layer, self.layer.geometry
        like = XsRolling(
            compressor,
            geometry,
            1,
            retain=self.retain,
            plan=self.plan,
            per_row_state=self.per_row_state,
            always_ragged=self.always_ragged,
            device=layer.device,
        )
        base = [geometry.base_after(t, 0) for t in self.tokens]
        width = max(t - b for t, b in zip(self.tokens, base, strict=True))
        storage = like.storage()
        live = max(geometry.blocks(t) for t in self.tokens)
        comp = torch.randn(1, 1, layer.head, device=layer.device).to(storage["comp"].dtype)
        tail = torch.randn(1, 1, storage["ring"].shape[2], device=layer.device).to(storage["ring"].dtype)
        rows = len(self.tokens)
        return like.adopt(comp.expand(rows, live, -1), tail.expand(rows, width, -1), self.tokens, base)


def spread_tokens(rows: int, around: int, spread: int, seed: int = 1) -> tuple[int, ...]:
    """`rows` counts between around and around + spread, at random; all `around` if spread is 0."""
    generator = torch.Generator().manual_seed(seed)
    return tuple((around + torch.randint(0, spread + 1, (rows,), generator=generator)).tolist())


def new_tokens(layer: Layer, rows: int, columns: int = 1) -> Tensor:
    """xs [rows, columns, H], random, fixed seed."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(rows, columns, layer.hidden, generator=generator).to(layer.device, layer.dtype)


def projection(layer: Layer, compressor: Compressor, rows: int, columns: int = 1) -> Callable[[], None]:
    """The floor of a projected step: its one GEMM, alone."""
    flat = new_tokens(layer, rows, columns).flatten(0, 1)
    weight = compressor.weight.flatten(0, 1)

    def run() -> None:
        F.linear(flat, weight)

    return run


def cycle(cache: XsRolling, xs: Tensor, steps: int) -> Callable[[], None]:
    """`steps` steps that append xs to every row; over one ratio of single tokens each row completes once."""

    def run() -> None:
        for _ in range(steps):
            cache.advance(xs)

    return run


def rows_alone(batch: Batch, compressor: Compressor) -> list[XsRolling]:
    """Every row of the batch as a cache of its own."""
    return [replace(batch, tokens=(t,)).open(compressor) for t in batch.tokens]


def loop(caches: list[XsRolling], xs: Tensor, steps: int) -> Callable[[], None]:
    """The per-row loop that batching replaces: one call per row and step."""

    def run() -> None:
        for _ in range(steps):
            for row, cache in enumerate(caches):
                cache.advance(xs[row : row + 1])

    return run


def repeated(case: Callable[[], None], times: int) -> Callable[[], None]:
    """The same case several times over, as one."""

    def run() -> None:
        for _ in range(times):
            case()

    return run


def peak_step_bytes(cache: XsRolling, xs: Tensor) -> int:
    """How far the process's memory rises above its level before the step, in bytes (CUDA: the allocator's)."""
    if xs.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        cache.advance(xs)
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL(None).malloc_trim(0)  # what earlier steps have freed must not hide what this one needs
    Path("/proc/self/clear_refs").write_text("5")  # the kernel starts its high-water mark anew
    before = _status("VmRSS")
    cache.advance(xs)
    return max(_status("VmHWM") - before, 0)


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {key}")
