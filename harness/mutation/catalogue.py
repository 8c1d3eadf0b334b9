"""The catalogue: TOML files of named faults, read and checked without importing the project.

One file per theme; the theme of a mutant is its file's stem. `load` reports every problem of
every file at once. Killer names are only checked for form here; collection resolves them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from .anchor import Edit, check_edits
from .edge import read_table, read_toml, salvage
from .errors import did_you_mean
from .settings import Settings

ID_FORM = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+\Z")
KILLERS_MAX = 3
# What a refused entry is read with, so that the rest of it can be checked.
_STAND_IN = {"id": "unnamed", "because": "missing", "origin": "missing"}
_EDIT_KEYS = frozenset({"file", "scope", "find", "replace", "edit"})


@dataclass(frozen=True)
class EditTable:
    """One `[[mutant.edit]]`; file and scope default to the mutant's."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}
    find: str
    replace: str
    file: str | None = None
    scope: str | None = None


@dataclass(frozen=True)
class MutantTable:
    """One `[[mutant]]` as it stands in the file."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}
    id: str
    because: str
    origin: str
    file: str | None = None
    scope: str | None = None
    find: str | None = None
    replace: str | None = None
    edit: tuple[EditTable, ...] = ()
    killed_by: tuple[str, ...] = ()
    must_stay_green: tuple[str, ...] = ()
    survives_under: tuple[str, ...] = ()
    dies_by: str = "assertion"
    twin_of: str | None = None
    kind: Literal["mutant", "equivalent"] = "mutant"
    why: str | None = None


@dataclass(frozen=True)
class Mutant:
    """One entry, resolved: where it stands, what it changes, and who must see it."""

    id: str
    theme: str
    because: str
    origin: str
    edits: tuple[Edit, ...]
    killed_by: tuple[str, ...]
    must_stay_green: tuple[str, ...] = ()
    survives_under: tuple[str, ...] = ()
    dies_by: str = "assertion"
    twin_of: str | None = None
    kind: str = "mutant"
    why: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """The mutated files, relative to the project root, each once."""
        return tuple(dict.fromkeys(edit.file for edit in self.edits))

    @property
    def expected(self) -> str:
        """The verdict that keeps the promise of this entry."""
        return "survived" if self.kind == "equivalent" else "killed"

    @property
    def told(self) -> dict[str, Any]:
        """What evidence says of the entry beside what was observed."""
        names = ("id", "theme", "kind", "expected", "dies_by", "twin_of")
        lists = ("killed_by", "must_stay_green", "survives_under")
        return {n: getattr(self, n) for n in names} | {n: list(getattr(self, n)) for n in lists}


@dataclass
class Catalogue:
    """All entries in file order, and every problem found."""

    mutants: list[Mutant] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    files: int = 0
    # Of broken entries too: they are in the catalogue, only nobody can judge them.
    ids: set[str] = field(default_factory=set)
    twins: list[tuple[str, str]] = field(default_factory=list)
    themes: set[str] = field(default_factory=set)

    def by_id(self) -> dict[str, Mutant]:
        """Entries by id."""
        return {mutant.id: mutant for mutant in self.mutants}


def load(root: Path, settings: Settings) -> Catalogue:
    """Read and check every catalogue file of the project at `root`."""
    result = Catalogue()
    folder = root / settings.catalogue
    if not folder.is_dir():
        result.problems.append(
            f"{settings.catalogue}/: there is no catalogue folder; create it with one TOML file per theme"
        )
        return result
    seen: dict[str, str] = {}
    for path in sorted(folder.glob("*.toml")):
        result.files += 1
        result.themes.add(path.stem)
        _load_file(root, settings, path, seen, result)
    result.problems += _dangling_twins(result)
    return result


def _load_file(root: Path, settings: Settings, path: Path, seen: dict[str, str], result: Catalogue) -> None:
    shown = f"{settings.catalogue}/{path.name}"
    document, problems = read_toml(path, shown)
    result.problems += problems
    for key in document:
        if key != "mutant":
            result.problems.append(f"{shown}: unknown key '{key}'{did_you_mean(key, ['mutant'])}")
    entries = document.get("mutant", [])
    if not isinstance(entries, list):
        result.problems.append(f"{shown}: 'mutant' should be an array of tables, write [[mutant]]")
        return
    for number, entry in enumerate(entries, start=1):
        name = entry.get("id") if isinstance(entry, dict) else None
        where = f"{shown}: mutant '{name}'" if isinstance(name, str) else f"{shown}: mutant number {number}"
        table, problems = read_table(MutantTable, entry, where)
        lost: frozenset[str] = frozenset()
        if table is None:
            table, lost = salvage(MutantTable, entry, _STAND_IN)
        if table is None:
            result.problems += problems
            continue
        if "id" not in lost:
            if table.id in seen:
                problems.append(f"{where}: the id is already used in {seen[table.id]}; ids are unique")
            seen[table.id] = shown
            result.ids.add(table.id)
            result.twins += [(table.id, table.twin_of)] if table.twin_of is not None else []
        mutant, unresolved = _resolve(table, path.stem, where)
        # Without one of these keys an entry names no edit, which was said already.
        problems += [] if lost & _EDIT_KEYS else unresolved
        problems += _check_form(root, table, lost, where)
        if mutant is not None and not lost & _EDIT_KEYS:
            problems += check_edits(root, settings.roots, mutant.edits, where)
        result.problems += problems
        if mutant is not None and not problems:
            result.mutants.append(mutant)


def _resolve(table: MutantTable, theme: str, where: str) -> tuple[Mutant | None, list[str]]:
    if table.edit and (table.find is not None or table.replace is not None):
        return None, [f"{where}: has find/replace and [[mutant.edit]]; use one of the two forms"]
    if not table.edit and (table.find is None or table.replace is None):
        return None, [f"{where}: key 'find' or 'replace' is missing (or give [[mutant.edit]] tables)"]
    raw = table.edit or (EditTable(find=table.find or "", replace=table.replace or ""),)
    edits = []
    for item in raw:
        file, scope = item.file or table.file, item.scope or table.scope
        if file is None or scope is None:
            return None, [f"{where}: key 'file' or 'scope' is missing"]
        edits.append(Edit(file=file, scope=scope, find=item.find, replace=item.replace))
    shared = {f.name for f in fields(Mutant)} & {f.name for f in fields(MutantTable)}
    values = {name: getattr(table, name) for name in shared}
    return Mutant(theme=theme, edits=tuple(edits), **values), []


def _check_form(root: Path, table: MutantTable, lost: frozenset[str], where: str) -> list[str]:
    problems = []
    if not ID_FORM.match(table.id):
        problems.append(f"{where}: the id should be kebab-case (lower-case letters, digits, hyphens)")
    for key in ("because", "origin"):
        if not getattr(table, key).strip():
            problems.append(f"{where}: key '{key}' is empty; write one sentence")
    if table.kind == "equivalent" and not table.why and "why" not in lost:
        problems.append(
            f"{where}: kind is 'equivalent' without why; say in one sentence why nothing can see it"
        )
    counted = table.kind == "mutant" and not lost & {"kind", "killed_by"}
    if counted and not 1 <= len(table.killed_by) <= KILLERS_MAX:
        problems.append(f"{where}: killed_by has {len(table.killed_by)} ids, should have 1 to {KILLERS_MAX}")
    if len(set(table.killed_by)) != len(table.killed_by):
        problems.append(f"{where}: killed_by names one test twice")
    if table.dies_by != "assertion" and not _DOTTED.match(table.dies_by):
        problems.append(
            f"{where}: dies_by is '{table.dies_by}', should be 'assertion' or the dotted name of an exception"
        )
    if table.dies_by in ("builtins.Exception", "builtins.BaseException"):
        # Bases count too, so these would make a kill of every crash.
        problems.append(
            f"{where}: dies_by is '{table.dies_by}', which every crash is; name the one that is meant"
        )
    problems += _check_names(root, table.killed_by, "killed_by", where)
    problems += _check_names(root, table.must_stay_green, "must_stay_green", where)
    problems += [
        f"{where}: '{name}' is both in killed_by and in must_stay_green"
        for name in table.killed_by
        if name in table.must_stay_green
    ]
    return problems


def _check_names(root: Path, names: Sequence[str], key: str, where: str) -> list[str]:
    problems = []
    for name in names:
        file, separator, rest = name.partition("::")
        if not separator or not rest:
            problems.append(
                f"{where}: {key} names '{name}', should be a pytest id such as path/test_x.py::test_y"
            )
        elif key == "killed_by" and "*" in name.partition("[")[0]:
            problems.append(f"{where}: killed_by names '{name}'; a killer is an exact id, without a glob")
        elif "*" not in file and not (root / file).is_file():
            problems.append(f"{where}: {key} names '{name}', but there is no file '{file}'")
    return problems


def _dangling_twins(found: Catalogue) -> list[str]:
    return [
        f"mutant '{name}': twin_of names '{twin}', which is not in the catalogue{did_you_mean(twin, found.ids)}"
        for name, twin in found.twins
        if twin not in found.ids or twin == name
    ]
