"""What a result depends on: the digest of every relevant file, and the versions."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from .edge import read_toml
from .settings import Settings

_PACKAGES = ("pytest", "numpy", "torch", "hypothesis")
# What tools leave behind: no judgement reads it, and a project without a .gitignore must not look changed by it.
_NOISE = {"__pycache__", "node_modules", ".git", ".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache"}


def tree_digests(root: Path, settings: Settings) -> dict[str, str]:
    """sha256 of every file that git does not ignore, by path relative to the root.

    A link counts as where it points and what is there; a folder that is a checkout of its own counts file
    by file. The reports folder, caches and what the configuration calls irrelevant are left out, but never what the
    catalogue itself names. Outside of a git checkout, every file counts except hidden folders, caches and
    virtual environments.
    """
    kept = [name for name in _files_below(root, "") if not is_left_out(name, settings)]
    found: dict[str, str] = {}
    for name in [*kept, *_named(root, settings)]:
        for file in _behind(root, name):
            found[_printable(file)] = _digest(root / file)
    return dict(sorted(found.items()))


def _files_below(root: Path, prefix: str) -> list[str]:
    """Files and links below a folder of the project; a checkout inside of it is looked into."""
    folder = root / prefix
    names = _git_files(folder)
    if names is None:
        names = _walked_files(folder)
    found = []
    for name in (prefix + name for name in names):
        path = root / name
        if path.is_dir() and not path.is_symlink():
            found += _files_below(root, f"{name.rstrip('/')}/")
        elif path.is_file() or path.is_symlink():
            found.append(name)
    return found


def _behind(root: Path, name: str) -> list[str]:
    """The name itself, and for a link to a folder that lies elsewhere also every file in there."""
    path = root / name
    if not (path.is_symlink() and path.is_dir()):
        return [name]
    there, here = path.resolve(), root.resolve()
    if there.is_relative_to(here) or here.is_relative_to(there):
        return [name]
    return [name, *(f"{name}/{inner}" for inner in _walked_files(path) if (path / inner).is_file())]


def _digest(path: Path) -> str:
    if not path.is_symlink():
        return file_digest(path)
    told = os.fsencode(os.readlink(path))
    return hashlib.sha256(told + b"\0" + (path.read_bytes() if path.is_file() else b"")).hexdigest()


def _printable(name: str) -> str:
    # Names are bytes to the kernel, and evidence is UTF-8.
    return os.fsencode(name).decode("utf-8", "backslashreplace")


_SETTLES = (
    "pyproject.toml",
    "pytest.toml",
    ".pytest.toml",
    "pytest.ini",
    ".pytest.ini",
    "tox.ini",
    "setup.cfg",
)


def _named(root: Path, settings: Settings) -> list[str]:
    """What no setting and no ignore rule can leave out: the catalogue, and what its entries name.

    That is the files that they mutate, their killers' files with every conftest.py above, and pytest's own
    configuration files. A catalogue that cannot be read names nothing and judges nothing.
    """
    names: dict[str, None] = {}
    for path in sorted((root / settings.catalogue).glob("*.toml")):
        names[os.path.join(settings.catalogue, path.name)] = None
        for entry in _entries(path):
            edits = entry.get("edit", ())
            tables = [entry, *(edits if isinstance(edits, list) else ())]
            names.update((str(table.get("file", "")), None) for table in tables if isinstance(table, dict))
            tests = [*_texts(entry.get("killed_by")), *_texts(entry.get("must_stay_green"))]
            names.update((test.partition("::")[0], None) for test in tests)
    found = [*names, *_SETTLES]
    found += [(folder / "conftest.py").as_posix() for name in names for folder in Path(name).parents]
    # As git spells them, so that no file is there under two names.
    inside = [os.path.normpath(name) for name in dict.fromkeys(found) if name and not os.path.isabs(name)]
    return [name for name in inside if not name.startswith("..") and (root / name).is_file()]


def _entries(path: Path) -> list[dict[str, Any]]:
    entries = read_toml(path, path.name)[0].get("mutant", [])
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def is_left_out(name: str, settings: Settings) -> bool:
    """Whether a file cannot change a verdict: a report, or what the configuration calls irrelevant."""
    if name == settings.reports or name.startswith(settings.reports.rstrip("/") + "/"):
        return True
    *folders, base = name.split("/")
    if not _NOISE.isdisjoint(folders) or base == ".coverage" or base.startswith(".coverage."):
        return True
    return any(fnmatch.fnmatch(base, rule) or fnmatch.fnmatch(name, rule) for rule in settings.irrelevant)


def _git_files(root: Path) -> list[str] | None:
    command = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z", "."]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError:
        return None
    names = [name for name in os.fsdecode(done.stdout).split("\0") if name]
    return list(dict.fromkeys(names)) if done.returncode == 0 and names else None


def _walked_files(root: Path) -> list[str]:
    names: list[str] = []
    for folder, inner, files in os.walk(root):
        at = Path(folder)
        inner[:] = [
            d
            for d in inner
            if d not in _NOISE and not d.startswith(".") and not (at / d / "pyvenv.cfg").exists()
        ]
        links = [d for d in inner if (at / d).is_symlink()]
        names += [(at / file).relative_to(root).as_posix() for file in [*files, *links]]
    return names


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def versions() -> dict[str, str | None]:
    """Versions of the interpreter and of the packages that can change a verdict; None when absent."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found
