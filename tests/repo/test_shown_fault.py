"""README's example: its fault, planted in a copy, prints its message; its replay line prints it again."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT, fences

PACKAGES = ("harness", "reference_impl", "torch_impl", "fixtures")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with the fault that README shows."""
    copy = tmp_path_factory.mktemp("broken")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__"))
    [shown] = fences("diff", "fault")
    head, before, after = shown.text.splitlines()
    file = copy / head.removeprefix("--- ")
    source = file.read_text(encoding="utf-8")
    assert source.count(before[1:]) == 1, f"{shown}: the line to break is not in {file.name} exactly once"
    file.write_text(source.replace(before[1:], after[1:]), encoding="utf-8")
    return copy


def identity(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness.identity", *arguments]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=240)


def test_the_message_is_what_identity_says_and_its_replay_line_repeats_it(broken: Path):
    [message] = [fence.text for fence in fences("text", "shown")]
    fixture = re.search(r"MISMATCH  (\w+)", message)
    assert fixture
    found = identity(broken, "--fixture", fixture[1])
    assert found.returncode == 1
    assert message in found.stdout
    replay = re.search(r"replay: python -m harness\.identity (.*)", message)
    assert replay
    again = identity(broken, *replay[1].split())
    assert again.returncode == 1
    assert message in again.stdout
