"""What a query sees and what it reads, against plain Python and values worked out by hand."""

from __future__ import annotations

import cmath
import math
from dataclasses import replace

import numpy as np
import pytest

from reference_impl.attention import AttentionWeights, attend, visible
from reference_impl.compressor import rms_norm
from reference_impl.model import ModelConfig, attention_layer, attention_shapes, random_weights

SMALL = ModelConfig(
    schedule=("sliding", "csa", "hca"), vocab=11, hidden_width=6, intermediate=5, heads=4, d=10, rope_width=8,
    window=5, q_lora=7, o_groups=2, o_lora=4, index_heads=3, index_d=9, topk=2, csa_ratio=3, hca_ratio=4,
)  # fmt: skip
KINDS = SMALL.schedule


def layer(kind, seed=0) -> AttentionWeights:
    weights = random_weights(np.random.default_rng(seed), SMALL)
    start = f"layers.{KINDS.index(kind)}.attn."
    return attention_layer(
        SMALL, kind, {name: weights[start + name] for name in attention_shapes(SMALL, kind)}
    )


def history(tokens: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((tokens, SMALL.hidden_width))


def dot(a, b) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def normed(x: list[float], gamma: list[float]) -> list[float]:
    return [g * a / math.sqrt(dot(x, x) / len(x) + 1e-6) for a, g in zip(x, gamma, strict=True)]


def turned(x: list[float], position: int, kind: str) -> list[float]:
    """The last 8 channels as 4 complex numbers, each turned by its own frequency."""
    out = list(x)
    start = len(x) - 8
    for i in range(4):
        f = 10000.0 ** (-2 * i / 8)
        if kind != "sliding":
            # ln(65536 / 64 pi) * 8 / (2 ln 160000) = 1.93 and ln(65536 / 2 pi) * 8 / (2 ln 160000) = 3.09
            f = 160000.0 ** (-2 * i / 8)
            ramp = min(max((i - 1) / (4 - 1), 0), 1)
            f = f / 16 * ramp + f * (1 - ramp)
        number = complex(x[start + 2 * i], x[start + 2 * i + 1]) * cmath.exp(1j * position * f)
        out[start + 2 * i], out[start + 2 * i + 1] = number.real, number.imag
    return out


def layer_in_plain_python(weights: AttentionWeights, hidden: np.ndarray) -> list[list[float]]:
    """The formulas of a layer with lists, loops and math; only its blocks, tested apart, are taken as they are."""
    kind, tokens = weights.kind, hidden.tolist()
    blocks = weights.blocks(hidden).tolist()
    ratio = {"sliding": 10**9, "csa": 3, "hca": 4}[kind]
    residuals = [normed([dot(row, h) for row in weights.q_a], weights.q_norm) for h in tokens]
    keys = [
        turned(normed([dot(row, h) for row in weights.kv], weights.kv_norm), t, kind)
        for t, h in enumerate(tokens)
    ]
    if weights.indexer:
        index_keys = weights.indexer.compressor.blocks(hidden).tolist()
    outputs = []
    for t, (h, residual) in enumerate(zip(tokens, residuals, strict=True)):
        seen = [b for b in range(len(blocks)) if (b + 1) * ratio - 1 <= t]
        if weights.indexer:
            score = dict.fromkeys(seen, 0.0)
            for head in range(3):
                rows = weights.indexer.q_b[9 * head : 9 * head + 9]
                query = turned([dot(row, residual) for row in rows], t, kind)
                for b in seen:
                    agreement = max(dot(query, index_keys[b]), 0.0)
                    score[b] += dot(weights.indexer.weights[head], h) * agreement
            seen = sorted(seen, key=lambda b: -score[b])[:2]
        read = [keys[j] for j in range(t + 1) if t - j < 5] + [blocks[b] for b in seen]
        heads = []
        for head in range(4):
            rows = weights.q_b[10 * head : 10 * head + 10]
            query = turned(normed([dot(row, residual) for row in rows], [1.0] * 10), t, kind)
            mass = [math.exp(dot(query, key) / math.sqrt(10)) for key in read]
            total = math.fsum(mass) + math.exp(weights.sink[head])
            mixed = [dot(mass, [key[c] for key in read]) / total for c in range(10)]
            heads.append(turned(mixed, -t, kind))
        first, second = heads[0] + heads[1], heads[2] + heads[3]
        low = [dot(row, first) for row in weights.o_a[:4]] + [dot(row, second) for row in weights.o_a[4:]]
        outputs.append([dot(row, low) for row in weights.o_b])
    return outputs


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_equals_a_transcription_in_plain_python(kind):
    weights, hidden = layer(kind), history(17)
    expected = np.array(layer_in_plain_python(weights, hidden))
    assert np.abs(expected).max() > 0.1
    assert weights(hidden) == pytest.approx(expected, rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_no_query_depends_on_a_later_token(kind):
    weights, hidden = layer(kind), history(17)
    whole = weights(hidden)
    for t in range(17):
        assert weights(hidden[: t + 1])[t] == pytest.approx(whole[t], rel=1e-12, abs=1e-13)


@pytest.mark.parametrize(
    "position, raw, blocks",
    [
        (0, [0], []),
        (2, [0, 1, 2], []),  # r - 2: one token short of block 0
        (3, [0, 1, 2, 3], [0]),  # r - 1: the query that completes block 0 sees it; the window is just full
        (4, [1, 2, 3, 4], [0]),  # token 0 is `window` back, and gone
        (6, [3, 4, 5, 6], [0]),
        (7, [4, 5, 6, 7], [0, 1]),
        (8, [5, 6, 7, 8], [0, 1]),
    ],
)
def test_what_is_visible_at_ratio_4_and_window_4(position, raw, blocks):
    for kind in ("csa", "hca"):
        seen = visible(position, kind, window=4, ratio=4)
        assert (list(seen.raw), list(seen.blocks)) == (raw, blocks)
    assert list(visible(position, "sliding", window=4).raw) == raw
    assert visible(position, "sliding", window=4).blocks == ()


@pytest.mark.parametrize("position, blocks", [(126, 0), (127, 1), (254, 1), (255, 2), (256, 2)])
def test_a_block_of_128_tokens_is_visible_from_its_last_token_on(position, blocks):
    assert visible(position, "hca", window=128, ratio=128).blocks == tuple(range(blocks))


def test_a_window_of_128_drops_token_0_at_position_128():
    assert visible(127, "sliding", window=128).raw == range(128)
    assert visible(128, "sliding", window=128).raw == range(1, 129)


def test_a_window_of_1_holds_the_query_alone():
    assert [list(visible(t, "sliding", window=1).raw) for t in range(3)] == [[0], [1], [2]]


def test_a_selection_is_asked_for_the_position_and_its_visible_blocks():
    asked = []

    def last_two(position, blocks):
        asked.append((position, blocks))
        return list(blocks)[:-3:-1]

    assert visible(14, "csa", window=4, ratio=4, select=last_two).blocks == (1, 2)
    assert visible(2, "csa", window=4, ratio=4, select=last_two).blocks == ()
    assert asked == [(14, range(3)), (2, range(0))]


@pytest.mark.parametrize("chosen", [[3], [-1], [0, 0]])
def test_a_selection_outside_the_visible_blocks_or_twice_the_same_is_refused(chosen):
    with pytest.raises(ValueError, match=r"should be some of the 3 visible blocks"):
        visible(14, "csa", window=4, ratio=4, select=lambda position, blocks: chosen)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ((-1, "sliding", 4), "position is -1"),
        ((0, "sliding", 0), "window 0"),
        ((0, "sliding", 4, 4), "a sliding layer has none"),
        ((0, "csa", 4), "a compressed layer has one"),
        ((0, "hca", 4, -4), "ratio is -4"),
        ((9, "hca", 4, 4, lambda position, blocks: blocks), "only CSA layers select"),
    ],
)
def test_what_no_query_can_see_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        visible(*arguments)


