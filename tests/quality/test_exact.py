"""Exact data: what the proof says is true token by token, and what it cannot prove is refused."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from harness import identity
from harness.rows import exact
from harness.rows.calibration import require_told_apart
from harness.rows.defaults import PLANS, RETAINS, SUBJECT
from harness.rows.exact import QUESTIONS, Proof, denominator, exact_weights, numerators
from harness.rows.fixture import FixtureError, default_folder, dump, from_mapping, load_folder
from harness.rows.formats import Format
from harness.rows.play import play
from harness.rows.schedule import Advance, Fixture, Prefill, Rollback, Values
from harness.rows.subject import Array, Setup, Weights, load
from harness.rows.trace import Trace
from harness.subjects.numpy_reference import oracle
from harness.subjects.xs_rolling import real_compressor
from reference_impl.compressor import CompressorWeights
from torch_impl.compressor import Compressor
from torch_impl.step import RowSteps

EXACT = {name: each for name, each in load_folder(default_folder()).items() if each.values.data == "exact"}
SMALL = Values("float32", hidden_width=32, block_width=128, data="exact")
STEPS = (Prefill((7, 3)), Advance((1, 2)), Rollback(0, 2), Advance((2, 3)))
EVENTS = 18  # that STEPS feed
FORMATS: tuple[Format, ...] = ("float64", "float32", "bfloat16")


def small(**values: object) -> Fixture:
    """Two CSA rows, EVENTS events in 32 channels."""
    return Fixture(
        "small", "Nothing.", 4, 2, STEPS, facts=("draft_replaced",), values=replace(SMALL, **values)
    )  # type: ignore[arg-type]


def layer(weights: Weights, ratio: int, span: int) -> CompressorWeights:
    return CompressorWeights(
        weights.wkv, weights.wgate, weights.bias, weights.gamma, ratio=ratio, span=span, rope_width=weights.rope_width
    )  # fmt: skip


def pooled(reference: CompressorWeights, events: list[int], block: int) -> Array:
    """Pooled value [d] of a block of the history that feeds these events, by number."""
    hidden = np.eye(reference.hidden_width)[events]
    return reference.pool(*reference.project(hidden), block)


def swapped(events: list[int], one: int, other: int) -> list[int]:
    new = list(events)
    new[one], new[other] = new[other], new[one]
    return new


@pytest.mark.parametrize("block", [0, 1])
def test_any_token_of_a_block_replaced_by_any_other_event_is_seen(block: int) -> None:
    reference = layer(exact_weights(small()), 4, 2)
    events = list(np.random.default_rng(0).permutation(EVENTS)[:8])
    right = pooled(reference, events, block)
    tried = 0
    for slot in range(4 * (block + 1)):
        for event in range(EVENTS):
            if event != events[slot]:
                wrong = pooled(reference, [*events[:slot], event, *events[slot + 1 :]], block)
                who = [c for c in range(128) if QUESTIONS[c % 4] == "who contributed"]
                assert (wrong[who] != right[who]).any()
                tried += 1
    assert tried == 4 * (block + 1) * (EVENTS - 1)


def test_any_two_tokens_of_a_block_replaced_by_any_two_events_are_seen() -> None:
    reference = layer(exact_weights(small()), 4, 2)
    events = list(np.random.default_rng(3).permutation(EVENTS)[:8])
    kv, z = reference.project(np.eye(32))
    right = reference.pool(kv[events], z[events], 1)
    for one, other in itertools.combinations(range(8), 2):
        for pair in itertools.product(range(EVENTS), repeat=2):
            wrong = list(events)
            wrong[one], wrong[other] = pair
            assert wrong == events or (reference.pool(kv[wrong], z[wrong], 1) != right).any()


def test_any_two_tokens_of_a_block_exchanged_are_seen_by_order_and_by_nothing_else() -> None:
    reference = layer(exact_weights(small()), 4, 2)
    events = list(np.random.default_rng(1).permutation(EVENTS)[:8])
    right = pooled(reference, events, 1)
    order = np.array([QUESTIONS[c % 4] == "in which order" for c in range(128)])
    for one in range(8):
        for other in range(one):
            off = pooled(reference, swapped(events, one, other), 1) != right
            assert off[order].any()
            if one // 4 == other // 4:  # within a group each token keeps its series, so who and gates stay
                assert not off[~order].any()


def test_tokens_exchanged_at_a_distance_of_four_are_seen_at_ratio_128() -> None:
    reference = layer(exact_weights(EXACT["exact_hca_float32"]), 128, 1)
    events = list(range(100, 228))
    right = pooled(reference, events, 0)
    for one in range(124):
        assert (pooled(reference, swapped(events, one, one + 4), 0) != right).any()


def test_every_token_of_a_block_has_a_gate_that_counts() -> None:
    """In some channel it leads, so a block would be another if its gate were lost."""
    reference = layer(exact_weights(EXACT["exact_csa_float32"]), 4, 2)
    events = list(range(8))
    kv, z = reference.project(np.eye(reference.hidden_width)[events])
    right = reference.pool(kv, z, 1)
    for token in range(8):
        silent = z.copy()
        silent[token] = 0
        assert (reference.pool(kv, silent, 1) != right).any()


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize(("ratio", "span"), [(4, 2), (8, 1), (128, 1), (1, 2)])
def test_production_pools_integers_and_a_finished_block_says_which(
    ratio: int, span: int, dtype: Format
) -> None:
    tokens = 2 * ratio
    values = Values(dtype, 256 // span, 512, 64, "exact")
    given = Fixture("integers", "Nothing.", ratio, span, (Prefill((tokens,)),), values=values)
    assert isinstance(require_told_apart(given, oracle), Proof)
    weights = exact_weights(given)
    reference, production = layer(weights, ratio, span), real_compressor(weights, ratio, span)
    hidden = np.eye(256 // span)[np.random.default_rng(2).permutation(256 // span)[:tokens]]
    over = denominator(ratio, span)
    right = reference.pooled(hidden) * over
    assert (right == np.rint(right)).all() and np.abs(right).max() == over
    halves = production.project(torch.from_numpy(hidden).to(production.block_dtype))
    for block in range(2):
        groups = [max(block + 1 - span + part, 0) for part in range(span)]
        window = torch.stack(
            [halves[group * ratio : (group + 1) * ratio, part] for part, group in enumerate(groups)]
        )
        made = production.pool(window[None].clone(), torch.tensor([block])).double().numpy()
        filled = np.concatenate([np.zeros((block, 512)), made])
        found = numerators(oracle.before_norm(weights, filled), ratio, span)[block]
        assert (found == right[block]).all()


def test_a_pooled_value_that_is_not_finite_equals_none() -> None:
    found = numerators(np.array([[np.nan, 1.0], [0.0, 1.0], [2.0, -1.0]]), 4, 1)
    assert np.isnan(found[:2]).all() and found[2].tolist() == [2, -1]


def blocks(fixture: Fixture, rows: list[int], plan: str, threads: int) -> list[bytes]:
    """What rows of 8 and more tokens hold in the end, fed beside each other in one batch."""
    implementation = load(SUBJECT)
    weights = exact_weights(fixture)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        batch = implementation.open(
            Setup(4, 2, 16, weights, {"retain": "projected", "plan": plan}), len(rows)
        )
        xs = np.stack([np.eye(fixture.values.hidden_width)[row * 8 : row * 8 + 8] for row in rows])
        batch.advance(xs[:, :5], [5] * len(rows))
        batch.advance(xs[:, 5:], [3] * len(rows))
        return [
            b"".join(batch.read(row)[part].tobytes() for part in ("comp", "kv", "z"))
            for row in range(len(rows))
        ]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("plan", PLANS)
def test_neither_threads_nor_kernels_nor_neighbours_change_a_bit(
    plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = EXACT["exact_csa_float32"]
    alone = {row: blocks(fixture, [row], plan, 1)[0] for row in range(16)}
    assert len(set(alone.values())) == 16
    for rows in ([3, 0], [5, 3, 1], list(range(16)), list(range(15, 2, -1))):
        for threads, onednn in itertools.product((1, 2), (False, True)):
            monkeypatch.setattr(torch.backends.mkldnn, "enabled", onednn)
            assert blocks(fixture, rows, plan, threads) == [alone[row] for row in rows]


def played(fixture: Fixture, plan: str = "gathered") -> Trace:
    return play(fixture, load(SUBJECT), oracle, {"retain": "projected", "plan": plan}, lane="values")


def test_a_row_mixed_up_with_its_neighbour_is_seen_and_says_who(monkeypatch: pytest.MonkeyPatch) -> None:
    gather = RowSteps._gather

    def of_the_row_before(self: RowSteps, *given: object) -> object:
        return gather(self, *given).roll(1, 0)  # type: ignore[arg-type]

    monkeypatch.setattr(RowSteps, "_gather", of_the_row_before)
    fixture = replace(small(), step=(Prefill((3, 7)), Advance((1, 1))))
    found = played(fixture).of("comp.values")
    assert {mismatch.row for mismatch in found} == {0, 1}
    said = "\n".join(found[0].said)
    assert "differ in some bit; none may" in said
    assert "other tokens contributed, or with other weights; channels that differ: who contributed " in said
    assert "wrong token: first wrong cell: block" in said


def test_a_stale_draft_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token that replaces a draft is not stored, so the ring keeps what was rolled back."""
    assert not played(small()).mismatches
    payload, calls = RowSteps._payload, []

    def of_the_draft(self: RowSteps, hidden: torch.Tensor) -> torch.Tensor:
        new = payload(self, hidden)
        if self.rows == 2:
            calls.append(new)
            if len(calls) == 3:  # after the rollback: its first token is fed what the draft had been
                return torch.cat([calls[0][6:7], new[1:]])
        return new

    monkeypatch.setattr(RowSteps, "_payload", of_the_draft)
    trace = played(small())
    assert {m.row for m in trace.of("tail.values")} == {0}
    assert {m.row for m in trace.of("comp.values")} == {0}


