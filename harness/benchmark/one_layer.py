"""One attention layer at real sizes: rows at unequal tokens beside rows that all stand where the longest does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.benchmark.clock import Ratio, interleaved, milliseconds
from harness.benchmark.tables import Row
from torch_impl import layer
from torch_impl.attention import Attention
from torch_impl.kv_ring import KVRing
from torch_impl.layer import LayerSlots
from torch_impl.model import Model, ModelConfig, random_weights
from torch_impl.schedule import V4_FLASH, Kind
from torch_impl.xs_rolling import XsRolling

MARGIN = 16


@dataclass(frozen=True)
class Effort:
    """How long to measure. sizes: rows and new tokens per row; rows stand at 1/16 of `longest` and more."""

    kinds: tuple[Kind, ...] = ("csa", "hca", "sliding")
    sizes: tuple[tuple[int, int], ...] = ((8, 1), (8, 4), (32, 1))
    longest: int = 8192
    repeats: int = 15
    steps: int = 4
    small: bool = False


def config(kind: Kind, small: bool) -> ModelConfig:
    """One layer of V4-Flash, in full or as small as its form allows."""
    flash = {
        name: getattr(V4_FLASH, name)
        for name in ("heads", "d", "rope_width", "window", "index_heads", "index_d")
    }
    sizes = flash | {
        "hidden_width": V4_FLASH.hidden_width,
        "topk": V4_FLASH.topk,
        "q_lora": 1024,
        "o_lora": 1024,
    }
    if small:
        sizes |= {
            "hidden_width": 64,
            "heads": 8,
            "d": 64,
            "index_heads": 4,
            "topk": 64,
            "q_lora": 32,
            "o_lora": 32,
        }
    return ModelConfig(schedule=(kind,), vocab=1, intermediate=1, o_groups=8, **sizes)


class WithoutProjections:
    """A layer whose queries and keys are there already: what is left is the state, the masks, the choice, the softmax."""

    def __init__(self, real: Attention, hidden: Tensor) -> None:
        self.key_width, self.key_dtype = real.key_width, real.key_dtype
        self.compressor, self.indexer, self.attend = real.compressor, real.indexer, real.attend
        position = torch.zeros(hidden.shape[:2], dtype=torch.int64, device=hidden.device)
        self.made = *real.queries(hidden, position), real.keys(hidden, position)

    def queries(self, hidden: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        return self.made[0], self.made[1]

    def keys(self, hidden: Tensor, position: Tensor) -> Tensor:
        return self.made[2]

    def output(self, read: Tensor, position: Tensor) -> Tensor:
        return read


def standing(math: Attention, tokens: list[int]) -> LayerSlots:
    """Slots of rows in mid-decode, with random contents of the right shapes: a step's cost does not see values."""
    device = str(math.kv.device)
    ring = KVRing(
        math.config.window, MARGIN, len(tokens), math.key_width, dtype=math.key_dtype, device=device
    )
    ring.tokens, ring.base = list(tokens), [max(t - ring.kept, 0) for t in tokens]
    ring.storage()["ring"].normal_()
    like = LayerSlots.open(math, 1, math.config.window, MARGIN)
    states = {kind: _standing(slot, tokens) for kind, slot in like.named() if isinstance(slot, XsRolling)}
    return LayerSlots(ring, states.get("compressor"), states.get("indexer"))


def _standing(like: XsRolling, tokens: list[int]) -> XsRolling:
    base = [like.geometry.base_after(t, 0) for t in tokens]
    width = max(t - b for t, b in zip(tokens, base, strict=True))
    live = max(like.geometry.blocks(t) for t in tokens)
    comp, ring = like.storage()["comp"], like.storage()["ring"]
    return like.adopt(
        torch.randn(len(tokens), live, comp.shape[2]).to(comp),
        torch.randn(len(tokens), width, ring.shape[2]).to(ring),
        tokens,
        base,
    )


def ragged_against_uniform(effort: Effort, device: str) -> Iterator[Row]:
    """B10: a step of rows at unequal tokens over one of rows that all stand at the longest."""
    for kind in effort.kinds:
        sizes = config(kind, effort.small)
        math = Model(sizes, random_weights(sizes, seed=4, device=device)).blocks[0].attention
        for rows, columns in effort.sizes:
            generator = torch.Generator().manual_seed(1)
            hidden = torch.randn(rows, columns, sizes.hidden_width, generator=generator).to(device)
            uniform = [effort.longest] * rows
            apart = torch.randint(
                effort.longest // 16, effort.longest, (rows - 1,), generator=generator
            ).tolist()
            ragged = [*apart, effort.longest]
            bare = WithoutProjections(math, hidden)
            cases = {
                "ragged": _steps(math, standing(math, ragged), hidden, effort.steps),
                "uniform": _steps(math, standing(math, uniform), hidden, effort.steps),
                "ragged, bare": _steps(bare, standing(math, ragged), hidden, effort.steps),
                "uniform, bare": _steps(bare, standing(math, uniform), hidden, effort.steps),
            }
            seconds = interleaved(cases, effort.repeats, device)
            ratio = Ratio.of(seconds["ragged"], seconds["uniform"])
            rest = Ratio.of(seconds["ragged, bare"], seconds["uniform, bare"])
            step = {name: milliseconds(times)["median"] / effort.steps for name, times in seconds.items()}
            yield Row(
                "B10",
                f"{kind} f32, B={rows}, T={columns}: ragged / uniform at {effort.longest} tokens",
                ratio,
                "<= 1.10",
                ratio.median <= 1.10,
                f"{step['ragged']:.1f} ms a step; without projections {rest.median:.3f}, {step['ragged, bare']:.1f} ms",
            )


def _steps(math: layer.LayerMath, slots: LayerSlots, hidden: Tensor, steps: int) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            for _ in range(steps):
                layer.step(math, slots, hidden)

    return run
