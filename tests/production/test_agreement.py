"""Production and the NumPy reference compute the same blocks, however a history was cut into chunks.

Both sides run in float64 on the same random weights, with a position bias that is never zero. A batch holds
one row for every way to cut the history in three, so each step is ragged; rows take one of a few different
histories in turn, so a row that borrowed from a neighbour would show. Chunks of length 0 are included: an
idle row beside busy ones is the ordinary case, and 861 cuts hold the 741 cuts without an empty chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, product

import numpy as np
import pytest
import torch

from reference_impl import rope as reference_rope
from reference_impl.compressor import CompressorWeights
from reference_impl.promises import Promises
from torch_impl.compressor import Compressor
from torch_impl.geometry import Geometry
from torch_impl.rope import Rope, Yarn
from torch_impl.xs_rolling import XsRolling

TOLERANCE = 1e-10
HIDDEN = 24
HISTORIES = 7  # row i takes history i mod 7

LAYERS = {
    "csa": {"d": 32, "ratio": 4, "span": 2, "rope_width": 16},
    "hca-8": {"d": 32, "ratio": 8, "span": 1, "rope_width": 16},
    "indexer": {"d": 128, "ratio": 4, "span": 2, "rope_width": 64},
    "hca-128": {"d": 32, "ratio": 128, "span": 1, "rope_width": 16},
}
RETAINS, PLANS = ("hidden", "projected"), ("grouped", "gathered")

Cut = tuple[int, int, int]

EVERY_CUT_OF_40: list[Cut] = [(a, b - a, 40 - b) for a, b in combinations_with_replacement(range(41), 2)]
EDGES_OF_300 = (0, 1, 127, 128, 129, 200, 255, 256, 257, 299, 300)
EDGE_CUTS_OF_300: list[Cut] = [(a, b - a, 300 - b) for a, b in combinations_with_replacement(EDGES_OF_300, 2)]


@dataclass(frozen=True)
class Case:
    """One layer on both sides, and histories [HISTORIES, T, H] with the blocks [HISTORIES, n, d] they make."""

    weights: CompressorWeights
    histories: np.ndarray
    blocks: np.ndarray


def case(layer: str, yarn: bool, tokens: int = 40, seed: int = 11) -> Case:
    rng = np.random.default_rng(seed)
    stretch = reference_rope.Yarn() if yarn else None
    weights = CompressorWeights.random(rng, hidden_width=HIDDEN, yarn=stretch, **LAYERS[layer])
    assert (weights.bias != 0).all()
    histories = rng.standard_normal((HISTORIES, tokens, HIDDEN))
    return Case(weights, histories, np.array([weights.blocks(hidden) for hidden in histories]))


def production(weights: CompressorWeights) -> Compressor:
    """The same layer in torch float64; the rope is built anew from its parameters, never from frequencies."""
    yarn = None
    if weights.yarn is not None:
        given = weights.yarn
        yarn = Yarn(given.factor, given.original_length, given.beta_fast, given.beta_slow)
    tensors = [torch.from_numpy(w.copy()) for w in (weights.wkv, weights.wgate, weights.bias, weights.gamma)]
    return Compressor(*tensors, Rope(weights.rope_width, weights.theta, yarn), weights.eps)


def cache(compressor: Compressor, rows: int, retain: str, plan: str) -> XsRolling:
    return XsRolling(compressor, Geometry(compressor.ratio, compressor.span), rows, retain=retain, plan=plan)


def advance_in_cuts(state: XsRolling, histories: np.ndarray, cuts: list[Cut]) -> None:
    """Feed row i the history i mod HISTORIES in the chunks of cuts[i]; what is beyond a chunk is NaN."""
    consumed = [0] * len(cuts)
    for step in range(3):
        n_new = [cut[step] for cut in cuts]
        xs = np.full((len(cuts), max(n_new), HIDDEN), np.nan)
        for row, n in enumerate(n_new):
            xs[row, :n] = histories[row % HISTORIES, consumed[row] : consumed[row] + n]
            consumed[row] += n
        state.advance(torch.from_numpy(xs), n_new)


def largest_difference(state: XsRolling, blocks: np.ndarray) -> float:
    live = np.stack([state.comp(row).numpy() for row in range(state.rows)])
    expected = blocks[np.arange(state.rows) % HISTORIES]
    assert live.shape == expected.shape
    return float(np.abs(live - expected).max())  # NaN stays NaN and is below no tolerance


def test_the_cuts_are_all_there():
    assert len(set(EVERY_CUT_OF_40)) == 861
    assert sum(min(cut) > 0 for cut in EVERY_CUT_OF_40) == 741
    assert all(sum(cut) == 40 for cut in EVERY_CUT_OF_40)


@pytest.mark.parametrize("yarn", [False, True], ids=["plain", "yarn"])
@pytest.mark.parametrize("layer", ["csa", "hca-8", "indexer"])
def test_blocks_agree_for_every_cut_of_40_tokens_into_three_chunks(layer, yarn):
    same = case(layer, yarn)
    for retain, plan in product(RETAINS, PLANS):
        state = cache(production(same.weights), len(EVERY_CUT_OF_40), retain, plan)
        advance_in_cuts(state, same.histories, EVERY_CUT_OF_40)
        assert largest_difference(state, same.blocks) < TOLERANCE, (retain, plan)


@pytest.mark.parametrize("yarn", [False, True], ids=["plain", "yarn"])
def test_blocks_agree_at_ratio_128_for_cuts_on_and_beside_the_block_edges(yarn):
    same = case("hca-128", yarn, tokens=300)
    for retain, plan in product(RETAINS, PLANS):
        state = cache(production(same.weights), len(EDGE_CUTS_OF_300), retain, plan)
        advance_in_cuts(state, same.histories, EDGE_CUTS_OF_300)
        assert largest_difference(state, same.blocks) < TOLERANCE, (retain, plan)


@pytest.mark.parametrize("retain", RETAINS)
@pytest.mark.parametrize("layer", ["csa", "hca-8"])
def test_blocks_agree_on_the_uniform_path_for_every_cut_of_40_tokens_into_three_chunks(layer, retain):
    same = case(layer, yarn=True)
    compressor = production(same.weights)
    for cut in EVERY_CUT_OF_40:
        state = cache(compressor, 2, retain, "gathered")
        advance_in_cuts(state, same.histories, [cut, cut])
        assert largest_difference(state, same.blocks) < TOLERANCE, cut


@pytest.mark.parametrize("span", [1, 2])
@pytest.mark.parametrize("ratio", [1, 2, 3, 5, 7])
def test_blocks_agree_at_ratios_that_no_model_has(ratio, span):
    rng = np.random.default_rng([ratio, span])
    weights = CompressorWeights.random(rng, hidden_width=HIDDEN, d=8, ratio=ratio, span=span, rope_width=4)
    histories = rng.standard_normal((HISTORIES, 40, HIDDEN))
    blocks = np.array([weights.blocks(hidden) for hidden in histories])
    cuts = EVERY_CUT_OF_40[::17]
    for retain, plan in product(RETAINS, PLANS):
        state = cache(production(weights), len(cuts), retain, plan)
        advance_in_cuts(state, histories, cuts)
        assert largest_difference(state, blocks) < TOLERANCE, (retain, plan)


@pytest.mark.parametrize("layer", ["csa", "hca-8", "indexer"])
def test_the_retained_projections_are_those_of_the_reference_without_the_position_bias(layer):
    same = case(layer, yarn=True)
    cuts = EVERY_CUT_OF_40[::41]
    state = cache(production(same.weights), len(cuts), "projected", "gathered")
    advance_in_cuts(state, same.histories, cuts)
    tail = state.tail().numpy()
    for row in range(len(cuts)):
        kv, z = same.weights.project(same.histories[row % HISTORIES])
        width = state.tokens[row] - state.base[row]
        d, span = same.weights.d, same.weights.span
        series = [part[-width:, s * d : (s + 1) * d] for s in range(span) for part in (kv, z)]
        assert np.abs(tail[row, -width:] - np.concatenate(series, axis=1)).max() < TOLERANCE


@pytest.mark.parametrize("layer", ["csa", "hca-8"])
def test_tokens_and_bases_are_those_the_model_of_promises_gives(layer):
    same = case(layer, yarn=True)
    state = cache(production(same.weights), len(EVERY_CUT_OF_40), "hidden", "gathered")
    advance_in_cuts(state, same.histories, EVERY_CUT_OF_40)
    for row, cut in enumerate(EVERY_CUT_OF_40):
        promises = Promises(same.weights.ratio, same.weights.span, state.geometry.margin)
        for n in cut:
            promises.advance(n)
        assert promises.violations(state.tokens[row], state.base[row]) == []


def spoiled(weights: CompressorWeights, fault: str) -> CompressorWeights:
    d = weights.d
    faults = {
        "bias one slot late": {"bias": np.roll(weights.bias, 1, axis=0)},
        "no bias": {"bias": np.zeros_like(weights.bias)},
        "series exchanged": {"wkv": np.roll(weights.wkv, d, axis=0)},
        "no yarn": {"yarn": None},
        "another theta": {"theta": 10000.0},
        "no epsilon": {"eps": 0.0},
    }
    return replace(weights, **faults[fault])


@pytest.mark.parametrize(
    "fault", ["bias one slot late", "no bias", "series exchanged", "no yarn", "another theta", "no epsilon"]
)
def test_the_agreement_would_notice_a_wrong_layer(fault):
    same = case("csa", yarn=True)
    state = cache(production(spoiled(same.weights, fault)), HISTORIES, "projected", "gathered")
    advance_in_cuts(state, same.histories, [(3, 20, 17)] * HISTORIES)
    assert largest_difference(state, same.blocks) > 1000 * TOLERANCE


@pytest.mark.parametrize("token", [0, 17, 39])
def test_the_agreement_would_notice_one_wrong_token(token):
    same = case("csa", yarn=True)
    wrong = same.histories.copy()
    wrong[3, token] = wrong[4, token]
    state = cache(production(same.weights), HISTORIES, "hidden", "grouped")
    advance_in_cuts(state, wrong, [(3, 20, 17)] * HISTORIES)
    assert largest_difference(state, same.blocks) > 1000 * TOLERANCE
