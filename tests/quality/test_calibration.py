"""Data that cannot tell a token from its neighbour is refused with its margin, and a wrong value says what it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.rows.calibration import margin, require_margin, require_told_apart
from harness.rows.defaults import ORACLE, SUBJECT
from harness.rows.exact import Proof
from harness.rows.fixture import FixtureError, default_folder, dump, from_mapping, load_folder
from harness.rows.play import Play, play
from harness.rows.schedule import Advance, Fixture, Prefill, Values
from harness.rows.subject import load
from harness.rows.values import share

FIXTURES = load_folder(default_folder())
SMALL = Values("float32", hidden_width=64, block_width=64)


def fixture(values: Values, ratio: int = 4, span: int = 2, tokens: int = 16) -> Fixture:
    """Two rows that complete blocks at different steps."""
    steps = (Prefill((3, tokens)), Advance((6, 1)), Advance((2, 5)))
    return Fixture("calibrated", "Nothing.", ratio, span, steps, values=values)


@pytest.mark.parametrize("name", FIXTURES)
def test_every_fixture_has_data_that_tells_a_token_from_its_neighbour(name: str) -> None:
    fixture, oracle = FIXTURES[name], load(ORACLE)
    if fixture.values.data == "exact":
        assert isinstance(require_told_apart(fixture, oracle), Proof)
    elif margin(fixture, oracle) is not None:  # a fixture without a block has no value to judge
        assert require_margin(fixture, oracle) >= 100


@pytest.mark.parametrize(
    ("values", "shape", "word"),
    [
        (replace(SMALL, data="ramp"), (128, 1, 140), "ramp"),
        (replace(SMALL, dtype="bfloat16", data="offset"), (4, 2, 16), "offset"),
        (replace(SMALL, bias="zero"), (4, 2, 16), "zero"),
    ],
    ids=["a plain ramp at ratio 128", "an offset of 1000 in bfloat16", "a position bias of zero"],
)
def test_blind_data_is_refused_with_its_margin(
    values: Values, shape: tuple[int, int, int], word: str
) -> None:
    blind = fixture(values, *shape)
    with pytest.raises(FixtureError, match=r"the margin is [\d.e+-]+, it should be at least 100") as refused:
        require_margin(blind, load(ORACLE))
    assert word in str(refused.value)
    assert require_margin(replace(blind, values=SMALL), load(ORACLE)) >= 100


def test_a_fixture_without_a_block_is_not_calibrated() -> None:
    with pytest.raises(FixtureError, match="no row completes a block"):
        require_margin(fixture(SMALL, ratio=128, span=1, tokens=1), load(ORACLE))


class Off(Play):
    """A play whose batch reads one value of one block off by a given amount."""

    by = 0.0

    def step(self, step: object) -> bool:
        batch = self.batch
        going = super().step(step)  # type: ignore[arg-type]
        if batch is None and self.batch is not None:
            read, amount = self.batch.read, self.by

            def wrong(row: int) -> object:
                held = dict(read(row))
                if row == 1:
                    held["comp"] = held["comp"] + amount * (np.arange(held["comp"].size) == 5).reshape(
                        held["comp"].shape
                    )
                return held

            self.batch.read = wrong  # type: ignore[method-assign, assignment]
        return going


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_value_outside_its_bound_with_right_tokens_is_numerics(dtype: str) -> None:
    values = replace(SMALL, dtype=dtype)  # type: ignore[arg-type]
    off = Off(
        fixture(values),
        load(SUBJECT),
        load(ORACLE),
        {"retain": "projected", "plan": "grouped"},
        lane="values",
    )
    off.by = 0.5
    trace = off.run()
    found = trace.of("comp.values")
    assert found and all(mismatch.row == 1 for mismatch in found)
    assert found[0].said[-1].startswith("numerics: every token is right")
    assert not trace.of("comp.values@reference")


def test_a_value_inside_its_bound_is_rounding_and_no_mismatch() -> None:
    off = Off(
        fixture(SMALL), load(SUBJECT), load(ORACLE), {"retain": "projected", "plan": "grouped"}, lane="values"
    )
    off.by = 1e-8
    trace = off.run()
    assert not trace.of("comp.values")
    assert 0 < trace.shares["comp.values"] < 1


def test_a_value_of_a_wrong_token_names_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch_impl.step import RowSteps

    gather = RowSteps._gather

    def of_the_row_before(self: RowSteps, *given: object) -> object:
        return gather(self, *given).roll(1, 0)  # type: ignore[arg-type]

    monkeypatch.setattr(RowSteps, "_gather", of_the_row_before)
    both = fixture(SMALL)
    both = replace(both, step=(Prefill((3, 7)), Advance((1, 1))))
    trace = play(
        both, load(SUBJECT), load(ORACLE), {"retain": "projected", "plan": "gathered"}, lane="values"
    )
    said = trace.of("comp.values")[0].said[-1]
    assert said.startswith("wrong token: first wrong cell: block")
    assert "batch holds r1:t" in said and "alone holds r0:t" in said


def test_nan_is_never_inside_a_bound() -> None:
    bound = np.ones(3)
    assert share(np.array([0.0, np.nan, 2.0]), np.zeros(3), bound).tolist() == [0, np.inf, 2]
    assert share(np.array([1.0]), np.array([1.0]), np.zeros(1)).tolist() == [0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"values": {"dtype": "float16"}}, "values.dtype"),
        ({"values": {"rope_width": 31}}, "values.rope_width is 31; it should be even"),
        ({"values": {"hiden_width": 8}}, "unknown key"),
        ({"values": {"dtype": "bfloat16"}}, "in bfloat16 it should be ['projected']"),
        ({"values": {"dtype": "bfloat16"}, "payloads": ["projected"]}, "at most margin = 16 tokens"),
        ({"payloads": []}, "payloads is []"),
    ],
)
def test_a_wrong_values_table_has_its_sentence(change: dict[str, object], sentence: str) -> None:
    raw = {
        "proves": "Nothing.",
        "ratio": 4,
        "span": 2,
        "facts": ["row_idle_this_step"],
        "step": [{"do": "prefill", "lengths": [17]}],
    }
    with pytest.raises(FixtureError) as refused:
        from_mapping("x", raw | change)
    assert sentence in str(refused.value)


def test_a_values_table_survives_being_written_and_read(tmp_path: object) -> None:
    import tomllib

    first = FIXTURES["bfloat16_csa"]
    assert from_mapping("bfloat16_csa", tomllib.loads(dump(first))) == first
