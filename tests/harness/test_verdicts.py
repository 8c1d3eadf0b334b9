"""The verdict table is ordered, total, and a pure function of what was observed."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from harness.exit_codes import ExitCode, worst
from harness.mutation.decide import counts
from harness.mutation.verdict import Reading, Verdict, fate, needs_another, read, rule

SOURCES = {"calc.py": "aa"}


def seen(
    outcome: str = "failed", mode: str = "reimport", role: str = "judge", **changes: Any
) -> dict[str, Any]:
    """An observation; by default a kill."""
    leaf = {
        "types": ["builtins.AssertionError"],
        "frame": "test",
        "at": "tests/t.py:3",
        "timeout_plugin": False,
    }
    leaf |= changes.pop("leaf", {})
    phases = [
        {"phase": "setup", "outcome": "passed", "xfail": False, "leaves": []},
        {
            "phase": "call",
            "outcome": outcome,
            "xfail": False,
            "leaves": [leaf] if outcome == "failed" else [],
        },
    ]
    return {
        "mode": mode, "role": role, "end": "answered", "source": dict(SOURCES), "broken": [], "collected": True,
        "reached": True, "stale": False, "left": [], "phases": phases, **changes,
    }  # fmt: skip


PASS = seen("passed")
KILL = [seen(), seen(role="confirm")]


def record(killers: dict[str, list[dict[str, Any]]], **changes: Any) -> dict[str, Any]:
    """An entry of the evidence."""
    base = {
        "sources": SOURCES,
        "dies_by": "assertion",
        "bytecode_differs": True,
        "killers": killers,
        "green": {},
    }
    return {**base, "widened": {"suite": 3, "reaching": 1, "red": {}}, **changes}


GRAVE = [
    (Verdict.NOT_APPLIED, [seen(source={"calc.py": None})]),
    (Verdict.UNKNOWN, [{"mode": "reimport", "role": "judge", "end": "garbled"}]),
    (Verdict.FLAKY, [seen(), seen("passed", role="confirm")]),
    (Verdict.TIMED_OUT, [{"mode": "reimport", "role": r, "end": "timeout"} for r in ("judge", "alone")]),
    (Verdict.CRASHED, [seen(leaf={"frame": "code"})]),
]


@pytest.mark.parametrize(("one", "two"), list(product(range(len(GRAVE)), repeat=2)))
def test_of_two_grave_fates_the_one_higher_in_the_table_wins(one: int, two: int) -> None:
    ruling = rule(record({"a": GRAVE[one][1], "b": GRAVE[two][1]}))
    assert ruling.verdict is GRAVE[min(one, two)][0]


@pytest.mark.parametrize(("verdict", "runs"), GRAVE)
def test_a_grave_fate_wins_over_a_kill(verdict: Verdict, runs: list[dict[str, Any]]) -> None:
    assert rule(record({"a": KILL, "b": runs})).verdict is verdict


def test_the_rest_of_the_table() -> None:
    assert rule(record({"a": KILL})).verdict is Verdict.KILLED
    assert rule(record({"a": KILL, "b": [PASS]})).verdict is Verdict.OVERCLAIMED
    assert rule(record({"a": KILL}, green={"g": [seen(role="green")]})).verdict is Verdict.OVERCLAIMED
    assert rule(record({"a": KILL}, green={"g": [seen("passed")]})).verdict is Verdict.KILLED
    assert rule(record({"a": [PASS]})).verdict is Verdict.SURVIVED
    red = {"suite": 3, "reaching": 1, "red": {"t": seen()}}
    assert rule(record({"a": [PASS]}, widened=red)).verdict is Verdict.KILLED_ELSEWHERE
    assert rule(record({"a": [PASS]}, widened=None)).verdict is Verdict.UNKNOWN
    unreached = record({"a": [seen("passed", reached=False)]}, widened={"suite": 3, "reaching": 0, "red": {}})
    assert rule(unreached).verdict is Verdict.NOT_REACHED
    assert rule(record({"a": KILL}, bytecode_differs=False)).verdict is Verdict.NOT_APPLIED


def test_a_ruling_does_not_hang_on_the_order_in_which_tests_were_recorded() -> None:
    # A file keeps keys sorted; the run that wrote it had them as the catalogue lists them.
    for one, two in (
        (KILL, KILL),
        (KILL, [PASS]),
        ([PASS], [seen(end="timeout"), seen(end="timeout", role="alone")]),
    ):
        for green in ({}, {"u": [seen()], "s": [seen()]}):
            there = record({"b": one, "a": two}, green=green)
            back = record({"a": two, "b": one}, green=dict(sorted(green.items())))
            assert rule(there) == rule(back)
    assert rule(record({"b": KILL, "a": KILL})).killed == ("a", "b")


@pytest.mark.parametrize(
    ("changes", "reading"),
    [
        ({}, Reading.KILLED),
        ({"reached": False}, Reading.RED_UNREACHED),
        ({"collected": False}, Reading.CRASHED),
        ({"source": {"calc.py": "another"}}, Reading.NOT_APPLIED),
        ({"leaf": {"frame": "helper"}}, Reading.KILLED),
        ({"leaf": {"frame": None}}, Reading.CRASHED),
        ({"leaf": {"types": ["pytest.Failed", "builtins.BaseException"]}}, Reading.KILLED),
        ({"leaf": {"types": ["builtins.KeyError", "builtins.Exception"]}}, Reading.CRASHED),
        ({"leaf": {"types": ["my.Assertion", "builtins.AssertionError"]}}, Reading.KILLED),
        ({"leaf": {"timeout_plugin": True}}, Reading.TIMED_OUT),
        ({"leaf": {"types": ["hypothesis.errors.Flaky"]}}, Reading.FLAKY),
        ({"broken": [{"types": ["builtins.ImportError"]}]}, Reading.CRASHED),
    ],
)
def test_a_red_test_is_read_by_its_facts(changes: dict[str, Any], reading: Reading) -> None:
    assert read(seen(**changes), SOURCES).reading is reading


def test_a_declared_death_counts_only_when_it_is_raised_by_the_code() -> None:
    refusal = {"types": ["calc.Refused", "builtins.ValueError"], "frame": "code"}
    assert read(seen(leaf=refusal), SOURCES, "calc.Refused").reading is Reading.KILLED
    assert read(seen(leaf={**refusal, "frame": "test"}), SOURCES, "calc.Refused").reading is Reading.CRASHED
    assert read(seen(), SOURCES, "calc.Refused").reading is Reading.CRASHED


def test_a_kill_by_swap_counts_only_with_a_confirmation_by_reimport() -> None:
    swap = seen(mode="swap")
    assert needs_another([], SOURCES, "assertion") == "judge"
    assert needs_another([swap], SOURCES, "assertion") == "confirm"
    assert fate([swap, seen(mode="swap", role="confirm")], SOURCES).reading is Reading.UNKNOWN
    assert fate([swap, seen(role="confirm")], SOURCES).reading is Reading.KILLED
    assert fate([swap, seen("passed", role="confirm")], SOURCES).reading is Reading.FLAKY


def test_a_swap_that_saw_nothing_or_ran_old_code_is_judged_again() -> None:
    for weak in (seen("passed", mode="swap"), seen(mode="swap", stale=True)):
        assert needs_another([weak], SOURCES, "assertion") == "judge"
        assert fate([weak, PASS], SOURCES).reading is Reading.PASSED
        assert fate([weak, *KILL], SOURCES).reading is Reading.KILLED


def test_a_timeout_beside_others_gives_way_to_what_happens_alone() -> None:
    timeout = {"mode": "reimport", "role": "judge", "end": "timeout"}
    alone = seen(role="alone")
    assert needs_another([timeout], SOURCES, "assertion") == "alone"
    assert needs_another([timeout, alone], SOURCES, "assertion") == "confirm"
    assert fate([timeout, alone, seen(role="confirm")], SOURCES).reading is Reading.KILLED
    assert fate([timeout, seen("passed", role="alone")], SOURCES).reading is Reading.PASSED
    late = {"mode": "reimport", "role": "confirm", "end": "timeout"}
    assert needs_another([seen(), late], SOURCES, "assertion") == "alone"
    assert fate([seen(), late, alone], SOURCES).reading is Reading.KILLED
    assert fate([seen(), late, {**late, "role": "alone"}], SOURCES).reading is Reading.FLAKY


def test_the_counts_always_add_up_to_the_catalogue() -> None:
    mutants = [{"verdict": verdict.value} for verdict in Verdict] + [{"verdict": "survived"}]
    line = counts({"catalogue": [{}] * (len(mutants) + 2), "mutants": mutants})
    numbers = [int(part.split()[1]) for part in line.split(" · ")[:-1]] + [int(line.split()[-1])]
    assert sum(numbers) == len(mutants) + 2
    assert line.startswith(f"killed 1 of {len(mutants) + 2} · survived 2 ")


def test_every_verdict_has_a_meaning_and_an_exit_code() -> None:
    for verdict in Verdict:
        assert verdict.meaning
        assert verdict.exit_code in (ExitCode.FINDING, ExitCode.INCONCLUSIVE)


def test_the_most_instrument_like_code_wins() -> None:
    order = [ExitCode(code) for code in (130, 70, 4, 5, 2, 3, 1, 0)]
    for at, code in enumerate(order):
        assert worst(order[at:]) is code
    assert worst([]) is ExitCode.OK
