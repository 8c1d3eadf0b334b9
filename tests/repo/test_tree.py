"""What the tree may hold, and who may know whom beyond what import-linter can say."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
from documents import ROOT, tracked_files

from harness.rows.checks import checks_of
from harness.rows.fixture import load_folder

# A path that only one machine has; written so that this file does not match itself.
MACHINE_PATHS = [
    re.compile(rb"(?<![\w.])/" + folder + rb"/\w") for folder in (b"work", b"home", b"root", b"Users")
]
MACHINE_PATHS += [re.compile(rb"\.\./" + rb"shared"), re.compile(rb"\." + rb"library\b")]


def imports(path: Path) -> set[str]:
    """The dotted names a file imports, wherever in the file it does so."""
    names = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module)
    return names


def importers_of(package: str) -> list[str]:
    modules = [name for name in tracked_files() if name.startswith("harness/") and name.endswith(".py")]
    return [name for name in modules if package in {each.split(".")[0] for each in imports(ROOT / name)}]


@pytest.mark.parametrize("folder", ["fixtures", "mutants"])
def test_fixtures_and_mutants_are_data(folder: str):
    held = [name for name in tracked_files() if name.startswith(f"{folder}/")]
    assert any(name.endswith(".toml") for name in held), f"{folder}/ holds no TOML file"
    assert [name for name in held if Path(name).suffix not in {".toml", ".md"}] == []


def test_nothing_names_a_path_of_one_machine():
    for name in tracked_files():
        content = (ROOT / name).read_bytes()
        found = [pattern.search(content) for pattern in MACHINE_PATHS]
        assert not any(found), f"{name} names {next(match[0] for match in found if match)!r}"


def test_the_reference_imports_numpy_and_nothing_else():
    allowed = sys.stdlib_module_names | {"numpy", "reference_impl"}
    for path in (ROOT / "reference_impl").glob("**/*.py"):
        assert {name.split(".")[0] for name in imports(path)} <= allowed, path.name


def test_production_imports_torch_and_safetensors_and_numpy_for_its_plan():
    # NumPy plans integers on the host, where a small torch operation costs twice as much (DESIGN.md).
    allowed = sys.stdlib_module_names | {"torch", "safetensors", "numpy", "torch_impl"}
    for path in (ROOT / "torch_impl").glob("**/*.py"):
        assert {name.split(".")[0] for name in imports(path)} <= allowed, path.name


@pytest.mark.parametrize("package", ["rich", "jinja2"])
def test_one_module_at_most_imports(package: str):
    assert len(importers_of(package)) <= 1


def test_only_commands_know_the_command_line():
    assert all(name.count("/") == 1 for name in importers_of("typer"))


def test_no_module_of_the_engine_knows_the_system_under_verification():
    for path in (ROOT / "harness" / "mutation").glob("**/*.py"):
        assert "compressor" not in path.read_text(encoding="utf-8").lower(), path.name


def test_every_package_says_what_it_is_for():
    for name in tracked_files():
        if name.endswith(".py") and not name.startswith("tests/"):
            assert ast.get_docstring(ast.parse((ROOT / name).read_bytes())), f"{name} has no docstring"


def test_every_check_is_named_by_an_entry_that_it_must_kill():
    # A check that no fault was seen to turn red proves nothing. `facts` compares nothing of production: a
    # fixture that does not witness its facts is never a kill.
    entries = [
        m for path in (ROOT / "mutants").glob("*.toml") for m in tomllib.loads(path.read_text())["mutant"]
    ]
    killers = {name for entry in entries for name in entry.get("killed_by", ())}
    named = {name.removesuffix("]").rpartition("-")[2] for name in killers if "::test_identity[" in name}
    asked = {check for fixture in load_folder(ROOT / "fixtures").values() for check in checks_of(fixture)}
    assert asked - named == {"facts"}


def test_no_two_test_modules_share_a_name():
    # Each folder alone would be collected; the whole suite, and a run of the catalogue, would not.
    names = [
        Path(name).name
        for name in tracked_files()
        if name.startswith("tests/") and name.endswith(".py") and not name.startswith("tests/toy/")
    ]
    modules = [name for name in names if name != "conftest.py"]
    assert len(modules) > 50
    assert sorted(name for name in set(modules) if modules.count(name) > 1) == []
