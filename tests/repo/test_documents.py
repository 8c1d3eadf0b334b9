"""The documents say what the tree holds and show only commands that somebody runs."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from documents import DOCUMENTS, ROOT, commands, fences, promised_exits, tracked_files

SET_UP = "python3 -m venv .venv && .venv/bin/pip install "
DESIGN_LINE = re.compile(r"^- `([^`]+)`: (.+)$", re.MULTILINE)


def design_entries() -> list[str]:
    return [name for name, _ in DESIGN_LINE.findall((ROOT / "DESIGN.md").read_text(encoding="utf-8"))]


def expected_entries() -> set[str]:
    files = tracked_files()
    modules = {name for name in files if name.endswith(".py") and not name.startswith("tests/")}
    test_folders = {
        "/".join(name.split("/")[:2]) + "/"
        for name in files
        if name.count("/") > 1 and name.startswith("tests/")
    }
    top_level = {name.split("/")[0] + ("/" if "/" in name else "") for name in files}
    return modules | test_folders | top_level


def test_design_has_one_line_for_every_module_and_none_for_ghosts():
    listed = design_entries()
    assert sorted(set(listed)) == sorted(listed), "DESIGN.md describes a file twice"
    missing = sorted(expected_entries() - set(listed))
    ghosts = sorted(set(listed) - expected_entries())
    assert not missing, (
        f"DESIGN.md has no line for {missing}; add '- `path`: what it is for' to its list of files"
    )
    assert not ghosts, f"DESIGN.md describes {ghosts}, which the tree does not hold"


def test_the_first_screen_of_readme_has_exactly_two_set_up_lines():
    first = fences("sh")[0]
    assert first.document == "README.md" and first.line <= 15
    set_up = [line for line in first.text.splitlines() if not line.startswith("#")]
    assert len(set_up) == 2 and all(line.startswith(SET_UP) for line in set_up)
    assert set_up[0].endswith(" -m harness.mutate --report")
    assert set_up[1].endswith(" -m pytest")
    assert [line for line in commands("sh") if line.startswith(SET_UP)] == set_up


def test_every_command_block_says_who_runs_it():
    for fence in fences():
        if fence.words and fence.words[0] in ("sh", "bash", "console", "shell"):
            assert fence.words in [("sh", "ci"), ("sh", "tested"), ("sh", "project")], (
                f"{fence}: label the block `sh ci` (.ci/run executes it), `sh tested` (this file executes it) or "
                "`sh project` (test_own_project.py executes it)"
            )


def test_ci_extracts_the_same_commands_as_this_file():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    extraction = re.search(r"^commands=\$\((awk .*)\)$", script, re.MULTILINE)
    assert extraction
    printed = subprocess.run(
        ["bash", "-c", extraction[1]], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert printed.stdout.splitlines() == commands("sh", "ci")


@pytest.mark.parametrize(("command", "promised"), promised_exits("sh", "tested").items())
def test_shown_command(command: str, promised: int):
    """Runs in the root, as a reader would, after activating the environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shown = subprocess.run(
        ["bash", "-c", command],
        cwd=ROOT,
        env=os.environ | {"PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert shown.returncode == promised, shown.stdout + shown.stderr


def test_every_link_inside_the_documents_leads_somewhere():
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}, which does not exist"


def test_every_python_module_and_tox_environment_that_is_named_exists():
    environments = re.findall(
        r"^\[testenv:(\w+)\]", (ROOT / "tox.ini").read_text(encoding="utf-8"), re.MULTILINE
    )
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for module in re.findall(r"python -m (harness[.\w]*)", text):
            file = ROOT / module.replace(".", "/")
            assert file.with_suffix(".py").exists() or (file / "__main__.py").exists(), (
                f"{path.name} names {module}"
            )
        for environment in re.findall(r"tox -e ([\w-]+)", text):
            assert environment in environments, f"{path.name} names the tox environment {environment}"


def test_constraints_pin_everything_that_pyproject_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = project["dependencies"] + [
        line for extra in project["optional-dependencies"].values() for line in extra
    ]
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    extras = project["optional-dependencies"]
    assert set(extras["rows"]) <= set(extras["dev"])
    assert not [line for line in asked if line.startswith(project["name"])], (
        "PyPI's rowproof is another project"
    )
    assert {re.split(r"[<>=!~\[ ]", line)[0].lower() for line in asked} == {name.lower() for name in pinned}


def test_nothing_asks_pypi_for_our_name_which_is_another_projects_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    assert not [line for extra in extras for line in extra if line.startswith(project["name"])]
    for path in (*DOCUMENTS, *(ROOT / "harness").rglob("*.py"), *(ROOT / ".github").rglob("*.yml")):
        told = re.findall(r"pip install ['\"]?rowproof(?! @)", path.read_text(encoding="utf-8"))
        assert not told, f"{path.relative_to(ROOT)} says {told[0]}; give a path or an address"
