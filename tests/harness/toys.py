"""Toy projects: tiny pytest projects as data, always run from a copy in a temporary folder.

A toy is one TOML file in tests/toy: a sentence (`says`), its files, and what a run must come to.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness import gate, mutate
from harness.exit_codes import ExitCode
from harness.mutation.errors import InputRefused, InstrumentBroken

REPOSITORY = Path(__file__).parents[2]
FOLDER = REPOSITORY / "tests" / "toy"
SHORT_LIMITS = "[tool.rowproof.limits]\nwall_s = 1.0\nwall_factor = 1.0\n"


@dataclass(frozen=True)
class Toy:
    """One toy, read."""

    name: str
    says: str
    files: dict[str, str]
    expect: dict[str, Any] = field(default_factory=dict)
    # Folder by standard extension module: its compiled file is copied there, as part of the project.
    extensions: dict[str, str] = field(default_factory=dict)


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
    files, expect = dict(data["files"]), dict(data["expect"])
    if "items" in data:
        items = [dict(zip(data["items"]["columns"], row, strict=True)) for row in data["items"]["rows"]]
        files["mutants/items.toml"] = "\n".join(_entries(data["items"], items))
        made = [(item, verdict) for item in items for verdict in ("kills", "survives")]
        expect["verdicts"] = {f"{item['name']}-{verdict}": _ENDS[verdict] for item, verdict in made}
        expect["nulls"] = [(item["scope"], item["mode"]) for item in items]
        expect["modes"] = {f"{item['name']}-{verdict}": item["mode"] for item, verdict in made}
    return Toy(name, data["says"], files, expect, data.get("extensions", {}))


_ENDS = {"kills": "killed", "survives": "survived"}


def _entries(shared: dict[str, Any], items: list[dict[str, str]]) -> Iterator[str]:
    """Catalogue entries of a toy that lists its faults as rows: one that its test sees, one that it cannot see."""
    for item in items:
        for which in _ENDS:
            yield "[[mutant]]"
            for key, value in (
                ("id", f"{item['name']}-{which}"),
                ("file", item.get("file") or shared["file"]),
                ("scope", item["scope"]),
                ("find", item["find"]),
                ("replace", item[which]),
                ("because", "it would be wrong"),
                ("origin", "own"),
                ("killed_by", [item.get("killer") or shared["killer"]]),
            ):
                yield f"{key} = {json.dumps(value)}"


def lay(toy: Toy, root: Path) -> Path:
    """Write a toy's files under `root` and return it."""
    root.mkdir(parents=True, exist_ok=True)
    for name, text in toy.files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for folder, module in toy.extensions.items():
        compiled = importlib.import_module(module).__file__
        assert compiled, f"{module} is built into this interpreter; name another extension module"
        shutil.copy(compiled, root / folder)
    if "pyproject.toml" not in toy.files:
        (root / "pyproject.toml").write_text(SHORT_LIMITS)
    return root


def command(app: Any, root: Path, monkeypatch: pytest.MonkeyPatch, *args: str, columns: str = "300") -> Ran:
    """Run a command in this process, with the exit codes of the real one."""
    monkeypatch.chdir(root)
    monkeypatch.setenv("COLUMNS", columns)
    result = CliRunner().invoke(app, list(args))
    code, text = result.exit_code, result.output
    if isinstance(result.exception, InputRefused):
        code, text = int(ExitCode.USAGE), text + "\n".join(result.exception.problems)
    elif isinstance(result.exception, InstrumentBroken):
        code, text = int(ExitCode.INSTRUMENT), text + str(result.exception)
    elif result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(code, text, root)


