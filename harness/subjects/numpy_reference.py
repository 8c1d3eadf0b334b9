"""The NumPy reference, as the oracle of row identity."""

from __future__ import annotations

from harness.rows.subject import Array, Weights
from reference_impl.compressor import CompressorWeights, block_tokens
from reference_impl.promises import Promises


class NumpyReference:
    """One sequence, float64, recomputed from its whole history."""

    def promises(self, ratio: int, span: int, margin: int) -> Promises:
        return Promises(ratio, span, margin)

    def block_tokens(self, block: int, ratio: int, span: int) -> list[int]:
        return block_tokens(block, ratio, span)

    def block(self, weights: Weights, hidden: Array, block: int) -> Array:
        layer = CompressorWeights(
            weights.wkv,
            weights.wgate,
            weights.bias,
            weights.gamma,
            ratio=len(weights.bias),
            span=len(weights.wkv) // len(weights.gamma),
            rope_width=weights.rope_width,
        )
        return layer.block(hidden, block)


oracle = NumpyReference()
