"""The page on verifying one's own cache: its adapter, its commands and what it says they print."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "harness/caches/README.md").read_text()


def block(kind: str) -> str:
    [text] = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    return str(text)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "my_adapter.py").write_text(block("python adapter"))
    return tmp_path


def run(line: str, folder: Path) -> tuple[int, str]:
    words = shlex.split(line, comments=True)
    assert words[0] == "python"
    done = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def mend(folder: Path) -> None:
    adapter = folder / "my_adapter.py"
    text = adapter.read_text()
    assert text.count("max(counts)") == 1
    adapter.write_text(text.replace("max(counts)", "np.array(counts)"))


def test_the_first_command_finds_the_fault_in_the_words_of_the_page(project: Path):
    first = block("sh verify").splitlines()[0]
    code, said = run(first, project)
    shown, _ = (text for text in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL))
    assert code == 1
    assert shown in said


def test_with_the_fault_mended_the_search_finds_what_batch_and_alone_share(project: Path):
    mend(project)
    code, said = run(block("sh verify").splitlines()[2], project)
    _, shown = (text for text in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL))
    assert code == 1
    assert shown in said
    [kept] = (project / "reports/found").glob("found_*.toml")
    replay = f"python -m harness.identity --subject my_adapter:Window --fixtures reports/found --fixture {kept.stem}"
    code, said = run(replay, project)
    assert code == 1
    assert shown in said


def test_the_adapter_takes_about_thirty_lines():
    code = [line for line in block("python adapter").splitlines() if line.strip()]
    assert len(code) <= 32


def test_a_kept_finding_is_a_test_that_is_red_until_the_cache_is_mended(project: Path):
    mend(project)
    (project / "test_my_cache.py").write_text(block("python keep"))
    (project / "fixtures").mkdir()
    (project / "fixtures" / "room_for_four_drafts.toml").write_text(
        'proves = "Six drafts are dropped again."\nratio = 4\nspan = 2\nfacts = ["depth_refused"]\n'
        'step = [{ do = "prefill", lengths = [15] }, { do = "verify", width = 6, accept = [0] }]\n'
    )
    code, said = run("python -m pytest -q test_my_cache.py -k mended", project)
    assert code == 1
    assert "alone holds r0:t20, rolled back   fresh holds r0:t0" in said
    adapter = project / "my_adapter.py"
    adapter.write_text(adapter.read_text().replace("20", "24"))
    code, said = run("python -m pytest -q test_my_cache.py -k mended", project)
    assert code == 0, said


def test_the_installed_script_finds_an_adapter_in_the_current_folder_as_python_does(project: Path):
    script = Path(sys.executable).with_name("rowproof")
    words = ["identity", "--subject", "my_adapter:Window", "--fixture", "one_sequence_in_chunks"]
    done = subprocess.run(
        [script, *words],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fixtures played 1 of 1: 1 green" in done.stdout


def test_the_fixture_of_the_page_is_one_and_is_played(project: Path):
    (project / "fixtures").mkdir()
    (project / "fixtures" / "fork.toml").write_text(block("toml fixture"))
    mend(project)
    code, said = run("python -m harness.identity --subject my_adapter:Window --fixtures fixtures", project)
    assert code == 0, said