def complaints(toy: Toy, ran: Ran, before: dict[Path, bytes]) -> list[str]:
    """What differs between a run and what the toy's file says; nothing when the test is green."""
    expect = toy.expect
    found = [] if ran.code == expect["exit"] else [f"exit {ran.code}, should be {expect['exit']}"]
    found += [f"the report lacks: {line}" for line in expect.get("lines", []) if line not in ran.text]
    if "verdicts" in expect:
        verdicts = ran.verdicts() if (ran.root / "reports" / "evidence.json").exists() else {}
        if verdicts != expect["verdicts"]:
            found.append(f"verdicts {verdicts}, should be {expect['verdicts']}")
        if f"of {len(expect['verdicts'])} · " not in ran.text:
            found.append("the counts lack their denominator")
    if "partial" in expect:
        told = {r["id"]: r["verdict"] for r in ran.evidence("partial.json")["predicate"]["mutants"]}
        if told != expect["partial"] or (ran.root / "reports" / "evidence.json").exists():
            found.append(f"partial verdicts {told}, should be {expect['partial']} and no evidence")
    if "mode" in expect:
        modes = {record["mode"] for record in ran.evidence()["predicate"]["mutants"]}
        if modes != {expect["mode"]}:
            found.append(f"judged by {modes}, should be {expect['mode']}")
    if "modes" in expect:
        judged = {record["id"]: record["mode"] for record in ran.evidence()["predicate"]["mutants"]}
        wrong = {name: judged[name] for name, mode in expect["modes"].items() if judged[name] != mode}
        if wrong:
            found.append(f"judged by {wrong}, should be { {name: expect['modes'][name] for name in wrong} }")
        found += _without_null(ran, toy)
    if "rolled_back" in expect and (told := ran.evidence("run.json")["rolled_back"]) != expect["rolled_back"]:
        found.append(f"rolled back {told}, should be {expect['rolled_back']}")
    if snapshot(ran.root) != before:
        found.append("the working tree is not what it was")
    if left := running_in(ran.root):
        found.append(f"{len(left)} processes are left")
    return found


def _without_null(ran: Ran, toy: Toy) -> list[str]:
    """Items whose function has no null mutant in the mode that judges it; a class body belongs to its module."""
    controls = ran.evidence()["predicate"]["controls"]
    nulls = {(c["function"], c["mode"]) for c in controls if c["control"] == "null"}
    names = {name for name, _ in nulls}
    return [
        f"{scope} has no null mutant by {mode}"
        for scope, mode in toy.expect["nulls"]
        if ((scope, mode) if scope in names - {"<module>"} else ("<module>", "reimport")) not in nulls
    ]


def audit(toy: Toy, root: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> list[str]:
    """What differs when the entries of some items (no name: of all) are judged by one way alone."""
    names = toy.expect["audits"][way] or [item.rpartition("-")[0] for item in toy.expect["modes"]]
    wanted = {f"{name}-{which}": (verdict, way) for name in names for which, verdict in _ENDS.items()}
    only = [f"--only={name}" for name in wanted]
    ran = run(root, monkeypatch, "-j", "2", "--no-explain", "--isolation", way, *only)
    found = {
        record["id"]: (record["verdict"], record["mode"])
        for record in ran.evidence("partial.json")["predicate"]["mutants"]
    }
    return [] if found == wanted else [f"by {way} alone {found}, should be {wanted}\n{ran.text}"]


def snapshot(root: Path) -> dict[Path, bytes]:
    """Every file of the project outside reports/."""
    return {p: p.read_bytes() for p in root.rglob("*") if p.is_file() and "reports" not in p.parts}


def running_in(root: Path) -> set[int]:
    """Other processes whose working folder is the project: servers, children, orphans."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").resolve() == root.resolve():
                found.add(int(entry.name))
        except OSError:
            continue
    return found - {os.getpid()}


def start(
    root: Path,
    engine: Path = REPOSITORY,
    module: str = "harness.mutate",
    args: tuple[str, ...] = (),
    **options: Any,
) -> subprocess.Popen[str]:
    """Start a real run in a process of its own, with the engine of any folder."""
    path = os.pathsep.join([str(engine), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *(args or (["-j", "2"] if module == "harness.mutate" else []))],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "300"},
        stderr=subprocess.STDOUT,
        text=True,
        **{"stdout": subprocess.DEVNULL, **options},
    )


def run(root: Path, monkeypatch: pytest.MonkeyPatch, *args: str) -> Ran:
    """`harness.mutate` on a laid toy."""
    return command(mutate.app, root, monkeypatch, *args)


def run_gate(root: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """`harness.gate` on a laid toy."""
    return command(gate.app, root, monkeypatch)
