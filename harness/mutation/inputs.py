"""What a result depends on: the digest of every relevant file, and the versions."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from .settings import Settings

_PACKAGES = ("pytest", "numpy", "torch", "hypothesis")
_NOISE = {"__pycache__", "node_modules", ".git"}


def tree_digests(root: Path, settings: Settings) -> dict[str, str]:
    """sha256 of every regular file that git does not ignore, by path relative to the root.

    The reports folder and what the configuration calls irrelevant are left out. Outside of a git
    checkout, every file counts except hidden folders, caches and virtual environments.
    """
    names = _git_files(root)
    if names is None:
        names = _walked_files(root)
    kept = [name for name in names if not is_left_out(name, settings)]
    return {name: file_digest(root / name) for name in sorted(kept) if _is_regular(root / name)}


def _is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def is_left_out(name: str, settings: Settings) -> bool:
    """Whether a file cannot change a verdict: a report, or what the configuration calls irrelevant."""
    if name == settings.reports or name.startswith(settings.reports.rstrip("/") + "/"):
        return True
    base = name.rpartition("/")[2]
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
    names = []
    for folder, inner, files in os.walk(root):
        at = Path(folder)
        inner[:] = [
            d
            for d in inner
            if d not in _NOISE and not d.startswith(".") and not (at / d / "pyvenv.cfg").exists()
        ]
        names += [(at / file).relative_to(root).as_posix() for file in files]
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