def changed_windows(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], torch.Tensor]
) -> list[str]:
    """What is said when every window [N, span, ratio, 2 * d] is changed before it is pooled."""
    pool = Compressor._pool
    monkeypatch.setattr(
        Compressor, "_pool", lambda self, windows, block: pool(self, change(windows.clone()), block)
    )
    trace = played(small())
    assert not trace.of("comp.values")  # the batch and each row alone are wrong in the same way
    return [line for mismatch in trace.of("comp.values@reference") for line in mismatch.said]


def test_two_tokens_exchanged_in_every_window_are_said_to_be_the_same_at_other_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = changed_windows(monkeypatch, lambda windows: windows[:, :, [1, 0, 2, 3]])
    told = [line for line in said if "channels that differ" in line]
    assert told and all(line.startswith("the same tokens contributed, at other slots") for line in told)
    assert all("who contributed 0 of 32, in which order " in line for line in told)


def test_gates_of_another_token_are_said_to_be_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    def gates_moved(windows: torch.Tensor) -> torch.Tensor:
        windows[..., 128:] = windows[..., 128:].roll(1, 2)
        return windows

    said = changed_windows(monkeypatch, gates_moved)
    told = [line for line in said if "channels that differ" in line]
    assert told and all(
        line.startswith("the same tokens contributed, at the same slots, with other gates") for line in told
    )
    assert all("who contributed 0 of 32, in which order 0 of 64, whose gate" in line for line in told)


