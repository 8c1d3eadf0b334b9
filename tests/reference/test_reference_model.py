"""A whole small model: every weight counts, no logit knows a later token, and its layers are those tested alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from reference_impl.model import (
    Model,
    ModelConfig,
    attention_layer,
    attention_shapes,
    random_weights,
    shapes,
)

CONFIG = ModelConfig(
    schedule=("sliding", "csa", "hca", "csa"), vocab=31, hidden_width=24, intermediate=20, heads=4, d=12,
    rope_width=8, window=6, q_lora=10, o_groups=2, o_lora=5, index_heads=4, index_d=8, topk=2, hca_ratio=8,
)  # fmt: skip
WEIGHTS = random_weights(np.random.default_rng(0), CONFIG)
TOKENS = np.random.default_rng(1).integers(0, CONFIG.vocab, 40)


def one_layer(kind: str) -> tuple[Model, dict[str, np.ndarray]]:
    config = replace(CONFIG, schedule=(kind,))
    weights = random_weights(np.random.default_rng(2), config)
    return Model(config, weights), weights


def test_a_changed_token_changes_its_own_logits_and_none_before_it():
    model = Model(CONFIG, WEIGHTS)
    right = model.logits(TOKENS)
    assert right.shape == (40, 31)
    for t in range(40):
        changed = TOKENS.copy()
        changed[t] = (changed[t] + 1) % CONFIG.vocab
        off = np.abs(model.logits(changed) - right).max(axis=1)
        assert off[:t].max(initial=0.0) < 1e-12
        assert off[t] > 1e-3


def test_a_token_out_of_the_window_is_still_heard_through_blocks():
    # Token 0 left every window long ago; the stack of sliding layers alone reaches 4 * 5 tokens back.
    changed = TOKENS.copy()
    changed[0] = (changed[0] + 1) % CONFIG.vocab
    off = [
        np.abs(Model(config, weights).logits(changed) - Model(config, weights).logits(TOKENS))[-1].max()
        for config in (replace(CONFIG, schedule=("sliding",) * 4), replace(CONFIG, schedule=("hca",) * 4))
        for weights in [random_weights(np.random.default_rng(2), config)]
    ]
    assert off[0] == 0.0
    assert off[1] > 1e-6


@pytest.mark.parametrize("name", shapes(CONFIG))
def test_every_weight_counts(name):
    # Drawn anew, not scaled: a norm or a choice by rank would hide a mere factor.
    other = random_weights(np.random.default_rng(7), CONFIG)[name]
    off = Model(CONFIG, WEIGHTS | {name: other}).logits(TOKENS) - Model(CONFIG, WEIGHTS).logits(TOKENS)
    assert np.abs(off).max() > 1e-3


@pytest.mark.parametrize("kind", ["sliding", "csa", "hca"])
def test_a_model_of_one_layer_is_that_attention_in_a_plain_residual_stream(kind):
    model, weights = one_layer(kind)

    def normed(x, gamma):
        return [g * a / math.sqrt(math.fsum(x * x) / len(x) + 1e-6) for a, g in zip(x, gamma, strict=True)]

    names = attention_shapes(model.config, kind)
    attention = attention_layer(
        model.config, kind, {name: weights[f"layers.0.attn.{name}"] for name in names}
    )
    embedded = weights["embed"][TOKENS]
    attended = embedded + attention(np.array([normed(x, weights["layers.0.attn_norm"]) for x in embedded]))
    gate, up, down = (weights[f"layers.0.{name}"] for name in ("gate", "up", "down"))
    logits = model.logits(TOKENS)
    for t, x in enumerate(attended):
        inner = np.array(normed(x, weights["layers.0.mlp_norm"]))
        units = []
        for a, b in zip(gate, up, strict=True):
            opened = math.fsum(a * inner)
            units.append(opened / (1 + math.exp(-opened)) * math.fsum(b * inner))
        after = x + np.array([math.fsum(row * units) for row in down])
        final = np.array(normed(after, weights["norm"]))
        expected = [math.fsum(row * final) for row in weights["head"]]
        assert logits[t] == pytest.approx(np.array(expected), rel=1e-10, abs=1e-12)


def test_one_eps_and_each_layer_its_own_ratio_reach_every_part():
    model = Model(replace(CONFIG, eps=0.5), WEIGHTS)
    compressors = []
    for block in model.blocks:
        assert (block.eps, block.attention.eps) == (0.5, 0.5)
        compressors += [block.attention.compressor] if block.attention.compressor else []
        compressors += [block.attention.indexer.compressor] if block.attention.indexer else []
    assert [(each.ratio, each.span, each.d, each.eps) for each in compressors] == [
        (4, 2, 12, 0.5), (4, 2, 8, 0.5), (8, 1, 12, 0.5), (4, 2, 12, 0.5), (4, 2, 8, 0.5),
    ]  # fmt: skip


def test_a_greedy_continuation_takes_the_likeliest_token_again_and_again():
    model = Model(CONFIG, WEIGHTS)
    found = model.greedy(TOKENS[:9], 7)
    assert len(found) == 7
    sequence = [*TOKENS[:9].tolist(), *found]
    # No row depends on a later token, so one pass over the whole answer says what every step should have chosen.
    assert np.argmax(model.logits(sequence), axis=1)[8:-1].tolist() == found
    assert model.greedy(TOKENS[:9], 0) == []


def test_of_equal_logits_the_lower_token_is_chosen():
    level = Model(CONFIG, WEIGHTS | {"head": np.zeros_like(WEIGHTS["head"])})
    assert level.greedy([5], 3) == [0, 0, 0]


def test_an_empty_sequence_has_no_logits_and_no_continuation():
    model = Model(CONFIG, WEIGHTS)
    assert model.logits([]).shape == (0, 31)
    with pytest.raises(ValueError, match="no token to continue"):
        model.greedy([], 1)


@pytest.mark.parametrize("tokens", [[0, 31], [-1], [[0, 1]]])
def test_tokens_that_are_none_are_refused(tokens):
    with pytest.raises(ValueError, match="each from 0 to 30"):
        Model(CONFIG, WEIGHTS).logits(tokens)


def test_weights_that_do_not_fit_are_refused_by_name():
    without = {name: array for name, array in WEIGHTS.items() if name != "norm"}
    for weights, sentence in (
        (without, r"weights \['norm'\] are missing"),
        (WEIGHTS | {"layers.9.up": WEIGHTS["norm"]}, r"\['layers.9.up'\] are not known"),
        (WEIGHTS | {"layers.2.down": WEIGHTS["layers.2.up"]}, r"layers.2.down has shape \(20, 24\)"),
        (WEIGHTS | {"layers.1.attn.indexer.q_b": WEIGHTS["norm"]}, r"layers.1.attn.indexer.q_b has shape"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Model(CONFIG, weights)


@pytest.mark.parametrize("change, sentence", [
    ({"schedule": ()}, "at least one layer"),
    ({"schedule": ("csa", "linear")}, "each sliding, csa, hca"),
    ({"topk": 0}, "topk is 0"),
    ({"o_groups": 3}, "should divide the 4 heads"),
    ({"rope_width": 10}, "at most d=12 and index_d=8"),
    ({"rope_width": 7}, "should be even"),
])  # fmt: skip
def test_impossible_sizes_are_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(CONFIG, **change)
