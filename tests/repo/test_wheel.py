"""What installing rowproof puts on a machine, unpacked and used without the source tree."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from documents import ROOT, tracked_files


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder holding exactly what the wheel holds."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def run(site: Path, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(site)}
    command = [sys.executable, "-P", *arguments]
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)


def test_it_holds_the_packages_and_every_fixture_and_mutant(site: Path):
    held = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    packages = ("harness/", "reference_impl/", "torch_impl/")
    assert {name for name in tracked_files() if name.startswith(packages)} <= held
    for folder in ("fixtures", "mutants"):
        data = {name for name in tracked_files() if name.startswith(f"{folder}/") and name.endswith(".toml")}
        assert data, folder
        assert {f"harness/data/{name}" for name in data} <= held
    assert not [name for name in held if name.startswith(("tests/", "reports/", "fixtures/", "mutants/"))]


def test_identity_finds_its_fixtures_there(site: Path, tmp_path: Path):
    where = run(site, tmp_path, "-c", "import harness; print(harness.__file__)")
    assert where.stdout.startswith(str(site)), where.stdout + where.stderr
    fixture = min((ROOT / "fixtures").glob("*.toml")).stem
    played = run(site, tmp_path, "-m", "harness.identity", "--fixture", fixture)
    assert played.returncode == 0, played.stdout + played.stderr
    assert fixture in played.stdout


def test_judging_a_project_needs_nothing_of_arrays(site: Path):
    [metadata] = site.glob("*.dist-info/METADATA")
    needed = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata.read_text(), re.MULTILINE)
    assert "pytest" in needed
    assert not {"torch", "numpy", "safetensors"} & set(needed)


def test_it_judges_a_project_that_has_a_harness_package_of_its_own(site: Path, tmp_path: Path):
    toy = tomllib.loads((ROOT / "tests" / "toy" / "own_harness_package.toml").read_text())
    for name, text in toy["files"].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for command in ("mutate", "gate"):
        done = run(site, tmp_path, "-m", "harness", command)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "killed 1 of 1" in done.stdout
