"""The lens: zeros are blind to nearly everything, what is fixed by position to stale drafts, ids to nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import lay, read

from harness import lens
from harness.exit_codes import ExitCode
from harness.mutation import catalogue, panel
from harness.mutation.catalogue import Mutant
from harness.mutation.errors import InstrumentBroken
from harness.mutation.settings import load_settings
from harness.mutation.verdict import Reading
from harness.report import lens as report
from harness.rows import sight, statepairs
from harness.rows.defaults import ORACLE, SUBJECT
from harness.rows.events import Ledger
from harness.rows.fixture import default_folder, load
from harness.rows.streams import EVENT_UNIQUE, STREAMS, SideBySide, Vectors, apart, values
from harness.rows.subject import load as load_object

REPOSITORY = Path(__file__).parents[2]
MIX_UPS = {"rows_mixed_up", "block_of_another_row", "one_token_of_another_row"}
STALE = {"stale_tail", "stale_block"}
FIXED_BY_POSITION = {"shared_ramp", "per_row_ramp", "disjoint_ramps", "random_by_position"}
Seen = dict[str, dict[str, dict[str, sight.Cell]]]


@pytest.fixture(scope="module")
def table() -> Seen:
    """Two fixtures hold an instance of every fault."""
    fixtures = [
        load(default_folder() / f"{name}.toml") for name in ("accept_none_some_all", "split_every_row")
    ]
    oracle = load_object(ORACLE)
    return sight.look_at(list(statepairs.pairs(fixtures, load_object(SUBJECT), oracle)), oracle)


def blind(table: Seen, stream: str, lane: str) -> set[str]:
    return {fault for fault, streams in table.items() if not streams[stream][lane].caught}


def test_every_fault_is_planted(table: Seen) -> None:
    assert set(table) == set(statepairs.FAULTS)


@pytest.mark.parametrize("lane", sight.LANES)
def test_zeros_are_blind_to_everything(table: Seen, lane: str) -> None:
    assert blind(table, "zeros", lane) == set(statepairs.FAULTS)


@pytest.mark.parametrize("lane", sight.LANES)
def test_what_is_unique_to_each_append_is_blind_to_nothing(table: Seen, lane: str) -> None:
    for stream in EVENT_UNIQUE:
        assert blind(table, stream, lane) == set()
        assert all(streams[stream][lane].caught == streams[stream][lane].of for streams in table.values())


def test_what_is_fixed_by_position_is_blind_to_stale_drafts(table: Seen) -> None:
    for stream in FIXED_BY_POSITION:
        assert blind(table, stream, "exact") >= STALE
    assert blind(table, "random_by_position", "exact") == STALE


def test_what_all_rows_share_is_blind_to_mixed_up_rows(table: Seen) -> None:
    assert blind(table, "shared_ramp", "exact") == STALE | MIX_UPS
    assert blind(table, "constant", "exact") > STALE | MIX_UPS


def test_a_margin_is_the_smallest_of_its_pairs_and_decides() -> None:
    cell = sight.Cell()
    cell.add(True, 12.0)
    cell.add(False, 0.5)
    assert (cell.caught, cell.of, cell.margin) == (1, 2, 0.5)


def test_float_lanes_say_by_how_much(table: Seen) -> None:
    for streams in table.values():
        for stream in EVENT_UNIQUE:
            fine, coarse = streams[stream]["float32"].margin, streams[stream]["bfloat16"].margin
            assert fine is not None and coarse is not None and fine > coarse > 1
        assert streams["zeros"]["float32"].margin == 0


def test_streams_are_what_they_say() -> None:
    ledger = Ledger()
    first, second = ledger.append(0, 0, 4), ledger.append(1, 0, 4)
    draft = ledger.append(0, 3, 1)  # stands where the last token of `first` stood
    fed = dict(zip(STREAMS, SideBySide(ledger).feed(first + second + draft).T, strict=True))
    for name, numbers in fed.items():
        unique = len(set(numbers.tolist()))
        assert (unique == 9) == (name in EVENT_UNIQUE)
        assert (numbers[3] == numbers[8]) == (name not in EVENT_UNIQUE)
        assert (numbers[:4] == numbers[4:8]).all() == (name in ("zeros", "constant", "shared_ramp"))
        vectors = Vectors(ledger, name, 32).feed(first + second + draft)
        assert (len(np.unique(vectors, axis=0)) == 9) == (name in EVENT_UNIQUE)
    with pytest.raises(KeyError):
        values("no stream", 0, np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))


def test_an_index_is_seen_on_every_stream_but_zeros() -> None:
    block = np.zeros((1, 2 * len(STREAMS) + 1), dtype=np.int64)
    later = block.copy()
    later[0, -1] = 1
    assert set(apart(block, later, blocks=True)) == set(STREAMS) - {"zeros"}
    assert list(apart(block, block, blocks=True)) == []


def entry(**given: Any) -> dict[str, Any]:
    nowhere = dict.fromkeys(STREAMS)
    return {"data": nowhere, "promises": None, "silent": {}, "survives_under": [], "theme": "t"} | given


def mutant(**given: Any) -> Mutant:
    return Mutant(
        **({"id": "a", "theme": "t", "because": "", "origin": "", "edits": (), "killed_by": ()} | given)
    )


def weighed(entry: dict[str, Any], mutant: Mutant) -> list[tuple[int, str]]:
    found = lens.weigh({"pairs": {"faults": {}}, "entries": {"a": entry}, "elsewhere": []}, [mutant])
    return [(int(finding.code), finding.sentence) for finding in found]


def test_a_claim_to_survive_that_dies_is_refused_with_what_was_measured() -> None:
    data = {**dict.fromkeys(STREAMS, "step 1"), "zeros": None, "constant": None}
    claims = mutant(survives_under=("zeros", "shared_ramp"))
    assert weighed(entry(data=data), claims) == [
        (
            1,
            "a: overclaimed: survives_under names shared_ramp, but there it dies: step 1; measured: it survives under "
            "zeros, constant",
        )
    ]
    assert weighed(entry(data=data), mutant(survives_under=("zeros",))) == []


def test_a_claim_about_data_that_does_not_exist_is_refused() -> None:
    [sentence] = lens.unknown_streams([mutant(survives_under=("zeros", "shared_rampe"))])
    assert sentence.endswith("'shared_rampe', which is no stream; did you mean 'shared_ramp'?")


def test_entries_that_judge_other_caches_are_not_asked_and_may_claim_nothing_about_data() -> None:
    killer = "tests/caches/test_examples.py::test_cache[gru-permuted_rows]"
    assert not lens.looked_at(mutant(killed_by=(killer,)))
    assert lens.claims_elsewhere([mutant(killed_by=(killer,))]) == []
    [sentence] = lens.claims_elsewhere([mutant(killed_by=(killer,), survives_under=("zeros",))])
    assert "survives_under is ['zeros'], and no killer stands in tests/identity/" in sentence
    nobody = {"pairs": {"faults": {}}, "entries": {}}
    assert lens.weigh({**nobody, "elsewhere": ["a"]}, [mutant()]) == []
    [absent] = lens.weigh({**nobody, "elsewhere": []}, [mutant()])
    assert (absent.code, absent.sentence) == (ExitCode.ABSENT, "a: no stream was asked of it")


def test_an_entry_without_an_answer_is_inconclusive() -> None:
    [(code, sentence)] = weighed(entry(silent={"x": Reading.CRASHED}), mutant())
    assert (code, sentence) == (ExitCode.INCONCLUSIVE, "a: 1 tests gave no answer: x crashed")


def test_an_entry_that_a_data_killer_sees_and_no_stream_is_a_finding() -> None:
    killer = "tests/identity/test_fixtures.py::test_identity[one-hidden-grouped-tail.tokens]"
    [(code, sentence)] = weighed(entry(), mutant(killed_by=(killer,)))
    assert (code, sentence) == (1, f"a: its killer {killer} sees it, and here no stream does")
    assert weighed(entry(promises="step 1"), mutant(killed_by=(killer,))) == []


def test_a_killer_that_compares_last_bits_is_no_merit_of_data_and_no_stream_is_asked_for_it() -> None:
    killer = "tests/identity/test_fixtures.py::test_identity[a-projected-gathered-rows.bytes]"
    last_bits = mutant(killed_by=(killer,))
    assert weighed(entry(), last_bits) == []
    assert not any("test_values" in item for item in lens._items(last_bits))


def test_an_identity_that_is_blind_is_a_finding() -> None:
    cells = {stream: {"exact": {"caught": 1, "of": 2}} for stream in STREAMS}
    pairs = {"faults": {"f": {"streams": cells}, "g": {"streams": {}}}}
    assert [
        (int(f.code), f.sentence) for f in lens.weigh({"pairs": pairs, "entries": {}, "elsewhere": []}, [])
    ] == [
        (1, "f: random_by_event is blind to 1 of 2 pairs"),
        (1, "f: token_identity is blind to 1 of 2 pairs"),
        (5, "g: no fixture has a history to plant it in"),
    ]


def test_a_panel_answers_for_every_test_and_refuses_one_that_is_red_without_a_mutant(tmp_path: Path) -> None:
    root = lay(read("killed"), tmp_path / "project")
    tests = root / "tests" / "test_calc.py"
    tests.write_text(tests.read_text() + "\n\ndef test_blind():\n    calc.f(0)\n")
    settings = load_settings(root)
    [fault] = catalogue.load(root, settings).mutants
    asked = [f"tests/test_calc.py::{name}" for name in ("test_f", "test_blind")]
    answers = panel.ask(root, settings, {fault.id: asked}, [fault], 1)[fault.id]
    assert [(answer.red, answer.silent) for answer in answers.values()] == [(True, False), (False, False)]
    assert answers[asked[0]].told.startswith("assert 3 == 2")
    tests.write_text(tests.read_text() + "\n\ndef test_red():\n    assert False\n")
    with pytest.raises(InstrumentBroken, match=r"1 of 3 tests are not green without any mutant: .*test_red"):
        panel.ask(root, settings, {fault.id: [*asked, "tests/test_calc.py::test_red"]}, [fault], 1)


def test_the_command_verifies_claims_against_production(tmp_path: Path) -> None:
    """Two entries of our catalogue on few fixtures: one claim holds, one does not."""
    root = tmp_path / "project"
    for folder in ("harness", "torch_impl", "reference_impl", "tests/lens", "tests/identity"):
        shutil.copytree(REPOSITORY / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("fixtures", "mutants"):
        (root / folder).mkdir()
    for name in (*lens.VALUES_FIXTURES, "trimmed_row", "permuted_rows"):
        shutil.copy(REPOSITORY / "fixtures" / f"{name}.toml", root / "fixtures")
    (root / "pyproject.toml").write_text('[tool.rowproof]\nroots = ["torch_impl"]\n')
    text = (REPOSITORY / "mutants" / "rows.toml").read_text()
    chosen = [
        part
        for part in text.split("[[mutant]]")
        if '"select-leaves-the-tails"' in part or '"trim-keeps' in part
    ]
    for part, streams in zip(chosen, ('["zeros", "random_by_event"]', '["zeros"]'), strict=True):
        bare = re.sub(r"^survives_under = .*\n", "", part, flags=re.MULTILINE)
        with (root / "mutants" / "rows.toml").open("a") as handle:
            handle.write(f"[[mutant]]\n{bare}".replace("because =", f"survives_under = {streams}\nbecause ="))
    ran = subprocess.run(
        [sys.executable, "-m", "harness.lens", "--report", "-j", "2"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "select-leaves-the-tails: overclaimed: survives_under names random_by_event" in ran.stdout
    assert "survives_under: 2 of 3 claims hold" in ran.stdout
    data = json.loads((root / "reports" / "lens.json").read_text())
    trim = data["entries"]["trim-keeps-the-wrong-end"]
    assert [name for name, place in trim["data"].items() if place is None] == ["zeros", "constant"]
    assert "| zeros | every token is 0 | 0 of 2 |" in report.markdown(data)
    assert (
        "| token_identity | a token is the id of its append: row, and number of the append | 2 of 2 |"
        in (root / "reports" / "lens.md").read_text()
    )