def test_a_query_with_nothing_but_its_sink_reads_zero():
    assert attend([[2.0, 0.0]], np.zeros((0, 2)), [3.0]).tolist() == [[0.0, 0.0]]


def test_one_key_is_read_by_its_share_against_the_sink():
    # d = 4, so the logit is 2 * 1 / sqrt(4) = 1: against a sink of 1 half of the mass, against 0 e / (e + 1).
    query, keys = [[2.0, 0.0, 0.0, 0.0]] * 2, [[1.0, 3.0, 0.0, -5.0]]
    read = attend(query, keys, [1.0, 0.0])
    assert read[0].tolist() == [0.5, 1.5, 0.0, -2.5]
    assert read[1] == pytest.approx(0.7310585786300049 * np.array(keys[0]), rel=1e-15)


def test_raw_keys_and_blocks_share_one_softmax_with_the_sink():
    # Three keys of logit 0 and a sink of 0: each weighs a quarter, wherever it came from.
    keys = [[0.0, 4.0], [0.0, 8.0], [0.0, 12.0]]
    assert attend([[1.0, 0.0]], keys, [0.0]).tolist() == [[0.0, 6.0]]


def test_a_zero_key_takes_its_part_of_the_softmax():
    one = attend([[1.0, 0.0]], [[0.0, 9.0]], [0.0])
    beside_a_zero_key = attend([[1.0, 0.0]], [[0.0, 9.0], [0.0, 0.0]], [0.0])
    assert one.tolist() == [[0.0, 4.5]]
    assert beside_a_zero_key == pytest.approx(np.array([[0.0, 3.0]]), rel=1e-15)


