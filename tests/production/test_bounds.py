"""Production stays within the derived bound in every dtype, whatever the shape, the seed and the chunks.

bfloat16 is judged in two stages, since the payload is rounded before the pool: the payload against the float64
projection of the same inputs, and the block against the reference's pool of the very payload that was stored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from reference_impl import bounds
from reference_impl.compressor import CompressorWeights
from torch_impl.compressor import Compressor
from torch_impl.geometry import Geometry
from torch_impl.rope import Rope, Yarn
from torch_impl.xs_rolling import XsRolling

CASES = 200
UNIT = {torch.float32: bounds.FLOAT32, torch.float64: bounds.FLOAT64}


class Recording(Compressor):
    """The production compressor, keeping every payload [N, span, 2 * d] that it hands out."""

    def project(self, hidden: torch.Tensor, series: int | None = None) -> torch.Tensor:
        payload = super().project(hidden, series)
        self.payloads = [*getattr(self, "payloads", ()), payload]
        return payload


@dataclass(frozen=True)
class Case:
    """One layer with weights that its dtype holds exactly, and one history [T, H] cut into chunks."""

    weights: CompressorWeights
    tensors: list[torch.Tensor]
    hidden: torch.Tensor
    chunks: list[int]
    retain: str

    def played(self, compressor: Compressor) -> torch.Tensor:
        """The blocks [n, d] of the history as a batch of one row."""
        cache = XsRolling(
            compressor, Geometry(self.weights.ratio, self.weights.span, 4), 1, retain=self.retain
        )
        for chunk in self.hidden.split(self.chunks):
            cache.advance(chunk[None], [len(chunk)])
        return cache.comp(0)

    def compressor(self, kind: type[Compressor] = Compressor) -> Compressor:
        return kind(*self.tensors, Rope(self.weights.rope_width, 160000.0, Yarn()))


def case(seed: int, dtype: torch.dtype) -> Case:
    """A random geometry, width, history and cut; small shapes mostly, some with hundreds of channels."""
    rng = np.random.default_rng([seed, 7])
    ratio, span = [(4, 2), (8, 1), (4, 1), (16, 2), (128, 1)][rng.integers(5)]
    d = int(rng.choice([32, 64, 96]))
    hidden_width = int(rng.choice([5, 16, 33, 64, 250, 512]))
    drawn = CompressorWeights.random(
        rng, hidden_width=hidden_width, d=d, ratio=ratio, span=span, rope_width=32
    )
    tensors = [torch.from_numpy(a).to(dtype) for a in (drawn.wkv, drawn.wgate, drawn.bias, drawn.gamma)]
    weights = CompressorWeights(
        *(tensor.double().numpy() for tensor in tensors), ratio=ratio, span=span, rope_width=32
    )
    tokens = int(rng.integers(ratio, 3 * ratio + 8))
    hidden = torch.from_numpy(rng.standard_normal((tokens, hidden_width))).to(dtype)
    chunks, left = [], tokens
    while left:
        chunks.append(min(int(rng.integers(1, ratio + 3)), left))
        left -= chunks[-1]
    return Case(weights, tensors, hidden, chunks, str(rng.choice(["hidden", "projected"])))


@pytest.mark.parametrize("dtype", UNIT, ids=str)
def test_correct_code_never_leaves_the_bound(dtype: torch.dtype):
    used = []
    for seed in range(CASES):
        drawn = case(seed, dtype)
        right = bounds.blocks(drawn.weights, drawn.hidden.double().numpy(), UNIT[dtype])
        used.append(bounds.share(drawn.played(drawn.compressor()).double().numpy(), right))
    assert len(used) == CASES
    # Half of the distance to the bound is kept free, so a slower accumulator is seen long before it is red.
    assert 0 < max(used) < 0.5, f"share used: at most {max(used):.3f}, median {np.median(used):.3f}"


def test_correct_bfloat16_never_leaves_the_bounds_of_its_two_stages():
    payload_used, block_used = [], []
    for seed in range(CASES):
        drawn = case(seed, torch.bfloat16)
        drawn = Case(drawn.weights, drawn.tensors, drawn.hidden, drawn.chunks, "projected")
        compressor = drawn.compressor(Recording)
        found = drawn.played(compressor).double().numpy()
        stored = torch.cat(compressor.payloads)[: len(drawn.hidden)].double().numpy()
        kv, z = halves(stored, drawn.weights.d)
        for right, array in zip(
            bounds.payload(drawn.weights, drawn.hidden.double().numpy(), bounds.FLOAT32), (kv, z), strict=True
        ):
            payload_used.append(bounds.share(array, bounds.rounded(right, bounds.BFLOAT16)))
        for j, block in enumerate(found):
            pooled = bounds.block(drawn.weights, bounds.exact(kv), bounds.exact(z), j, bounds.FLOAT32)
            block_used.append(bounds.share(block, bounds.rounded(pooled, bounds.BFLOAT16)))
    assert len(payload_used) == 2 * CASES
    assert len(block_used) >= CASES
    # Rounding to nearest alone uses nearly all of its own bound, so no room is asked for here.
    assert 0.9 < max(payload_used) <= 1
    assert 0.9 < max(block_used) <= 1


def halves(stored: np.ndarray, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Payloads [T, span, 2 * d] as kv and z, each [T, span * d]."""
    flat = (len(stored), -1)
    return stored[..., :d].reshape(flat), stored[..., d:].reshape(flat)
