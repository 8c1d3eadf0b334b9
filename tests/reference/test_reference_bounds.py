"""The derived bounds hold for float arithmetic that was not asked to be careful, and see every wrong token."""

from __future__ import annotations

import numpy as np
import pytest

from reference_impl import bounds
from reference_impl.compressor import CompressorWeights
from reference_impl.rope import inverse_frequencies, rotate

LAYERS = {
    "csa": {"d": 32, "ratio": 4, "span": 2, "rope_width": 16},
    "hca": {"d": 32, "ratio": 16, "span": 1, "rope_width": 16},
}


def layer(name: str, hidden_width: int = 64) -> CompressorWeights:
    """Weights that float32 holds exactly, so that both sides start from the same numbers."""
    rng = np.random.default_rng(5)
    w = CompressorWeights.random(rng, hidden_width=hidden_width, **LAYERS[name])
    wkv, wgate, bias, gamma = (array.astype(np.float32) for array in (w.wkv, w.wgate, w.bias, w.gamma))
    return CompressorWeights(
        wkv, wgate, bias, gamma, ratio=w.ratio, span=w.span, rope_width=w.rope_width, theta=w.theta
    )


def history(tokens: int, hidden_width: int = 64, seed: int = 0) -> np.ndarray:
    """hidden [T, H], zero mean, exact in float32."""
    normal = np.random.default_rng(seed).standard_normal((tokens, hidden_width))
    return normal.astype(np.float32).astype(np.float64)


