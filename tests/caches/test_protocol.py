"""What a cache must say of itself, how a wrong one is refused, and what is reported where nothing is offered."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from harness.caches.needs import OWN, missing, needs
from harness.caches.play import play
from harness.caches.protocol import OFFERS, Geometry, NotOffered, describe, load_cache
from harness.caches.results import ABORTED, GREEN, NOT_OFFERED, RED, REFUSED, holds, messages, results
from harness.report import caches as report
from harness.rows.fixture import default_folder, from_mapping, load_folder
from harness.rows.schedule import Fixture

FIXTURES = load_folder(default_folder())


class Minimal:
    """Sums: the smallest cache that there is."""

    width = 3
    supports: Sequence[str] = ()

    def __init__(self, geometry: Geometry, rows: int) -> None:
        self.sums = np.zeros((rows, 3))

    def advance(self, xs: Any, n_new: Sequence[int]) -> None:
        for row, n in enumerate(n_new):
            self.sums[row] += xs[row, :n].sum(axis=0)

    def read(self, row: int) -> Mapping[str, Any]:
        return {"sums": self.sums[row]}


class Refused(Exception):
    pass


def fixture(*steps: dict[str, Any]) -> Fixture:
    head = {"proves": "A test.", "ratio": 4, "span": 2, "facts": ["depth_refused"]}
    return from_mapping("test", {**head, "step": list(steps)})


def judged(factory: Any, *steps: dict[str, Any]) -> Any:
    [result] = results([fixture(*steps)], describe("test:it", factory, factory(Geometry(), 1)))
    return result


EVEN = ({"do": "prefill", "lengths": [3, 3]}, {"do": "advance", "n_new": [2, 2]})


def test_a_cache_with_two_methods_is_played():
    result = judged(Minimal, *EVEN)
    assert result.word == GREEN
    assert result.checks() == {"data": GREEN, "refusal": GREEN, "sums": GREEN, "sums@fresh": GREEN}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"width": None}, "it has no width"),
        ({"width": 0}, "width is 0; it should be the number of channels of a token, 1 or more"),
        ({"read": None}, "it has no read"),
        ({"supports": ("roll",)}, "supports names 'roll'; there are prefill.ragged, advance.ragged"),
        (
            {"supports": ("rollback.ragged",)},
            "supports names 'rollback.ragged', and there is no method rollback",
        ),
        ({"supports": "select"}, "supports is the text 'select'; it should be a tuple of names, ('select',)"),
        ({"supports": ("snapshot",)}, "supports names 'snapshot', and there is no method restore"),
        ({"axes": {"sums": "rows"}}, "axes['sums'] is 'rows'; it should be tokens, blocks or state"),
    ],
)
def test_a_cache_that_cannot_be_played_is_refused_with_what_is_missing(changed: dict[str, Any], said: str):
    wrong = type("Wrong", (Minimal,), changed)
    with pytest.raises(ValueError, match="cannot be played") as refused:
        describe("test:wrong", wrong, wrong(Geometry(), 1))
    assert said in str(refused.value)


@pytest.mark.parametrize("name", ["json:loads", "math:pi", "no.such:thing", "json"])
def test_a_name_that_leads_to_no_cache_is_a_value_error(name: str):
    with pytest.raises(ValueError, match=r"cannot be|should be"):
        load_cache(name)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--subject", "json:loads"],
            "cannot be opened with Geometry(ratio=4, span=2, margin=16) and 1 row: TypeError",
        ),
        (
            ["--subject", "harness.subjects.gru:GRUCache", "--retain", "hidden"],
            "--retain is for row state of ours",
        ),
        (
            ["--subject", "harness.subjects.gru:GRUCache", "--no-poison"],
            "--no-poison is for row state of ours",
        ),
    ],
)
def test_the_command_refuses_what_it_cannot_play_with_exit_code_2(arguments: list[str], said: str):
    done = subprocess.run(
        [sys.executable, "-m", "harness.identity", *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr


def test_every_need_of_every_fixture_is_something_that_a_cache_can_offer_or_is_never_asked():
    asked = {need for each in FIXTURES.values() for need in needs(each)}
    assert asked <= {*OFFERS, *OWN}
    assert {
        "advance.ragged",
        "rollback.ragged",
        "prefill.ragged",
        "select",
        "repeat",
        "split",
        "assemble",
    } <= asked


def test_what_is_not_offered_is_said_with_its_step_and_its_consequence():
    cache = describe("test:it", Minimal, Minimal(Geometry(), 1))
    found = list(results([FIXTURES["accept_none_some_all"], fixture(*EVEN)], cache))
    assert [result.word for result in found] == [NOT_OFFERED, GREEN]
    assert missing(FIXTURES["accept_none_some_all"], cache)["rollback.ragged"] == 1
    assert "not offered: prefill.ragged (step 0), rollback.ragged (step 1)" in report.line(found[0])
    assert f"rollback.ragged (1 of 2 fixtures need it); {OFFERS['rollback.ragged']}" in report.summary(
        found, cache, None, ""
    )


def test_a_geometry_that_a_cache_does_not_have_is_not_offered():
    class Narrow(Minimal):
        def __init__(self, geometry: Geometry, rows: int) -> None:
            if geometry.ratio > 4:
                raise NotOffered(f"ratio {geometry.ratio}; 4 at most")
            super().__init__(geometry, rows)

    cache = describe("test:it", Narrow, Narrow(Geometry(), 1))
    [result] = results([FIXTURES["even_batch_in_chunks_ratio_128"]], cache)
    assert result.word == NOT_OFFERED
    assert "ratio 128; 4 at most" in report.line(result)


def test_nothing_played_is_no_proof():
    cache = describe("test:it", Minimal, Minimal(Geometry(), 1))
    assert not holds(list(results([FIXTURES["accept_none_some_all"]], cache)))
    assert not holds([])


def test_a_cache_that_raises_is_aborted_and_says_at_which_step():
    class Raises(Minimal):
        def advance(self, xs: Any, n_new: Sequence[int]) -> None:
            if self.sums.any():
                raise RuntimeError("out of slots")
            super().advance(xs, n_new)

    result = judged(Raises, *EVEN)
    assert result.word == ABORTED
    assert "RuntimeError: out of slots" in messages([result])[0] and "step 1" in messages([result])[0]


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (np.zeros(3), "TypeError: `read` returned ndarray; it should be a dict of names and arrays"),
        (
            {"sums": torch.zeros(3, dtype=torch.bfloat16)},
            "read(...)['sums'] is Tensor and no array for NumPy",
        ),
    ],
)
def test_a_read_of_another_form_is_said_to_be_one(shown: Any, said: str):
    class Odd(Minimal):
        def read(self, row: int) -> Mapping[str, Any]:
            return shown

    result = judged(Odd, {"do": "prefill", "lengths": [3]})
    assert result.word in (RED, ABORTED)
    assert said in "\n".join(messages([result]))


def test_a_cache_that_lives_on_its_callers_memory_is_red():
    class Views(Minimal):
        """Keeps the inputs themselves, and sums when it is asked."""

        def __init__(self, geometry: Geometry, rows: int) -> None:
            self.kept: list[list[Any]] = [[np.zeros((1, 3))] for _ in range(rows)]

        def advance(self, xs: Any, n_new: Sequence[int]) -> None:
            for row, n in enumerate(n_new):
                self.kept[row].append(xs[row, :n])

        def read(self, row: int) -> Mapping[str, Any]:
            return {"sums": np.concatenate(self.kept[row]).sum(axis=0)}

    assert judged(Views, *EVEN).word == RED


def test_an_array_that_hides_its_newest_token_behind_a_large_channel_is_red_as_data():
    class Swallowed(Minimal):
        def read(self, row: int) -> Mapping[str, Any]:
            return {"sums": self.sums[row], "wide": np.append(self.sums[row], 1e14)}

    result = judged(Swallowed, *EVEN)
    assert result.word == RED
    assert "changes wide by" in messages([result])[0] and "would not be seen there" in messages([result])[0]


def test_a_cache_that_leaves_the_program_is_aborted_and_no_success():
    class Leaves(Minimal):
        def advance(self, xs: Any, n_new: Sequence[int]) -> None:
            sys.exit(0)

    result = judged(Leaves, *EVEN)
    assert result.word == ABORTED and "SystemExit: 0" in messages([result])[0]


def test_a_number_of_rows_that_a_cache_does_not_have_is_no_crash():
    class Alone(Minimal):
        def __init__(self, geometry: Geometry, rows: int) -> None:
            if rows > 1:
                raise NotOffered(f"{rows} rows; 1 at most")
            super().__init__(geometry, rows)

    result = judged(Alone, *EVEN)
    assert result.word == REFUSED and result.trace.stopped.why == "not offered: 2 rows; 1 at most"


def test_a_cache_that_refuses_long_calls_is_started_anew_token_by_token():
    class Short(Minimal):
        refusal = Refused

        def advance(self, xs: Any, n_new: Sequence[int]) -> None:
            if max(n_new) > 3:
                raise Refused(f"{max(n_new)} tokens at once; 3 at most")
            super().advance(xs, n_new)

    assert judged(Short, *EVEN).word == GREEN


def test_complex_states_may_round_and_may_not_differ():
    class Turned(Minimal):
        def read(self, row: int) -> Mapping[str, Any]:
            return {"turned": self.sums[row] * np.exp(1j * (1 + 1e-16 * len(self.sums)))}

    assert judged(Turned, *EVEN).word == GREEN


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ({"sums": np.array(["a"])}, "read(...)['sums'] holds <U1; it should hold numbers or truth values"),
        (
            {"sums": np.array([None])},
            "read(...)['sums'] holds object; it should hold numbers or truth values",
        ),
        ({1: np.zeros(3)}, "read(...) names an array 1; it should be named by a text"),
    ],
)
def test_what_no_comparison_can_judge_is_refused_where_it_is_read(shown: Any, said: str):
    class Odd(Minimal):
        def read(self, row: int) -> Mapping[str, Any]:
            return shown

    result = judged(Odd, *EVEN)
    assert result.word in (RED, ABORTED)
    assert said in "\n".join(messages([result]))


def test_what_an_adapter_raises_is_told_with_its_line():
    class Raises(Minimal):
        def advance(self, xs: Any, n_new: Sequence[int]) -> None:
            raise RuntimeError("boom")

    result = judged(Raises, *EVEN)
    assert re.search(r"RuntimeError: boom \(test_protocol.py:\d+ in advance\)", messages([result])[0])


def test_an_axis_of_an_array_that_no_row_reads_is_pointed_out():
    misspelt = type("Misspelt", (Minimal,), {"axes": {"sum": "state"}})
    cache = describe("test:it", misspelt, misspelt(Geometry(), 1))
    found = list(results([fixture(*EVEN)], cache))
    assert "axes names sum, and no row read such an array: is it spelt alike?" in report.summary(
        found, cache, None, ""
    )


def test_a_state_that_shows_nothing_of_its_newest_token_is_refused_as_data():
    class Blind(Minimal):
        def read(self, row: int) -> Mapping[str, Any]:
            return {"sums": self.sums[row] * 0 + 1}

    result = judged(Blind, *EVEN)
    assert result.word == RED
    assert (
        "another newest token changes what is read by 0 tolerances; 100 should be the least"
        in messages([result])[0]
    )


class Rolls(Minimal):
    """Remembers every sum, and refuses to go back by more than two."""

    supports = ("rollback.ragged",)
    refusal = Refused

    def __init__(self, geometry: Geometry, rows: int) -> None:
        self.past = [[np.zeros(3)] for _ in range(rows)]

    def advance(self, xs: Any, n_new: Sequence[int]) -> None:
        for row, n in enumerate(n_new):
            for x in xs[row, :n]:
                self.past[row].append(self.past[row][-1] + x)

    def rollback(self, counts: Sequence[int]) -> None:
        if max(counts) > 2:
            raise Refused(f"{max(counts)} tokens are more than 2")
        for row, n in enumerate(counts):
            del self.past[row][len(self.past[row]) - n :]

    def read(self, row: int) -> Mapping[str, Any]:
        return {"sums": self.past[row][-1]}


def verify(width: int, accept: list[int]) -> dict[str, Any]:
    return {"do": "verify", "width": width, "accept": accept}


def test_a_refusal_of_batch_and_alone_ends_the_play_and_is_no_fault():
    result = judged(Rolls, EVEN[0], verify(4, [1, 1]))
    assert result.word == REFUSED
    assert result.trace.stopped.why == "refused, by batch and alone: 3 tokens are more than 2"
    assert not holds([result])


def test_a_refusal_that_changes_something_is_red():
    class Careless(Rolls):
        def rollback(self, counts: Sequence[int]) -> None:
            self.past[0].append(self.past[0][-1] + 1)
            super().rollback(counts)

    result = judged(Careless, EVEN[0], verify(4, [1, 1]))
    assert result.word == RED
    assert "the operation was refused, and yet a row's state changed" in messages([result])[0]


def test_a_batch_that_refuses_what_alone_accepts_is_red():
    class Together(Rolls):
        def rollback(self, counts: Sequence[int]) -> None:
            if len(counts) > 1:
                raise Refused("not in a batch")
            super().rollback(counts)

    result = judged(Together, EVEN[0], verify(2, [1, 1]))
    assert result.word == RED
    assert "batch refuses (not in a batch), alone accepts" in messages([result])[0]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("del self.past[row][len(self.past[row]) - max(counts):]", "if its newest 2 tokens had been dropped, not 1"),
        ("pass", "if r1:t4, rolled back, were still there"),
        ("self.past[row] = [p - self.past[row][n] for p in self.past[row][n:]] if n else self.past[row]",
         "if its oldest token had been dropped instead of its newest"),
        ("self.past[row] = self.past[0][:]", "if it were r0"),
    ],
    ids=["too-far", "stale-draft", "wrong-end", "row-mix-up"],
)  # fmt: skip
def test_the_way_a_rollback_went_wrong_is_told_in_tokens(wrong: str, said: str):
    scope: dict[str, Any] = {}
    exec(f"def rollback(self, counts):\n for row, n in enumerate(counts):\n  {wrong}", scope)
    cache = type("Wrong", (Rolls,), {"rollback": scope["rollback"]})
    result = judged(cache, EVEN[0], verify(2, [0, 1]))
    assert result.word == RED
    assert said in "\n".join(messages([result]))


def test_padding_taken_for_tokens_is_told_as_padding():
    class Pads(Minimal):
        supports = ("prefill.ragged", "advance.ragged")

        def advance(self, xs: Any, n_new: Sequence[int]) -> None:
            self.sums += xs.sum(axis=1)

    result = judged(Pads, {"do": "prefill", "lengths": [2, 4]})
    assert result.word == RED
    assert "batch holds what the row would hold with 2 columns of padding" in messages([result])[0]


def test_a_rollback_that_changes_the_counts_it_was_given_is_judged_by_those_of_the_schedule():
    class Overwrites(Rolls):
        def rollback(self, counts: Any) -> None:
            counts[:] = [max(counts)] * len(counts)
            super().rollback(counts)

    result = judged(Overwrites, EVEN[0], verify(2, [0, 1]))
    assert result.word == RED
    assert "if its newest 2 tokens had been dropped, not 1" in "\n".join(messages([result]))


def test_an_imaginary_part_that_differs_is_red():
    class Turned(Minimal):
        def read(self, row: int) -> Mapping[str, Any]:
            return {"sums": self.sums[row] + 1j * len(self.sums)}

    assert judged(Turned, *EVEN).word == RED


@pytest.mark.parametrize(("batch", "word"), [(-np.inf, GREEN), (np.inf, RED)])
def test_infinity_equals_itself_and_nothing_else(batch: float, word: str):
    class Masked(Minimal):
        def read(self, row: int) -> Mapping[str, Any]:
            return {"sums": self.sums[row], "mask": np.array([batch if len(self.sums) > 1 else -np.inf])}

    assert judged(Masked, *EVEN).word == word


def test_without_explanations_the_same_differences_are_found():
    class Mixed(Rolls):
        def rollback(self, counts: Sequence[int]) -> None:
            super().rollback([max(counts)] * len(counts))

    cache = describe("test:it", Mixed, Mixed(Geometry(), 1))
    steps = (EVEN[0], verify(2, [0, 1]), verify(2, [2, 1]))
    told, plain = (play(fixture(*steps), cache, explain=explain) for explain in (True, False))
    places = [[(each.check, each.step, each.row) for each in p.trace.mismatches] for p in (told, plain)]
    assert places[0] == places[1] and places[0]
    assert "numbers differ" in plain.trace.mismatches[0].said[0]
    assert len(plain.trace.mismatches[0].said) < len(told.trace.mismatches[0].said)


def test_what_nobody_fed_is_no_draft_that_was_rolled_back():
    played = play(fixture(EVEN[0], verify(2, [0, 1])), describe("test:it", Rolls, Rolls(Geometry(), 1)))
    labels = played.comparison.told.labels
    dropped = played.members[0].ever[-1]
    assert labels.token(dropped) == "r0:t4, rolled back"
    assert labels.token(played.members[1].history[-1]) == "r1:t3"
    assert labels.token(0) == "memory that was never written"
    assert "which is no token" in labels.token(1 << 39)