def an_ulp_off_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Compressor._pool

    def off(self: Compressor, windows: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
        made = pool(self, windows, block)
        return made if len(block) == 1 else made.nextafter(torch.full_like(made, torch.inf))

    monkeypatch.setattr(Compressor, "_pool", off)


def test_a_last_bit_that_every_bound_lets_pass_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    an_ulp_off_in_a_batch(monkeypatch)
    fixture = replace(small(), step=(Prefill((4, 4)),))
    trace = played(fixture)
    assert len(trace.of("comp.values")) == 2 and not trace.of("comp.values@reference")
    assert (
        "the pooled values are the same: what differs is the norm or the rotation"
        in trace.of("comp.values")[0].said
    )
    assert not played(replace(fixture, values=replace(SMALL, data="normal"))).of("comp.values")


REFUSED = [
    ({"hidden_width": 17}, {}, "values.hidden_width is 17; exact data needs at least 18"),
    ({"block_width": 96}, {}, "values.block_width is 96; exact data needs a power of two"),
    ({}, {"ratio": 3}, "span * ratio is 6; exact data needs a power of two"),
    (
        {"block_width": 8192},
        {"ratio": 128, "span": 1},
        "squares of pooled values sum to as much as 33554432; in float32 exact data needs at most 16777216",
    ),
    (
        {"dtype": "bfloat16", "hidden_width": 129},
        {},
        "exact data has span * hidden_width = 258 different gates; bfloat16 holds 256 of them: "
        "take a hidden_width of at most 128",
    ),
    (
        {"dtype": "bfloat16"},
        {"ratio": 256, "span": 1},
        "pooled values are integers over 128; a block in bfloat16 says them over at most 64",
    ),
    ({"bias": "zero"}, {}, "values.bias is 'zero'; exact data brings its own position bias"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "geometry", "sentence"), REFUSED)
def test_data_that_would_not_be_exact_is_refused_with_number_and_limit(
    values: dict[str, object], geometry: dict[str, object], sentence: str
) -> None:
    raw = tomllib.loads(dump(small()))
    assert from_mapping("small", raw) == small()
    with pytest.raises(FixtureError) as refused:
        from_mapping("small", {**raw, **geometry, "values": {**raw["values"], **values}})
    assert f"small: {sentence}" in str(refused.value)


def test_events_that_share_their_signs_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = small(block_width=32)
    with pytest.raises(FixtureError) as refused:
        require_told_apart(narrow, oracle)
    problems = list(refused.value.problems)
    assert any("for 18 events in the 8 channels that say who contributed" in each for each in problems)
    assert any("bit 2 of the slot; each event should have its own: widen" in each for each in problems)
    (tmp_path / "small.toml").write_text(dump(narrow))
    monkeypatch.setattr("sys.argv", ["identity", "--fixtures", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        identity.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "a fixture is not calibrated" in said and "different signs for 18 events" in said


def test_two_pairs_of_events_that_share_the_sums_of_their_signs_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given, weights = small(), exact_weights(small())
    signs = weights.wkv.reshape(2, 128, 32)
    signs[1, :, 3] = np.where(np.arange(128) % 4 == 0, signs[1, :, 0], signs[1, :, 3])
    who = np.arange(4, 128, 4)
    signs[1, who[0], 0], signs[1, who[0], 3] = 1, -1  # events 0 and 3 differ in one channel,
    signs[1, who, 4] = signs[1, who, 5]
    signs[1, who[0], 4], signs[1, who[0], 5] = -1, 1  # and 4 and 5 in the same one, the other way
    monkeypatch.setattr(exact, "exact_weights", lambda fixture: weights)
    with pytest.raises(FixtureError) as refused:
        require_told_apart(given, oracle)
    assert refused.value.problems == [
        "small: two pairs of the 18 events have the same sums of signs in the 32 channels that say who contributed; "
        "each pair should have its own: widen values.block_width, 128"
    ]


@pytest.mark.parametrize("retain", RETAINS)
def test_uniform_rows_have_the_same_bytes_on_every_path_and_plan(retain: str) -> None:
    """Per-row state on, off, and the ragged path forced; rows grouped by window, or all gathered."""
    weights = exact_weights(EXACT["exact_csa_float32"])
    xs = np.eye(weights.wkv.shape[1])[:128].reshape(4, 32, -1)
    memories = []
    for plan in PLANS:
        for path in ({}, {"per_row_state": False}, {"always_ragged": True}):
            batch = load(SUBJECT).open(Setup(4, 2, 16, weights, {"retain": retain, "plan": plan}, **path), 4)
            batch.advance(xs[:, :6], [6] * 4)
            batch.advance(xs[:, 6:13], [7] * 4)
            batch.rollback_rows([3] * 4)
            batch.advance(xs[:, 13:31], [18] * 4)
            memories.append({name: part.tobytes() for name, part in batch.memory().items()})
    assert len(memories) == 6 and all(memory == memories[0] for memory in memories)


def test_the_proof_is_printed_as_a_sentence() -> None:
    assert str(require_told_apart(small(), oracle)) == (
        "18 events in 32 channels, squares sum to at most 2048 of 16777216; one or two wrong tokens show in "
        "who contributed (32 channels) or in which order (3 bits of the slot)"
    )


def test_both_geometries_and_formats_are_shipped() -> None:
    assert {(each.ratio, each.span, each.values.dtype) for each in EXACT.values()} >= {
        (ratio, span, dtype) for ratio, span in ((4, 2), (128, 1)) for dtype in ("float32", "bfloat16")
    }
