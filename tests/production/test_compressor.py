"""One property of the compressor's mathematics a test: each is blind to the others, so a fault shows in one place.

Values are compared by direction where the norm's scale is not the subject: a common factor cancels in it.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torch_impl.compressor import Compressor
from torch_impl.rope import Rope, Yarn

D = 4


def compressor(ratio: int, span: int, *, rope: Rope | None = None, bias: Tensor | None = None) -> Compressor:
    """A layer whose projections are not used: windows are handed to pool directly. gamma is 1."""
    weight = torch.zeros(span * D, 3, dtype=torch.float64)
    bias = torch.zeros(ratio, span * D) if bias is None else bias
    return Compressor(weight, weight, bias, torch.ones(D), rope or Rope(0), eps=0.0)


def windows(value: Tensor, gate: Tensor) -> Tensor:
    """value and gate [N, span, ratio, D] as payloads [N, span, ratio, 2 * D]."""
    return torch.cat([value, gate], dim=-1).double()


def values(n: int, span: int, ratio: int) -> Tensor:
    return torch.randn(n, span, ratio, D, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


def direction(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def assert_same_direction(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(direction(got), direction(want), rtol=0, atol=1e-12)


def test_the_missing_predecessor_of_block_0_has_no_weight():
    value, gate = values(1, 2, 4), torch.arange(float(D)).expand(1, 2, 4, D)
    pooled = compressor(4, 2).pool(windows(value, gate), torch.tensor([0]))
    assert_same_direction(pooled, value[:, 1].mean(dim=1))


def test_what_stands_in_the_missing_predecessor_is_never_used():
    value, gate = values(1, 2, 4), torch.zeros(1, 2, 4, D)
    value[:, 0], gate[:, 0] = torch.nan, torch.nan
    pooled = compressor(4, 2).pool(windows(value, gate), torch.tensor([0]))
    assert_same_direction(pooled, value[:, 1].mean(dim=1))


def test_a_later_block_weighs_its_predecessor_like_its_own_group():
    value = values(1, 2, 4)
    pooled = compressor(4, 2).pool(windows(value, torch.zeros(1, 2, 4, D)), torch.tensor([1]))
    assert_same_direction(pooled, value.mean(dim=(1, 2)))


def test_a_block_has_a_mean_square_of_one():
    pooled = compressor(4, 1).pool(windows(7 * values(3, 1, 4), torch.zeros(3, 1, 4, D)), torch.arange(3))
    torch.testing.assert_close(pooled.square().mean(dim=-1), torch.ones(3).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("slot", range(4))
def test_the_position_bias_is_added_to_its_own_slot(slot: int):
    bias = torch.zeros(4, D)
    bias[slot] = 1000
    value = values(1, 1, 4)
    pooled = compressor(4, 1, bias=bias).pool(windows(value, torch.zeros(1, 1, 4, D)), torch.tensor([1]))
    assert_same_direction(pooled, value[:, 0, slot])


@pytest.mark.parametrize("series", range(2))
def test_each_series_has_a_position_bias_of_its_own(series: int):
    bias = torch.zeros(4, 2 * D)
    bias[2, series * D : (series + 1) * D] = 1000
    value = values(1, 2, 4)
    pooled = compressor(4, 2, bias=bias).pool(windows(value, torch.zeros(1, 2, 4, D)), torch.tensor([1]))
    assert_same_direction(pooled, value[:, series, 2])


def test_the_softmax_runs_over_the_slots_of_each_channel():
    """Channels that choose one slot each are no evidence: on that diagonal every way to normalise is the same."""
    value, gate = values(1, 1, 4), torch.zeros(1, 1, 4, D)
    gate[0, 0, 2, :2] = 100  # channels 0 and 1 choose slot 2; channels 2 and 3 weigh all slots alike
    pooled = compressor(4, 1).pool(windows(value, gate), torch.tensor([1]))
    want = torch.cat([value[0, 0, 2, :2], value[0, 0, :, 2:].mean(dim=0)])
    assert_same_direction(pooled, want[None])


def test_gates_of_half_a_unit_apart_are_told_apart_at_256():
    """bfloat16 has no number between 256 and 258."""
    value, gate = values(1, 1, 4), torch.full((1, 1, 4, D), 256.0)
    gate[:, :, 0] += 0.5
    weight = torch.tensor([math.exp(0.5), 1, 1, 1], dtype=torch.float64)
    pooled = compressor(4, 1).pool(windows(value, gate), torch.tensor([1]))
    assert_same_direction(pooled, (value[0, 0] * weight[:, None]).sum(dim=0)[None])


def turned(x: list[float], position: int) -> list[float]:
    """x [D], the last two channels turned by `position` radians (their pair is pair 0: theta^0 = 1)."""
    a, b = x[-2:]
    cos, sin = math.cos(position), math.sin(position)
    return [*x[:-2], a * cos - b * sin, a * sin + b * cos]


@pytest.mark.parametrize(("ratio", "span", "block"), [(4, 2, 2), (8, 1, 3), (1, 1, 5)])
def test_a_block_is_rotated_at_the_first_token_of_its_own_group(ratio: int, span: int, block: int):
    value = values(1, span, ratio)
    layer = compressor(ratio, span, rope=Rope(2, 10000.0, None))
    pooled = layer.pool(windows(value, torch.zeros(1, span, ratio, D)), torch.tensor([block]))
    want = turned(value.mean(dim=(1, 2))[0].tolist(), block * ratio)
    assert_same_direction(pooled, torch.tensor([want], dtype=torch.float64))


def test_rows_of_one_call_are_rotated_each_at_its_own_position():
    value = values(1, 1, 4).expand(3, 1, 4, D)
    layer, blocks = compressor(4, 1, rope=Rope(2, 10000.0, None)), torch.tensor([0, 7, 3])
    pooled = layer.pool(windows(value, torch.zeros(3, 1, 4, D)), blocks)
    mean = value[0].mean(dim=(0, 1)).tolist()
    turns = [turned(mean, 4 * int(block)) for block in blocks]
    want = torch.tensor(turns, dtype=torch.float64)
    assert_same_direction(pooled, want)


@pytest.mark.parametrize("theta", [10000.0, 160000.0])
def test_without_yarn_pair_i_turns_by_theta_to_the_minus_2i_over_width(theta: float):
    got = Rope(8, theta, None).frequencies.tolist()
    assert got == pytest.approx([theta ** (-2 * i / 8) for i in range(4)], rel=1e-12)


def test_yarn_keeps_fast_pairs_and_slows_slow_ones_sixteenfold():
    plain, stretched = Rope(64, 160000.0, None).frequencies, Rope(64, 160000.0, Yarn()).frequencies
    ratio = (plain / stretched).tolist()
    assert ratio[0] == 1
    assert ratio[-1] == pytest.approx(16)
    assert ratio == sorted(ratio)


def test_a_projection_of_one_series_is_that_part_of_the_whole():
    weight = torch.randn(2 * D, 3, generator=torch.Generator().manual_seed(1)).double()
    gate = torch.randn(2 * D, 3, generator=torch.Generator().manual_seed(2)).double()
    layer = Compressor(weight, gate, torch.zeros(4, 2 * D), torch.ones(D), Rope(0))
    hidden = torch.randn(5, 3, generator=torch.Generator().manual_seed(3)).double()
    whole = layer.project(hidden)
    for series in range(2):
        rows = slice(series * D, (series + 1) * D)
        want = torch.cat([hidden @ weight[rows].T, hidden @ gate[rows].T], dim=1)
        torch.testing.assert_close(whole[:, series], want, rtol=0, atol=1e-12)
        torch.testing.assert_close(layer.project(hidden, series), want, rtol=0, atol=1e-12)


def test_one_position_turns_all_heads_of_its_token_and_a_negative_one_turns_back():
    rope = Rope(4)
    x = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    position = torch.tensor([[0, 1, 2], [700, 5, 65536]])
    turned = rope.rotate(x, position)
    for row in range(2):
        for t in range(3):
            alone = rope.rotate(x[row, t], position[row, t].repeat(5))
            assert torch.equal(turned[row, t], alone)
    assert (rope.rotate(turned, -position) - x).abs().max() < 1e-14


def test_bfloat16_is_turned_in_float32_and_rounded_once():
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(6)).bfloat16()
    position = torch.arange(6) * 999
    assert torch.equal(Rope(4).rotate(x, position), Rope(4).rotate(x.float(), position).bfloat16())


def test_of_no_rows_none_are_turned():
    assert Rope(4).rotate(torch.zeros(0, 8), torch.zeros(0, dtype=torch.int64)).shape == (0, 8)
