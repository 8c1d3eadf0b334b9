"""Data that cannot tell right from wrong proves nothing: would one wrong key have shown, and no rounding?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from test_layers import FIXTURES, played_of

from harness.caches.compare import MARGIN_MIN
from harness.subjects.v4_model import models, of_geometry, words
from reference_impl.attention import ROPES, AttentionWeights, Visible, attend
from reference_impl.compressor import rms_norm
from reference_impl.indexer import gap
from reference_impl.model import Model
from reference_impl.rope import inverse_frequencies, rotate

GAP_MIN = 1e-6
AGREEMENT = 1e-9  # of a layer's largest value; plays agree within a two-thousandth of it


def inputs(model: Model, ids: list[int]) -> Iterator[tuple[AttentionWeights, np.ndarray]]:
    """Each layer of a model with what its attention is given, [T, H]."""
    stream = model.embed[words(np.array(ids))]
    for block in model.blocks:
        yield block.attention, rms_norm(stream, block.attn_norm, block.eps)
        stream = block(stream)


def wrong_ones(seen: Visible, tokens: int, blocks: int, window: int) -> Iterator[Visible]:
    """What a query would attend to with one key too few or one too many."""
    raw, picked = list(seen.raw), list(seen.blocks)
    for each in raw:
        yield Visible([t for t in raw if t != each], seen.blocks)
    for each in picked:
        yield Visible(seen.raw, tuple(b for b in picked if b != each))
    for each in (raw[-1] - window, raw[-1] + 1):
        if 0 <= each < tokens:
            yield Visible([*raw, each], seen.blocks)
    for each in range(blocks):
        if each not in picked:
            yield Visible(seen.raw, (*picked, each))


def margin(layer: AttentionWeights, hidden: np.ndarray) -> float:
    """How far one wrong key moves the output of some query, at least, in units of AGREEMENT of the largest value."""
    queries, keys, blocks = layer.queries(hidden), layer.keys(hidden), layer.blocks(hidden)
    frequencies = inverse_frequencies(layer.rope_width, *ROPES[layer.kind])
    within, least = AGREEMENT * float(np.abs(layer(hidden)).max()), np.inf
    for t, seen in enumerate(layer.attended(hidden)):
        reads = [
            attend(queries[t], np.concatenate([keys[list(one.raw)], blocks[list(one.blocks)]]), layer.sink)
            for one in (seen, *wrong_ones(seen, len(hidden), len(blocks), layer.window))
        ]
        outputs = layer.output(rotate(np.array(reads), -t, frequencies))
        least = min(least, float(np.abs(outputs[1:] - outputs[0]).max(axis=1).min()) / within)
    return least


def least_gap(layer: AttentionWeights, hidden: np.ndarray) -> float:
    """How far the last pick of some query is above the best block left out, at least."""
    if layer.indexer is None:
        return np.inf
    scores = layer.indexer.scores(hidden, layer.residual(hidden))
    return min(gap(own, (t + 1) // layer.ratio, layer.topk) for t, own in enumerate(scores))


def require_told_apart(layer: AttentionWeights, hidden: np.ndarray) -> None:
    """Raise ValueError for data on which a wrong key or a wrong pick could pass for rounding."""
    far, apart = margin(layer, hidden), least_gap(layer, hidden)
    if far < MARGIN_MIN or apart < GAP_MIN:
        raise ValueError(
            f"one wrong key moves an output by {far:.3g} times {AGREEMENT} and a pick is decided by {apart:.3g}; they should be "
            f"{MARGIN_MIN:.0f} and {GAP_MIN} at least; choose other weights or another seed"
        )


@pytest.mark.parametrize("fixture", FIXTURES)
def test_one_wrong_key_would_show_and_no_pick_is_decided_by_rounding(fixture: str):
    played = played_of("float64", fixture)
    _, model = of_geometry(played.geometry)
    for member in played.members:
        for layer, hidden in inputs(model, member.history):
            require_told_apart(layer, hidden)


def test_data_that_cannot_tell_is_refused():
    _, model = models(4, 8)
    hidden = np.random.default_rng(1).standard_normal((40, model.config.hidden_width))
    layer = model.blocks[1].attention
    require_told_apart(layer, hidden)
    blind = replace(layer, kv_norm=1000 * layer.kv_norm)  # one key takes all of the mass
    with pytest.raises(ValueError, match="moves an output by"):
        require_told_apart(blind, hidden)
    undecided = replace(layer, indexer=replace(layer.indexer, weights=0 * layer.indexer.weights))
    with pytest.raises(ValueError, match="is decided by 0"):
        require_told_apart(undecided, hidden)
