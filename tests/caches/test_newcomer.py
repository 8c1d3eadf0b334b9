"""A paged cache that a newcomer brought, with a fault of its own: a page that two rows share is written again.

The first green over it was false: no history went back behind a fork. Since then a fixture does, the search draws it,
and a run says which situations it never met.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BROUGHT = Path(__file__).with_name("newcomer")
FAULT = """            self.tables[row] = self.tables[row][:keep]
"""
MENDED = """            kept = self.tables[row][:keep]
            self.tables[row] = self._fork(kept, length)
            for page in kept:
                self._release(page)
"""
SHARED = "if it were r0, with which it has {} tokens in common (is their memory shared?)"


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    shutil.copytree(BROUGHT, tmp_path / "engine", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "engine"


def mend(engine: Path) -> None:
    cache = engine / "paged_cache.py"
    assert cache.read_text().count(FAULT) == 1
    cache.write_text(cache.read_text().replace(FAULT, MENDED))


def run(engine: Path, command: str, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", f"harness.{command}", "--subject", "paged_adapter:Paged", *arguments],
        cwd=engine,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_row_that_goes_back_behind_a_fork_shows_whose_page_was_written(engine: Path):
    code, said = run(engine, "identity", "--fixture", "rows_part_behind_a_fork")
    assert code == 1
    assert "step 3 advance(+2,+0,+1,+0) · row 1 · keys" in said
    assert "column 6 of 8   batch holds r0:t6#2   alone holds r0:t6" in said
    assert "batch holds what the row would hold " + SHARED.format(8) in said


def test_the_search_finds_it_in_few_histories_and_nothing_once_it_is_mended(engine: Path):
    code, said = run(engine, "search", "--examples", "100")
    assert code == 1
    assert "(is their memory shared?)" in said
    mend(engine)
    code, said = run(engine, "search", "--examples", "60")
    assert code == 0, said
    code, said = run(engine, "identity", "--fixture", "rows_part_behind_a_fork")
    assert code == 0, said


def test_a_run_that_meets_no_fork_says_so(engine: Path):
    code, said = run(engine, "identity", "--fixture", "accept_none_some_all")
    assert code == 0
    assert "identity holds in what was played" in said
    assert "never met: a row that goes back behind a fork and goes on otherwise" in said
