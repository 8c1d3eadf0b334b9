"""The examples of CONTRIBUTING are real: the fixture plays green, the mutant passes the catalogue's check."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from documents import ROOT, fences

from harness.rows.checks import checks_of
from harness.rows.defaults import ORACLE, PLANS, RETAINS, SUBJECT
from harness.rows.fixture import from_mapping
from harness.rows.play import play
from harness.rows.subject import load


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("retain", RETAINS)
def test_the_fixture_of_the_recipe_is_green_and_witnesses_its_facts(retain: str, plan: str):
    [example] = fences("toml", "fixture")
    fixture = from_mapping("recipe", tomllib.loads(example.text))
    trace = play(fixture, load(SUBJECT), load(ORACLE), {"retain": retain, "plan": plan})
    assert trace.facts >= set(fixture.facts)
    assert {
        check: trace.outcome(check) for check in checks_of(fixture) if not check.startswith("comp.values")
    } == {check: "green" for check in checks_of(fixture) if not check.startswith("comp.values")}


def test_the_mutant_of_the_recipe_is_killed_by_the_check_it_names(tmp_path: Path):
    for folder in ("harness", "torch_impl", "reference_impl", "fixtures", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    [example] = fences("toml", "mutant")
    (tmp_path / "mutants").mkdir()
    (tmp_path / "mutants" / "recipe.toml").write_text(example.text, encoding="utf-8")
    name = tomllib.loads(example.text)["mutant"][0]["id"]
    for flags, said in ((["--check"], "1 valid entries"), (["--only", name], "killed 1 of 1")):
        command = [sys.executable, "-m", "harness.mutate", *flags]
        judged = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert judged.returncode == 0, judged.stdout + judged.stderr
        assert said in judged.stdout


def test_every_word_of_the_glossary_is_a_word_of_the_code():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| \*\*([\w ]+)\*\* \|", text, re.MULTILINE)
    code = "\n".join(
        path.read_text(encoding="utf-8").lower()
        for package in ("harness", "torch_impl", "reference_impl")
        for path in (ROOT / package).rglob("*.py")
    )
    assert len(words) == len(set(words)) > 20
    assert [word for word in words if not re.search(rf"\b{word}s?\b", code)] == []
