"""Projects as pip installs them: in place by a path, in place by a finder, and as a copy that no mutant reaches."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from toys import REPOSITORY

FINDER = """
import sys
from importlib.machinery import PathFinder


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [{folder!r}]) if name == "mapped" else None


def install():
    sys.meta_path.append(Finder)
"""
CODE = "def f(x):\n    return x + 1\n"
TEST = "import {name}\n\n\ndef test_f():\n    assert {name}.f(1) == 2\n"
ENTRY = """
[[mutant]]
id = "{name}"
file = "{file}"
scope = "f"
find = "x + 1"
replace = "x + 2"
because = "it would be wrong"
origin = "own"
killed_by = ["tests/test_{name}.py::test_f"]
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with packages of its own, beside everything that this one has."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    (site / "beside.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


def site_of(python: Path) -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(python.parents[1])}))


def judge(python: Path, root: Path) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "300"}
    command = [str(python), "-P", "-m", "harness.mutate", "-j", "2"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout + done.stderr


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, file in files.items():
        for path, text in ((file, CODE), (f"tests/test_{name}.py", TEST.format(name=name))):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
    (root / "mutants").mkdir()
    (root / "mutants" / "a.toml").write_text("".join(ENTRY.format(name=n, file=f) for n, f in files.items()))
    return root


def test_a_package_that_is_installed_in_place_is_mutated_in_place(python: Path, tmp_path: Path) -> None:
    root = lay(tmp_path, {"pathed": "src/pathed/__init__.py", "mapped": "lib/mapped/__init__.py"})
    site = site_of(python)
    (site / "__editable__.pathed.pth").write_text(f"{root}/src\n")
    (site / "__editable___mapped_finder.py").write_text(FINDER.format(folder=str(root / "lib")))
    (site / "__editable__.mapped.pth").write_text(
        "import __editable___mapped_finder; __editable___mapped_finder.install()\n"
    )
    code, text = judge(python, root)
    assert code == 0, text
    records = json.loads((root / "reports" / "evidence.json").read_text())["predicate"]["mutants"]
    assert {r["id"]: (r["verdict"], r["mode"]) for r in records} == {
        "mapped": ("killed", "swap"),
        "pathed": ("killed", "swap"),
    }


def test_a_copy_in_site_packages_is_named_with_what_to_do(python: Path, tmp_path: Path) -> None:
    root = lay(tmp_path, {"copied": "src/copied/__init__.py"})
    copy = site_of(python) / "copied" / "__init__.py"
    copy.parent.mkdir()
    copy.write_text(CODE)
    code, text = judge(python, root)
    assert "not-applied 1" in text, text
    assert f"the tests import {copy}, not src/copied/__init__.py: install the project in place" in text
    assert code == 4
