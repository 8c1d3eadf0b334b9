"""The NumPy reference, as the oracle of row identity."""

from __future__ import annotations

from harness.rows.subject import Array, Weights
from reference_impl import bounds
from reference_impl.compressor import CompressorWeights, block_tokens
from reference_impl.promises import Promises


class NumpyReference:
    """One sequence, float64, recomputed from its whole history."""

    def promises(self, ratio: int, span: int, margin: int) -> Promises:
        return Promises(ratio, span, margin)

    def block_tokens(self, block: int, ratio: int, span: int) -> list[int]:
        return block_tokens(block, ratio, span)

    def block(self, weights: Weights, hidden: Array, block: int) -> Array:
        return _layer(weights).block(hidden, block)

    def bounded_block(self, weights: Weights, hidden: Array, block: int) -> tuple[Array, Array]:
        layer = _layer(weights)
        found = bounds.block(layer, *bounds.payload(layer, hidden, bounds.FLOAT32), block, bounds.FLOAT32)
        return found.value, found.bound

    def bounded_payload(self, weights: Weights, hidden: Array) -> tuple[Array, Array]:
        kv, _ = bounds.payload(_layer(weights), hidden, bounds.FLOAT32)
        return kv.value, kv.bound


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


oracle = NumpyReference()