def test_huge_logits_and_sinks_overflow_nowhere():
    with np.errstate(over="raise", invalid="raise"):
        assert attend([[1e4, 0.0]], [[1e4, 7.0]], [0.0]).tolist() == [[1e4, 7.0]]
        assert attend([[1e4, 0.0]], [[-1e4, 7.0]], [1e8]).tolist() == [[0.0, 0.0]]
        assert attend([[1e4, 0.0]], np.zeros((0, 2)), [1e8]).tolist() == [[0.0, 0.0]]


def test_a_value_read_at_its_own_position_arrives_unturned():
    weights = replace(layer("sliding"), window=1, sink=np.full(4, -1e9))
    hidden = history(6)
    plain = rms_norm(hidden @ weights.kv.T, weights.kv_norm, 1e-6)
    for head in range(4):
        assert weights.read(hidden)[:, head] == pytest.approx(plain, rel=1e-12, abs=1e-13)


def test_what_is_read_depends_on_distances_and_on_no_position():
    weights, last = layer("sliding"), history(5)
    alone = weights(last)[-1]
    for earlier in (1, 2, 77):
        moved = weights(np.concatenate([history(earlier, seed=9), last]))[-1]
        assert moved == pytest.approx(alone, rel=1e-9, abs=1e-10)


def test_a_block_is_read_by_its_distance_too():
    # The HCA layer's blocks are moved by hand, one ratio later, and so is the query.
    weights = layer("hca")
    query, keys = weights.queries(np.tile(history(1), (9, 1))), weights.compressor
    pooled = keys.pooled(history(4))[0]
    reads = []
    for j, t in ((0, 4), (1, 8)):
        read = attend(query[t], keys.finish(pooled, j)[np.newaxis], weights.sink)
        reads.append([turned(head, -t, "hca") for head in read.tolist()])
    assert np.array(reads[0]) == pytest.approx(np.array(reads[1]), rel=1e-11, abs=1e-12)


def test_an_empty_history_has_an_empty_output():
    for kind in KINDS:
        assert layer(kind)(np.zeros((0, 6))).shape == (0, 6)


@pytest.mark.parametrize("name", ["q_a", "q_b", "kv", "o_a", "o_b"])
def test_a_transposed_weight_is_refused_by_name(name):
    weights = layer("sliding")
    with pytest.raises(ValueError, match=f"^{name} has shape"):
        replace(weights, **{name: getattr(weights, name).T})


@pytest.mark.parametrize(
    "kind, change, sentence",
    [
        ("sliding", {"kind": "linear"}, "kind is 'linear'; it should be one of sliding, csa, hca"),
        ("sliding", {"kind": "hca"}, "was given no compressor"),
        ("hca", {"kind": "sliding"}, "was given a compressor"),
        ("csa", {"indexer": None}, "was given no indexer"),
        ("csa", {"topk": 0}, "topk 0"),
        ("hca", {"topk": 2}, "topk 2"),
        ("hca", {"kind": "csa", "indexer": layer("csa").indexer, "topk": 2}, "the compressor has H, ratio, span"),
        ("sliding", {"window": 0}, "window 0"),
        ("sliding", {"groups": 3}, "should divide the 4 heads"),
        ("sliding", {"rope_width": 12}, "at most the head width, 10"),
        ("sliding", {"sink": np.zeros((4, 1))}, "sink has shape"),
    ],
)  # fmt: skip
def test_parts_that_do_not_make_a_layer_are_refused(kind, change, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(layer(kind), **change)


def test_a_batch_axis_is_refused():
    with pytest.raises(ValueError, match=r"should be \[T, 6\]"):
        layer("hca")(np.zeros((1, 3, 6)))
    with pytest.raises(ValueError, match="pass one query of one sequence"):
        attend(np.zeros((1, 4, 2)), np.zeros((3, 2)), np.zeros(4))
