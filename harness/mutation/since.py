"""`--since REV`: the entries whose inputs differ from those of a git revision.

A changed entry runs itself; a changed mutated file, the entries that change it; a changed test file, the
entries that name it, and the equivalents, whom the whole suite judges. Any other file may be read by any test
(a helper, a fixture, the configuration), so it runs all.
"""

from __future__ import annotations

import ast
import fnmatch
import os
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .catalogue import Catalogue, Mutant
from .errors import InputRefused
from .inputs import is_left_out, tree_digests
from .settings import Settings


@dataclass
class Changed:
    """The chosen ids, each with the first change that asks for it, and all files that changed."""

    why: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)


def choose(root: Path, settings: Settings, found: Catalogue, revision: str) -> Changed:
    """Compare the tree with a revision; raises InputRefused when git cannot."""
    result = Changed(files=[f for f in _differing(root, revision) if not is_left_out(f, settings)])
    for file in result.files:
        for mutant in _concerned(root, settings, found, revision, file):
            result.why.setdefault(mutant.id, file)
    return result


def _differing(root: Path, revision: str) -> list[str]:
    """Files that differ from the revision or are new to git, relative to the root."""
    told = _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if told is None:
        inside = _git(root, "rev-parse", "--is-inside-work-tree") is not None
        why = f"git knows no revision '{revision}'" if inside else "this is no git checkout"
        raise InputRefused([f"--since {revision}: {why}; give a commit, branch or tag"])
    commit = told.strip()
    changed = _git(root, "diff", "--name-only", "--no-renames", "--relative", "-z", commit, "--", ".") or ""
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z", ".") or ""
    return sorted({name for name in (changed + new).split("\0") if name})


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, check=False)
    except OSError:
        return None
    return os.fsdecode(done.stdout) if done.returncode == 0 else None


def _concerned(
    root: Path, settings: Settings, found: Catalogue, revision: str, file: str
) -> Sequence[Mutant]:
    mutants = found.mutants
    if file.startswith(f"{settings.catalogue.rstrip('/')}/") and file.endswith(".toml"):
        before = _entries(_git(root, "show", f"{revision}:./{file}") or "")
        now = _entries((root / file).read_text(encoding="utf-8") if (root / file).exists() else "")
        return [m for m in mutants if m.id in now and before.get(m.id) != now[m.id]]
    changing = [mutant for mutant in mutants if file in mutant.files]
    if changing:
        # Tests of other entries may run this file too; those are left to the whole run that must follow.
        return changing
    if _is_test(settings, file) and not _imported(root, settings, file):
        return [m for m in mutants if m.kind == "equivalent" or _names(m, file)]
    return mutants


def _entries(text: str) -> dict[str, Mapping[str, Any]]:
    try:
        found = tomllib.loads(text).get("mutant", [])
    except tomllib.TOMLDecodeError:
        return {}
    return {str(entry.get("id")): entry for entry in found if isinstance(entry, dict)}


def _is_test(settings: Settings, file: str) -> bool:
    """A file of tests by name; a conftest or a helper among them may be read by any test."""
    name = file.rpartition("/")[2]
    below = any(
        tree == "." or file == tree or file.startswith(f"{tree.rstrip('/')}/") for tree in settings.tests
    )
    return below and name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def _names(mutant: Mutant, file: str) -> bool:
    named = {test.partition("::")[0] for test in (*mutant.killed_by, *mutant.must_stay_green)}
    return any(fnmatch.fnmatchcase(file, each) for each in named)


def _imported(root: Path, settings: Settings, file: str) -> bool:
    """Whether another file of the project imports this test file, which then is a helper of that one."""
    stem = file.rpartition("/")[2].removesuffix(".py")
    others = [name for name in tree_digests(root, settings) if name.endswith(".py") and name != file]
    return any(stem in _imports(root / name) for name in others)


def _imports(path: Path) -> set[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return set()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(part for alias in node.names for part in alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            names.update((node.module or "").split("."))
            names.update(alias.name for alias in node.names)
    return names
