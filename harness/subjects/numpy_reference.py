"""The NumPy reference, as the oracle of row identity."""

from __future__ import annotations

import numpy as np

from harness.rows.subject import Array, Weights
from reference_impl import bounds
from reference_impl.bounds import Bounded
from reference_impl.compressor import CompressorWeights, block_tokens
from reference_impl.promises import Promises
from reference_impl.rope import inverse_frequencies, rotate

# A bfloat16 layer projects in float32 and rounds the payload; it pools in float32 and rounds the block.
_UNIT = {"float64": bounds.FLOAT64, "float32": bounds.FLOAT32, "bfloat16": bounds.FLOAT32}


class NumpyReference:
    """One sequence, float64, recomputed from its whole history, with the bound of every value."""

    def promises(self, ratio: int, span: int, margin: int) -> Promises:
        return Promises(ratio, span, margin)

    def block_tokens(self, block: int, ratio: int, span: int) -> list[int]:
        return block_tokens(block, ratio, span)

    def payload(self, weights: Weights, hidden: Array) -> tuple[Bounded, Bounded]:
        kv, z = bounds.payload(_layer(weights), hidden, _UNIT[weights.dtype])
        return _stored(weights, kv), _stored(weights, z)

    def block(
        self, weights: Weights, kv: Bounded, z: Bounded, block: int, *, pool_is_exact: bool = False
    ) -> Bounded:
        unit = _UNIT[weights.dtype]
        return _stored(
            weights, bounds.block(_layer(weights), kv, z, block, unit, pool_is_exact=pool_is_exact)
        )

    def before_norm(self, weights: Weights, blocks: Array) -> Array:
        layer = _layer(weights)
        frequency = inverse_frequencies(layer.rope_width, layer.theta, layer.yarn)
        turned: Array = rotate(blocks, -np.arange(len(blocks)) * layer.ratio, frequency) / layer.gamma
        return turned

    def margin(self, weights: Weights, kv: Bounded, z: Bounded, block: int) -> float:
        if weights.dtype == "bfloat16":  # judged from what was stored, so the payload is no source of doubt
            kv, z = bounds.exact(kv.value), bounds.exact(z.value)
        right = self.block(weights, kv, z, block)
        return bounds.margin(_layer(weights), kv.value, z.value, block, right)


def _layer(weights: Weights) -> CompressorWeights:
    return CompressorWeights(
        weights.wkv,
        weights.wgate,
        weights.bias,
        weights.gamma,
        ratio=len(weights.bias),
        span=len(weights.wkv) // len(weights.gamma),
        rope_width=weights.rope_width,
    )


def _stored(weights: Weights, right: Bounded) -> Bounded:
    return bounds.rounded(right, bounds.BFLOAT16) if weights.dtype == "bfloat16" else right


oracle = NumpyReference()
