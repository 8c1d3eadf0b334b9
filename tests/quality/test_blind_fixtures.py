"""The story of how this began, told by the engine: blind suites let faults live that our fixtures kill.

Each suite of tests/quality/blind is laid out as a project with production, and judged by `harness.mutate`: the same
fault once by the blind test, once by the killers that our catalogue names. `pytest -rP` prints the reports.
"""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from harness.mutation import catalogue
from harness.mutation.catalogue import Mutant
from harness.mutation.settings import load_settings

ROOT = Path(__file__).parents[2]
BLIND = Path(__file__).parent / "blind"
STORY = tomllib.loads((BLIND / "story.toml").read_text())["survivor"]
SUITES = sorted({each["suite"] for each in STORY})
SAYS = "always ended alike on this test's data; with"
PYPROJECT = '[tool.rowproof]\nroots = ["torch_impl"]\nhelpers = ["harness/rows"]\nsuite = ["tests/blind"]\n'

sys.path.insert(0, str(ROOT / "tests" / "harness"))
from toys import Ran, run  # noqa: E402


@pytest.fixture(scope="module")
def ours() -> dict[str, Mutant]:
    """Our catalogue by id."""
    return catalogue.load(ROOT, load_settings(ROOT)).by_id()


def entry(mutant: Mutant, name: str, killers: list[str]) -> str:
    """The same edit as an entry of another catalogue, with other killers."""
    lines = ["[[mutant]]", f"id = {json.dumps(name)}", f"because = {json.dumps(mutant.because)}"]
    lines += ['origin = "own"', f"killed_by = {json.dumps(killers)}"]
    for edit in mutant.edits:
        lines.append("[[mutant.edit]]")
        lines += [f"{key} = {json.dumps(getattr(edit, key))}" for key in ("file", "scope", "find", "replace")]
    return "\n".join(lines) + "\n"


def lay(suite: str, root: Path, ours: dict[str, Mutant]) -> Path:
    """A project of production, our fixtures, and one blind suite, with each fault of the story twice."""
    for folder in ("harness", "torch_impl", "reference_impl", "fixtures", "tests/identity"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "tests" / "blind").mkdir()
    for file in (suite, "played_alone.py"):
        shutil.copy(BLIND / file, root / "tests" / "blind")
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "mutants").mkdir()
    told = []
    for each in STORY:
        if each["suite"] == suite:
            mutant = ours[each["id"]]
            told.append(entry(mutant, f"{mutant.id}-blind", [f"tests/blind/{suite}::{each['test']}"]))
            told.append(entry(mutant, f"{mutant.id}-ours", list(mutant.killed_by)))
    (root / "mutants" / "story.toml").write_text("\n".join(told))
    return root


@pytest.mark.parametrize("suite", SUITES)
def test_what_survives_a_blind_suite_is_explained_and_dies_by_our_fixtures(
    suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: dict[str, Mutant]
) -> None:
    ran: Ran = run(lay(suite, tmp_path / "project", ours), monkeypatch)
    print(ran.text)
    told = [each for each in STORY if each["suite"] == suite]
    assert ran.code == 1, ran.text
    assert ran.verdicts() == {f"{each['id']}-blind": "survived" for each in told} | {
        f"{each['id']}-ours": "killed" for each in told
    }
    for each in told:
        reason = next(
            record["reason"]
            for record in ran.evidence()["predicate"]["mutants"]
            if record["id"] == f"{each['id']}-blind"
        )
        reached, _, rest = reason.partition(" of ")
        assert int(reached) > 0, f"{each['id']}: the blind test should run the changed line: {reason}"
        assert rest.endswith("tests reach it, 0 are red")
    why = ran.evidence("run.json")["why"]
    for each in told:
        found = why[f"{each['id']}-blind"]
        assert found["class"] == each["class"] == "collapsed", found
        assert found["reached"] >= 1 and SAYS in found["findings"][0]["sentence"], found
