"""Facts by fixtures: the report says which fixture goes through what, and what none goes through."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from harness import identity
from harness.report import facts
from harness.report import identity as report
from harness.rows.defaults import ORACLE, SUBJECT
from harness.rows.facts import FACTS
from harness.rows.fixture import default_folder, load
from harness.rows.results import Result, results
from harness.rows.subject import load as load_subject


@pytest.fixture(scope="module")
def played() -> list[Result]:
    chosen = [load(default_folder() / f"{name}.toml") for name in ("one_column", "trimmed_row")]
    return list(results(chosen, load_subject(SUBJECT), load_subject(ORACLE), ["hidden"], ["grouped"]))


def test_a_fact_is_declared_or_merely_witnessed_or_neither(played: list[Result]) -> None:
    table = facts.table(played)
    assert list(table) == list(FACTS)
    assert table["rows_reordered"] == {"one_column": "declared", "trimmed_row": ""}
    assert table["trimmed"] == {"one_column": "", "trimmed_row": "declared"}
    assert table["window_wraps"] == {"one_column": "", "trimmed_row": "witnessed"}


def test_facts_that_no_fixture_witnesses_are_listed(played: list[Result]) -> None:
    missing = facts.unwitnessed(facts.table(played))
    assert "restored" in missing and "trimmed" not in missing
    assert f"facts that no fixture witnesses: {', '.join(missing)}" in report.summary(
        played, None, "", {}, True
    )
    assert f"No fixture witnesses: {', '.join(missing)}." in facts.markdown(played)
    assert facts.as_json(played)["unwitnessed"] == missing


def test_every_line_of_the_table_counts_with_its_denominator(played: list[Result]) -> None:
    lines = facts.lines(played)
    assert f"{'trimmed':36} {1:8} {1:9}  ·●" in lines
    assert any(line.endswith("of 2 fixtures") for line in lines)
    assert f"| trimmed | {FACTS['trimmed']} | trimmed_row (1 of 2) | 1 of 2 |  |" in facts.markdown(played)


def test_the_command_writes_both_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(identity.identity)
    ran = CliRunner().invoke(app, ["--fixture", "one_column", "--plan", "grouped", "--report"])
    assert ran.exit_code == 0, ran.output
    assert "facts by fixtures" in ran.output
    data = json.loads((tmp_path / "reports" / "identity.json").read_text())
    assert data["facts"]["rows_reordered"] == {"one_column": "declared"}
    assert "| rows_reordered |" in (tmp_path / "reports" / "identity.md").read_text()
