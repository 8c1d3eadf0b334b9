"""Toy projects: tiny pytest projects as data, always run from a copy in a temporary folder.

A toy is one TOML file in tests/toy: a sentence (`says`), its files, and what a run must come to.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness import gate, mutate
from harness.exit_codes import ExitCode
from harness.mutation.errors import InputRefused, InstrumentBroken

FOLDER = Path(__file__).parent.parent / "toy"
SHORT_LIMITS = "[tool.rowproof.limits]\nwall_s = 1.0\nwall_factor = 1.0\n"


@dataclass(frozen=True)
class Toy:
    """One toy, read."""

    name: str
    says: str
    files: dict[str, str]
    expect: dict[str, Any] = field(default_factory=dict)


@dataclass
class Ran:
    """How a command on a toy ended: exit code and everything it printed."""

    code: int
    text: str
    root: Path

    def evidence(self, name: str = "evidence.json") -> dict[str, Any]:
        """The evidence that was written."""
        return dict(json.loads((self.root / "reports" / name).read_text()))

    def verdicts(self) -> dict[str, str]:
        """Verdict by mutant."""
        return {record["id"]: record["verdict"] for record in self.evidence()["predicate"]["mutants"]}


def toys() -> list[Toy]:
    """All toys of the folder."""
    return [read(path.stem) for path in sorted(FOLDER.glob("*.toml"))]


def read(name: str) -> Toy:
    """One toy by name."""
    data = tomllib.loads((FOLDER / f"{name}.toml").read_text())
    return Toy(name, data["says"], data["files"], data["expect"])


def lay(toy: Toy, root: Path) -> Path:
    """Write a toy's files under `root` and return it."""
    root.mkdir(parents=True, exist_ok=True)
    for name, text in toy.files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    if "pyproject.toml" not in toy.files:
        (root / "pyproject.toml").write_text(SHORT_LIMITS)
    return root


def command(app: Any, root: Path, monkeypatch: pytest.MonkeyPatch, *args: str) -> Ran:
    """Run a command in this process, with the exit codes of the real one."""
    monkeypatch.chdir(root)
    monkeypatch.setenv("COLUMNS", "300")
    result = CliRunner().invoke(app, list(args))
    code, text = result.exit_code, result.output
    if isinstance(result.exception, InputRefused):
        code, text = int(ExitCode.USAGE), text + "\n".join(result.exception.problems)
    elif isinstance(result.exception, InstrumentBroken):
        code, text = int(ExitCode.INSTRUMENT), text + str(result.exception)
    elif result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(code, text, root)


def run(root: Path, monkeypatch: pytest.MonkeyPatch, *args: str) -> Ran:
    """`harness.mutate` on a laid toy."""
    return command(mutate.app, root, monkeypatch, *args)


def run_gate(root: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """`harness.gate` on a laid toy."""
    return command(gate.app, root, monkeypatch)