def in_float32(weights: CompressorWeights, hidden: np.ndarray) -> np.ndarray:
    """All blocks [n, d] by the textbook formula, each operation rounded to float32, sums in plain order."""
    f = np.float32
    kv = np.cumsum(hidden.astype(f)[:, None, :] * weights.wkv.astype(f), axis=-1, dtype=f)[..., -1]
    z = np.cumsum(hidden.astype(f)[:, None, :] * weights.wgate.astype(f), axis=-1, dtype=f)[..., -1]
    made = []
    for j in range(len(hidden) // weights.ratio):
        logits, values = (array.astype(f) for array in weights.window(kv, z, j))
        weight = np.exp(logits - logits.max(axis=0)).astype(f)
        pooled = (weight * values).sum(axis=0, dtype=f) / weight.sum(axis=0, dtype=f)
        scale = f(1) / np.sqrt(np.mean(pooled * pooled, dtype=f) + f(weights.eps))
        normed = weights.gamma.astype(f) * pooled * scale
        frequency = inverse_frequencies(weights.rope_width, weights.theta, weights.yarn)
        made.append(rotate(normed, j * weights.ratio, frequency).astype(f))
    return np.array(made)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("seed", range(5))
def test_plain_float32_stays_within_the_bound_and_uses_some_of_it(name: str, seed: int):
    weights, hidden = layer(name), history(48, seed=seed)
    used = bounds.share(in_float32(weights, hidden), bounds.blocks(weights, hidden, bounds.FLOAT32))
    assert 1e-4 < used < 0.25


@pytest.mark.parametrize("name", LAYERS)
def test_one_token_in_place_of_its_neighbour_is_a_hundred_times_the_bound(name: str):
    weights, hidden = layer(name), history(48)
    kv, z = bounds.payload(weights, hidden, bounds.FLOAT32)
    for j in range(len(hidden) // weights.ratio):
        right = bounds.block(weights, kv, z, j, bounds.FLOAT32)
        nearest = min(
            bounds.share(weights.block_of_payload(*stale(kv.value, z.value, token), j), right)
            for token in range(max((j + 1 - weights.span) * weights.ratio, 0), (j + 1) * weights.ratio)
        )
        assert nearest > 100
        # `margin` finds the same by updating sums, and looks at the position bias besides.
        found = bounds.margin(weights, kv.value, z.value, j, right)
        assert 100 < found <= nearest * (1 + 1e-9)


def stale(kv: np.ndarray, z: np.ndarray, token: int) -> tuple[np.ndarray, np.ndarray]:
    """The payload with one token's neighbour in its place."""
    kv, z = kv.copy(), z.copy()
    for array in (kv, z):
        array[token] = array[token - 1 if token else 1]
    return kv, z


def test_margin_is_that_of_the_nearest_neighbour_when_no_bias_is_nearer():
    weights, hidden = layer("hca"), history(32)
    kv, z = bounds.payload(weights, hidden, bounds.FLOAT32)
    right = bounds.block(weights, kv, z, 1, bounds.FLOAT32)
    each = [
        bounds.share(weights.block_of_payload(*stale(kv.value, z.value, token), 1), right)
        for token in range(16, 32)
    ]
    assert bounds.margin(weights, kv.value, z.value, 1, right) == pytest.approx(min(each))


def test_a_position_bias_of_zero_leaves_no_margin():
    w, hidden = layer("csa"), history(16)
    flat = CompressorWeights(
        w.wkv, w.wgate, np.zeros_like(w.bias), w.gamma, ratio=4, span=2, rope_width=16, theta=w.theta
    )
    kv, z = bounds.payload(flat, hidden, bounds.FLOAT32)
    right = bounds.block(flat, kv, z, 1, bounds.FLOAT32)
    assert bounds.margin(flat, kv.value, z.value, 1, right) == 0


def test_the_value_beside_a_bound_is_the_reference_itself():
    weights, hidden = layer("csa"), history(24)
    assert np.array_equal(bounds.blocks(weights, hidden, bounds.FLOAT32).value, weights.blocks(hidden))


def test_a_bound_grows_with_the_unit_and_vanishes_with_it():
    weights, hidden = layer("csa"), history(24)
    narrow, wide = (bounds.blocks(weights, hidden, u).bound for u in (bounds.FLOAT64, bounds.FLOAT32))
    assert np.allclose(wide / narrow, bounds.FLOAT32 / bounds.FLOAT64, rtol=1e-6)
    assert not bounds.blocks(weights, hidden, 0.0).bound.any()


def test_a_stored_payload_leaves_the_pool_alone_to_err():
    weights, hidden = layer("hca"), history(32)
    kv, z = weights.project(hidden)
    whole = bounds.block(weights, *bounds.payload(weights, hidden, bounds.FLOAT32), 1, bounds.FLOAT32)
    pool = bounds.block(weights, bounds.exact(kv), bounds.exact(z), 1, bounds.FLOAT32)
    assert (pool.bound > 0).all()
    assert (pool.bound < whole.bound).all()


def test_rounding_a_block_to_a_narrower_format_widens_its_bound_by_one_rounding():
    value = bounds.Bounded(np.array([1.0, -2.0, 0.0]), np.array([0.0, 0.5, 0.0]))
    assert bounds.rounded(value, 2.0**-8).bound.tolist() == [2.0**-8, 0.5 + 2.5 * 2.0**-8, 0.0]


def test_the_opening_block_has_no_error_of_a_predecessor():
    weights, hidden = layer("csa"), history(8)
    kv, z = bounds.payload(weights, hidden, bounds.FLOAT32)
    silent = bounds.Bounded(kv.value, np.where(np.arange(len(kv.value))[:, None] < 4, kv.bound, np.inf))
    assert np.isfinite(bounds.block(weights, silent, z, 0, bounds.FLOAT32).bound).all()


def test_share_counts_nan_and_a_difference_without_room_as_infinite():
    right = bounds.exact([1.0, 2.0])
    assert bounds.share([1.0, 2.0], right) == 0
    assert bounds.share([1.0, 2.5], right) == np.inf
    assert bounds.share([np.nan, 2.0], bounds.Bounded(right.value, np.ones(2))) == np.inf
    assert bounds.share(np.empty((0, 2)), bounds.exact(np.empty((0, 2)))) == 0
    with pytest.raises(ValueError, match="found has shape"):
        bounds.share([1.0], right)
