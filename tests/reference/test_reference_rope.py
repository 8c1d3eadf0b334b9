"""What the reference's rotary embedding does, against scalar loops and values worked out by hand."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest

from reference_impl.rope import Yarn, inverse_frequencies, rotate


def yarn_frequencies_by_hand(width: int, theta: float, factor: float, length: int) -> list[float]:
    """The YaRN formula for beta_fast 32 and beta_slow 1 in scalar arithmetic."""
    fast = width * math.log(length / (2 * math.pi * 32)) / (2 * math.log(theta))
    slow = width * math.log(length / (2 * math.pi * 1)) / (2 * math.log(theta))
    low, high = max(math.floor(fast), 0), min(math.ceil(slow), width - 1)
    frequencies = []
    for i in range(width // 2):
        plain = math.exp(-2 * i / width * math.log(theta))
        ramp = min(max((i - low) / (high - low), 0.0), 1.0)
        frequencies.append(plain / factor * ramp + plain * (1 - ramp))
    return frequencies


def test_without_yarn_pair_i_turns_by_theta_to_the_minus_2i_over_the_width():
    assert inverse_frequencies(8, 10000.0) == pytest.approx([1.0, 0.1, 0.01, 0.001], rel=1e-15)


@pytest.mark.parametrize("width, theta", [(64, 160000.0), (64, 10000.0), (16, 160000.0), (8, 160000.0)])
def test_yarn_frequencies_are_those_of_scalar_arithmetic(width, theta):
    expected = yarn_frequencies_by_hand(width, theta, factor=16.0, length=65536)
    assert inverse_frequencies(width, theta, Yarn()) == pytest.approx(expected, rel=1e-14)


def test_the_yarn_ramp_ends_at_the_rope_width_minus_1_where_it_would_pass_it():
    # c(1) = 64.4 and c(32) = 27.3 here, so the ramp is cut to 27..63 and its slope with it.
    expected = yarn_frequencies_by_hand(64, 20.0, factor=4.0, length=2600)
    frequency = inverse_frequencies(64, 20.0, Yarn(factor=4.0, original_length=2600))
    assert frequency == pytest.approx(expected, rel=1e-14)
    assert frequency[31] / inverse_frequencies(64, 20.0)[31] == pytest.approx(1 - 3 / 4 * 4 / 36, rel=1e-12)


def test_the_published_yarn_parameters_ramp_from_pair_15_to_pair_25():
    # 64 ln(65536 / 64 pi) / (2 ln 160000) = 15.45 and 64 ln(65536 / 2 pi) / (2 ln 160000) = 24.71, by hand.
    plain = inverse_frequencies(64, 160000.0)
    share = inverse_frequencies(64, 160000.0, Yarn()) / plain
    assert share[:16] == pytest.approx(np.ones(16), rel=1e-15)
    assert share[16:25] == pytest.approx([1 - 15 / 16 * k / 10 for k in range(1, 10)], rel=1e-12)
    assert share[25:] == pytest.approx(np.full(7, 1 / 16), rel=1e-15)


def test_some_yarn_frequencies_have_the_values_written_down_here():
    # Pair 0 is never stretched. Pair 20 is half way up the ramp: 160000^(-0.625) * (1/32 + 1/2), where
    # 160000 = 20^4 and so 160000^(-0.625) = 20^(-2.5) = 1 / (400 sqrt(20)). Pair 28: 20^(-3.5) / 16.
    frequency = inverse_frequencies(64, 160000.0, Yarn())
    assert frequency[0] == 1.0
    assert frequency[20] == pytest.approx(2.96977778e-4, rel=1e-7)
    assert frequency[28] == pytest.approx(1.7469281e-6, rel=1e-7)


def test_rotation_at_position_0_is_the_identity():
    x = np.random.default_rng(0).standard_normal((3, 10))
    assert np.array_equal(rotate(x, 0, inverse_frequencies(8, 10000.0)), x)


def test_rotation_keeps_the_norm_of_every_pair_and_every_channel_before_the_rope():
    x = np.random.default_rng(1).standard_normal((5, 12))
    turned = rotate(x, np.arange(5) * 1001, inverse_frequencies(8, 160000.0))
    assert np.array_equal(turned[:, :4], x[:, :4])
    pairs = x[:, 4:].reshape(5, 4, 2)
    turned_pairs = turned[:, 4:].reshape(5, 4, 2)
    assert np.linalg.norm(turned_pairs, axis=-1) == pytest.approx(np.linalg.norm(pairs, axis=-1), rel=1e-14)
    assert not np.allclose(turned[1:], x[1:], atol=1e-3)


def test_pairs_are_interleaved_neighbours_multiplied_by_a_complex_phase():
    x = np.random.default_rng(2).standard_normal(6)
    frequency = [0.5, 0.03]
    turned = rotate(x, 7, frequency)
    for i, radians in enumerate(frequency):
        number = complex(x[2 + 2 * i], x[3 + 2 * i]) * cmath.exp(7j * radians)
        assert turned[2 + 2 * i] == pytest.approx(number.real, rel=1e-14)
        assert turned[3 + 2 * i] == pytest.approx(number.imag, rel=1e-14)


def test_a_quarter_turn_sends_the_even_channel_to_the_odd_one():
    assert rotate([1.0, 0.0], 1, [math.pi / 2]) == pytest.approx([0.0, 1.0], abs=1e-15)


def test_every_row_turns_by_its_own_position():
    x = np.random.default_rng(3).standard_normal((4, 8))
    positions = np.array([0, 5, 128, 65536])
    frequency = inverse_frequencies(8, 160000.0, Yarn())
    turned = rotate(x, positions, frequency)
    for row, position in enumerate(positions):
        assert np.array_equal(turned[row], rotate(x[row], position, frequency))


def test_minus_the_position_turns_back():
    x = np.random.default_rng(4).standard_normal((2, 8))
    frequency = inverse_frequencies(8, 10000.0)
    assert rotate(rotate(x, 4321, frequency), -4321, frequency) == pytest.approx(x, rel=1e-12)


def test_rotation_never_writes_into_its_argument():
    x = np.ones((2, 4))
    rotate(x, 3, inverse_frequencies(4, 10000.0))
    assert np.array_equal(x, np.ones((2, 4)))


def test_a_rope_of_width_0_turns_nothing():
    x = np.arange(4.0)
    assert np.array_equal(rotate(x, 3, inverse_frequencies(0, 160000.0, Yarn())), x)


@pytest.mark.parametrize("width", [-2, 3])
def test_a_rope_width_that_does_not_pair_up_is_refused(width):
    with pytest.raises(ValueError, match=f"rope_width is {width}; it should be even"):
        inverse_frequencies(width, 10000.0)


def test_a_yarn_ramp_that_does_not_rise_is_refused():
    with pytest.raises(ValueError, match="the YaRN ramp runs from pair"):
        inverse_frequencies(8, 10000.0, Yarn(original_length=4))


def test_an_x_narrower_than_its_rope_is_refused():
    with pytest.raises(ValueError, match=r"x has shape \(2, 4\)"):
        rotate(np.zeros((2, 4)), 0, np.ones(3))


def test_positions_that_do_not_fit_the_rows_are_refused():
    with pytest.raises(ValueError, match=r"position has shape \(3,\)"):
        rotate(np.zeros((2, 4)), np.arange(3), np.ones(2))
