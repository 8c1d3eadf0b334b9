"""What one block of the reference is made of: which tokens, which channels, in which arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reference_impl.compressor import CompressorWeights, block_tokens, rms_norm, softmax_over_slots
from reference_impl.rope import Yarn

GEOMETRIES = {"csa": (4, 2), "csa-ratio-3": (3, 2), "hca-ratio-8": (8, 1)}


def layer(ratio: int, span: int, yarn: Yarn | None = None, seed: int = 0) -> CompressorWeights:
    rng = np.random.default_rng(seed)
    return CompressorWeights.random(
        rng, hidden_width=6, d=10, ratio=ratio, span=span, rope_width=8, yarn=yarn
    )


def history(tokens: int, hidden_width: int = 6, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((tokens, hidden_width))


def block_in_plain_python(weights: CompressorWeights, hidden: np.ndarray, j: int) -> list[float]:
    """The formulas of one block with lists, loops and math only; no vectorised NumPy, no shared function."""
    r, sp, d = weights.ratio, weights.span, len(weights.gamma)
    wkv, wgate = weights.wkv.tolist(), weights.wgate.tolist()
    bias, gamma, tokens = weights.bias.tolist(), weights.gamma.tolist(), hidden.tolist()

    def dot(row: list[float], token: list[float]) -> float:
        return math.fsum(a * b for a, b in zip(row, token, strict=True))

    pooled = []
    for c in range(d):
        slots = []  # (logit, value)
        if sp == 2 and j > 0:
            for t in range((j - 1) * r, j * r):
                slots.append((dot(wgate[c], tokens[t]) + bias[t % r][c], dot(wkv[c], tokens[t])))
        last = c + d if sp == 2 else c
        for t in range(j * r, (j + 1) * r):
            slots.append((dot(wgate[last], tokens[t]) + bias[t % r][last], dot(wkv[last], tokens[t])))
        weight_sum = math.fsum(math.exp(g) for g, _ in slots)
        pooled.append(math.fsum(math.exp(g) * v for g, v in slots) / weight_sum)
    mean_square = math.fsum(p * p for p in pooled) / d
    out = [g * p / math.sqrt(mean_square + 1e-6) for g, p in zip(gamma, pooled, strict=True)]

    rd, theta = weights.rope_width, weights.theta
    for i in range(rd // 2):
        f = theta ** (-2 * i / rd)
        if weights.yarn is not None:
            lo = max(math.floor(rd * math.log(65536 / (2 * math.pi * 32)) / (2 * math.log(theta))), 0)
            hi = min(math.ceil(rd * math.log(65536 / (2 * math.pi)) / (2 * math.log(theta))), rd - 1)
            ramp = min(max((i - lo) / (hi - lo), 0.0), 1.0)
            f = f / 16 * ramp + f * (1 - ramp)
        angle = j * r * f
        even, odd = out[d - rd + 2 * i], out[d - rd + 2 * i + 1]
        out[d - rd + 2 * i] = even * math.cos(angle) - odd * math.sin(angle)
        out[d - rd + 2 * i + 1] = even * math.sin(angle) + odd * math.cos(angle)
    return out


@pytest.mark.parametrize("yarn", [None, Yarn()], ids=["plain", "yarn"])
@pytest.mark.parametrize("ratio, span", GEOMETRIES.values(), ids=GEOMETRIES)
def test_blocks_equal_a_transcription_in_plain_python(ratio, span, yarn):
    weights, hidden = layer(ratio, span, yarn), history(26)
    expected = [block_in_plain_python(weights, hidden, j) for j in range(26 // ratio)]
    assert weights.blocks(hidden) == pytest.approx(np.array(expected), rel=1e-12, abs=1e-13)


def test_an_hca_block_of_ratio_128_equals_a_transcription_in_plain_python():
    weights, hidden = layer(128, 1, Yarn()), history(300)
    expected = [block_in_plain_python(weights, hidden, j) for j in range(2)]
    assert weights.blocks(hidden) == pytest.approx(np.array(expected), rel=1e-12, abs=1e-13)


def test_the_indexer_of_width_128_equals_a_transcription_in_plain_python():
    rng = np.random.default_rng(5)
    weights = CompressorWeights.random(rng, hidden_width=7, d=128, ratio=4, span=2, rope_width=64)
    hidden = history(12, hidden_width=7)
    expected = [block_in_plain_python(weights, hidden, j) for j in range(3)]
    assert weights.blocks(hidden) == pytest.approx(np.array(expected), rel=1e-12, abs=1e-13)


@pytest.mark.parametrize("ratio, span", GEOMETRIES.values(), ids=GEOMETRIES)
def test_block_j_exists_exactly_when_token_j_plus_1_times_r_minus_1_has_arrived(ratio, span):
    weights = layer(ratio, span)
    for tokens in range(3 * ratio + 1):
        assert weights.blocks(history(tokens)).shape == (tokens // ratio, 10)
        assert weights.pooled(history(tokens)).shape == (tokens // ratio, 10)


@pytest.mark.parametrize("ratio, span", GEOMETRIES.values(), ids=GEOMETRIES)
def test_a_block_is_unchanged_when_every_token_outside_its_window_is_nan(ratio, span):
    weights, hidden = layer(ratio, span), history(4 * ratio + 1)
    for j in range(4):
        inside = [t for t in block_tokens(j, ratio, span) if t >= 0]
        poisoned = np.full_like(hidden, np.nan)
        poisoned[inside] = hidden[inside]
        assert weights.block(poisoned, j) == pytest.approx(weights.block(hidden, j), rel=1e-13)


@pytest.mark.parametrize("ratio, span", GEOMETRIES.values(), ids=GEOMETRIES)
def test_a_block_changes_when_any_token_of_its_window_changes(ratio, span):
    weights, hidden = layer(ratio, span), history(4 * ratio)
    for j in range(4):
        for token in range(4 * ratio):
            moved = hidden.copy()
            moved[token] += 1e-3
            change = np.abs(weights.block(moved, j) - weights.block(hidden, j)).max()
            assert (change > 1e-9) == (token in block_tokens(j, ratio, span)), (j, token)


@pytest.mark.parametrize("ratio, span", GEOMETRIES.values(), ids=GEOMETRIES)
def test_a_completed_block_is_immutable_as_the_history_grows(ratio, span):
    weights, hidden = layer(ratio, span), history(4 * ratio)
    whole = weights.blocks(hidden)
    for tokens in range(ratio, 4 * ratio):
        shorter = weights.blocks(hidden[:tokens])
        assert shorter == pytest.approx(whole[: len(shorter)], rel=1e-13)


def test_the_first_block_of_csa_is_a_softmax_over_its_own_group_only():
    weights, hidden = layer(4, 2), history(4)
    kv, z = weights.project(hidden)
    logits = z[:, 10:] + weights.bias[:, 10:]
    own = np.exp(logits) / np.exp(logits).sum(axis=0)
    assert weights.pooled(hidden)[0] == pytest.approx((own * kv[:, 10:]).sum(axis=0), rel=1e-13)


def test_the_absent_predecessor_of_the_first_csa_block_weighs_exactly_0():
    weights = layer(4, 2)
    logits, values = weights.window(*weights.project(history(4)), 0)
    assert np.all(logits[:4] == -np.inf) and np.all(values[:4] == 0.0)
    assert np.all(softmax_over_slots(logits)[:4] == 0.0)
    # A logit of 0 instead would take mass: the pooled value would be a different one.
    taken = np.where(np.isinf(logits), 0.0, logits)
    assert not np.allclose((softmax_over_slots(taken) * values).sum(axis=0), weights.pooled(history(4))[0])


def test_the_first_block_of_csa_reads_none_of_the_series_that_serves_the_next_block():
    weights = layer(4, 2)
    kv, z = weights.project(history(8))
    kv[:4, :10], z[:4, :10] = np.nan, np.nan
    assert np.isfinite(weights.pool(kv, z, 0)).all()
    assert np.isnan(weights.pool(kv, z, 1)).all()


def test_a_csa_window_is_the_previous_group_in_series_ca_then_the_own_group_in_series_cb():
    weights = layer(4, 2)
    kv, z = weights.project(history(12))
    logits, values = weights.window(kv, z, 2)
    assert np.array_equal(values, np.concatenate([kv[4:8, :10], kv[8:12, 10:]]))
    gates = np.concatenate([z[4:8, :10] + weights.bias[:, :10], z[8:12, 10:] + weights.bias[:, 10:]])
    assert np.array_equal(logits, gates)


def test_the_position_bias_is_indexed_by_the_token_modulo_the_ratio():
    weights = layer(3, 1)
    kv, z = weights.project(history(9))
    for j in range(3):
        assert np.array_equal(weights.window(kv, z, j)[0], z[3 * j : 3 * j + 3] + weights.bias)


def test_the_payload_holds_no_position_bias_and_needs_no_position():
    weights, hidden = layer(4, 2), history(9)
    kv, z = weights.project(hidden)
    assert kv.shape == z.shape == (9, 20)
    late_kv, late_z = weights.project(hidden[5:])
    assert late_kv == pytest.approx(kv[5:], rel=1e-13) and late_z == pytest.approx(z[5:], rel=1e-13)
    assert weights.project(np.zeros((1, 6)))[1] == pytest.approx(np.zeros((1, 20)))


def test_softmax_runs_over_the_slots_of_each_channel_by_itself():
    logits = np.random.default_rng(6).standard_normal((8, 5))
    weight = softmax_over_slots(logits)
    assert weight.sum(axis=0) == pytest.approx(np.ones(5), rel=1e-15)
    moved = logits.copy()
    moved[3, 2] += 1.0
    changed = softmax_over_slots(moved) != weight
    assert changed[:, 2].all() and not np.delete(changed, 2, axis=1).any()


def test_softmax_is_unmoved_by_a_large_common_logit():
    logits = np.random.default_rng(7).standard_normal((4, 3))
    assert softmax_over_slots(logits + 1000.0) == pytest.approx(softmax_over_slots(logits), rel=1e-10)


def test_the_pool_of_equal_gates_is_the_mean_of_the_values():
    weights = layer(4, 2)
    kv = history(8, hidden_width=20)
    z = -np.tile(weights.bias, (2, 1))
    assert weights.pool(kv, z, 1) == pytest.approx((kv[:4, :10].sum(0) + kv[4:, 10:].sum(0)) / 8, rel=1e-13)


def test_the_norm_gives_a_root_mean_square_of_gamma():
    x = history(3, hidden_width=50)
    normed = rms_norm(x, np.full(50, 2.0), 1e-6)
    assert np.sqrt((normed**2).mean(axis=-1)) == pytest.approx(np.full(3, 2.0), rel=1e-5)


def test_the_norm_ignores_the_scale_of_its_input_but_not_of_gamma():
    x, gamma = history(1, hidden_width=9)[0], np.arange(1.0, 10.0)
    assert rms_norm(8 * x, gamma, 0.0) == pytest.approx(rms_norm(x, gamma, 0.0), rel=1e-14)
    assert rms_norm(x, 3 * gamma, 1e-6) == pytest.approx(3 * rms_norm(x, gamma, 1e-6), rel=1e-14)


def test_the_norm_adds_its_epsilon_inside_the_root():
    assert rms_norm([3.0, 4.0], [1.0, 1.0], 3.5) == pytest.approx([0.75, 1.0])


@pytest.mark.parametrize("ratio, span", GEOMETRIES.values(), ids=GEOMETRIES)
def test_a_block_is_rotated_at_the_first_token_of_its_own_group(ratio, span):
    weights, hidden = layer(ratio, span), history(4 * ratio)
    for j, pooled in enumerate(weights.pooled(hidden)):
        normed = rms_norm(pooled, weights.gamma, weights.eps)
        turned = weights.blocks(hidden)[j]
        assert np.array_equal(turned[:2], normed[:2])
        for i in range(4):
            phase = np.exp(1j * j * ratio * 160000.0 ** (-2 * i / 8))
            number = complex(normed[2 + 2 * i], normed[3 + 2 * i]) * phase
            assert turned[2 + 2 * i : 4 + 2 * i] == pytest.approx([number.real, number.imag], rel=1e-12)


def test_a_block_of_a_stored_payload_is_the_block_of_its_history():
    weights, hidden = layer(4, 2), history(17)
    kv, z = weights.project(hidden)
    for j in range(4):
        assert np.array_equal(weights.block_of_payload(kv, z, j), weights.blocks(hidden)[j])
        assert np.array_equal(weights.block(hidden, j), weights.blocks(hidden)[j])


def test_random_weights_never_leave_the_position_bias_at_zero():
    assert (layer(4, 2).bias != 0).all()


def test_the_tokens_of_a_block_are_listed_by_slot_with_minus_1_for_an_absent_one():
    assert block_tokens(0, 4, 2) == [-1, -1, -1, -1, 0, 1, 2, 3]
    assert block_tokens(2, 4, 2) == [4, 5, 6, 7, 8, 9, 10, 11]
    assert block_tokens(0, 3, 1) == [0, 1, 2]
    assert block_tokens(2, 128, 1) == list(range(256, 384))


@pytest.mark.parametrize(
    "change, sentence",
    [
        ({"wgate": np.zeros((20, 5))}, r"wgate has shape \(20, 5\); it should be \(20, 6\)"),
        ({"bias": np.zeros((20, 4))}, r"bias has shape \(20, 4\); it should be \(4, 20\)"),
        ({"gamma": np.ones(20)}, r"wkv has shape \(20, 6\); it should be \(40, 6\)"),
        ({"gamma": np.ones((1, 10))}, r"gamma has shape \(1, 10\)"),
        ({"rope_width": 12}, "rope_width is 12; it should be at most d=10"),
        ({"span": 3}, "span 3"),
        ({"ratio": 0}, "ratio is 0"),
    ],
)
def test_weights_that_do_not_fit_each_other_are_refused(change, sentence):
    good = layer(4, 2)
    names = ("wkv", "wgate", "bias", "gamma", "ratio", "span", "rope_width")
    with pytest.raises(ValueError, match=sentence):
        CompressorWeights(**{name: getattr(good, name) for name in names} | change)


def test_a_batch_of_histories_is_refused():
    with pytest.raises(ValueError, match=r"hidden has shape \(1, 8, 6\); it should be \[T, 6\]"):
        layer(4, 2).blocks(history(8)[None])


def test_a_payload_of_another_width_is_refused():
    with pytest.raises(ValueError, match=r"both should be \[T, 20\]"):
        layer(4, 2).pool(np.zeros((8, 20)), np.zeros((8, 10)), 0)


@pytest.mark.parametrize("j", [-1, 2])
def test_a_block_that_is_not_complete_is_refused(j):
    with pytest.raises(ValueError, match=f"block {j} was asked for; it should be below 2"):
        layer(4, 2).block(history(11), j)


def test_a_negative_block_has_no_tokens():
    with pytest.raises(ValueError, match="blocks count from 0"):
        block_tokens(-1, 4, 2)
