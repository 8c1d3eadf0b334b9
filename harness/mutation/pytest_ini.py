"""Where a project's own pytest looks for tests: `testpaths` of the file that pytest itself would read."""

from __future__ import annotations

import configparser
import tomllib
from pathlib import Path
from typing import Any

# In pytest's order: the first that configures pytest is the only one that counts.
_TOML = {
    "pytest.toml": ("pytest",),
    ".pytest.toml": ("pytest",),
    "pyproject.toml": ("tool", "pytest"),
}
_INI = {"pytest.ini": "pytest", ".pytest.ini": "pytest", "tox.ini": "pytest", "setup.cfg": "tool:pytest"}
_ORDER = (
    "pytest.toml",
    ".pytest.toml",
    "pytest.ini",
    ".pytest.ini",
    "pyproject.toml",
    "tox.ini",
    "setup.cfg",
)


def where_tests_are(root: Path) -> list[str]:
    """Folders and files with tests, relative to `root`: testpaths, else `tests`, else the whole project."""
    table = next((found for name in _ORDER if (found := _table(root / name)) is not None), {})
    named = table.get("testpaths", [])
    # What pytest itself will refuse is not ours to explain.
    given = named.split() if isinstance(named, str) else named if isinstance(named, list) else []
    patterns = [item for item in given if isinstance(item, str)]
    paths = [path for pattern in patterns for path in _matching(root, pattern)]
    return list(dict.fromkeys(paths)) or (["tests"] if (root / "tests").is_dir() else ["."])


def _matching(root: Path, pattern: str) -> list[str]:
    """The paths of a pattern, which pytest lets be a glob; none for one that matches nothing, as pytest does."""
    if Path(pattern).is_absolute() or not pattern:
        return []
    return sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))


def _table(path: Path) -> dict[str, Any] | None:
    """The pytest table of a file; None when it has none, or cannot be read (pytest will say so itself)."""
    if not path.is_file():
        return None
    try:
        return _of_toml(path) if path.name in _TOML else _of_ini(path)
    except (tomllib.TOMLDecodeError, configparser.Error, UnicodeDecodeError, OSError):
        return None


def _of_toml(path: Path) -> dict[str, Any] | None:
    table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    for key in _TOML[path.name]:
        table = table.get(key) if isinstance(table, dict) else None
    if not isinstance(table, dict):
        return None
    inner = table.get("ini_options", table)
    return inner if isinstance(inner, dict) else None


def _of_ini(path: Path) -> dict[str, Any] | None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(path.read_text(encoding="utf-8"))
    section = _INI[path.name]
    if parser.has_section(section):
        return dict(parser[section])
    # pytest takes a pytest.ini for its own even when it is empty.
    return {} if path.name in ("pytest.ini", ".pytest.ini") else None
