"""The project's own configuration: `[tool.rowproof]` of pyproject.toml.

Every key is optional; without the table the engine works on any pytest project.

    [tool.rowproof]
    catalogue = "mutants"              # folder of the catalogue, one TOML file per theme
    roots = ["."]                      # mutated files must lie under one of these
    tests = ["tests"]                  # test trees; default: pytest's own testpaths, else tests/, else "."
    suite = []                         # where to look when no listed killer fires; default: the tests
    matrix = []                        # what `--matrix` tries beside every listed killer; default: the suite
    helpers = []                       # files or folders, outside the tests, whose assertions count as test assertions
    import_paths = ["."]               # put at the front of sys.path in the servers
    reports = "reports"                # the only folder that a run writes to
    irrelevant = ["*.md"]              # files (by name or path glob) that cannot change a verdict
    pytest_args = []                   # appended to every pytest command line of the servers
    isolation = "auto"                 # swap, else reimport, else spawn; or only "reimport", or only "spawn"
    recheck_every = 25                 # entries between two clean checks of their killers
    costs = "costs.json"               # a copy of some run.json, for --shard: entries are dealt by its seconds_by_entry

    [tool.rowproof.limits]
    wall_s = 10.0                      # wall limit of one judgement: wall_s + wall_factor * baseline seconds
    wall_factor = 10.0
    memory_mib = 2048                  # address space above what the server already holds
    output_mib = 64                    # largest file a judgement may write (captured output included)

    [[tool.rowproof.canary]]           # only where the engine's own canary for a file is not seen: a fault by hand
    file = "pkg/mod.py"
    scope = "f"
    find = "..."
    replace = "..."

An unknown key is refused with the nearest known one. Sub-tables of other commands
(`[tool.rowproof.identity]`) are left alone.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from .edge import read_table, read_toml
from .errors import InputRefused
from .pytest_ini import where_tests_are

_WHERE = "pyproject.toml [tool.rowproof]"
_OTHER_COMMANDS = ("identity", "lens", "bench")


@dataclass(frozen=True)
class Limits:
    """What one judgement may use; times in seconds, sizes in MiB."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}
    wall_s: float = 10.0
    wall_factor: float = 10.0
    memory_mib: int = 2048
    output_mib: int = 64


@dataclass(frozen=True)
class CanaryEdit:
    """A hand-made canary for one file, in the catalogue's own words."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}
    file: str
    scope: str
    find: str
    replace: str


@dataclass(frozen=True)
class Settings:
    """`[tool.rowproof]`, validated; every path is relative to the project root, with `/`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}
    catalogue: str = "mutants"
    roots: tuple[str, ...] = (".",)
    tests: tuple[str, ...] = ()
    suite: tuple[str, ...] = ()
    matrix: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    import_paths: tuple[str, ...] = (".",)
    reports: str = "reports"
    irrelevant: tuple[str, ...] = ("*.md",)
    pytest_args: tuple[str, ...] = ()
    isolation: Literal["auto", "reimport", "spawn"] = "auto"
    recheck_every: int = 25
    costs: str | None = None
    limits: Limits = field(default_factory=Limits)
    canary: tuple[CanaryEdit, ...] = ()

    def effective(self) -> dict[str, Any]:
        """The configuration as plain data, for the evidence."""
        return asdict(self)


def load_settings(root: Path) -> Settings:
    """Read the settings of the project at `root`; raises InputRefused with all problems."""
    document: dict[str, Any] = {}
    path = root / "pyproject.toml"
    if path.exists():
        document, problems = read_toml(path, "pyproject.toml")
        if problems:
            raise InputRefused(problems)
    tool = document.get("tool", {})
    given = tool.get("rowproof", {}) if isinstance(tool, dict) else None
    if not isinstance(given, dict):
        raise InputRefused(["pyproject.toml: [tool.rowproof] should be a table"])
    table = {k: v for k, v in given.items() if k not in _OTHER_COMMANDS}
    table.setdefault("tests", where_tests_are(root))
    settings, problems = read_table(Settings, table, _WHERE)
    if settings is None:
        raise InputRefused(problems)
    problems = _wrong_paths(root, settings)
    if settings.recheck_every < 1:
        problems.append("pyproject.toml [tool.rowproof]: recheck_every should be at least 1")
    problems += _limits(settings.limits)
    if problems:
        raise InputRefused(problems)
    return settings


def _limits(limits: Limits) -> list[str]:
    """A limit that is no number at all would end every judgement, or none."""
    least = {"wall_s": 0.0, "wall_factor": 0.0, "memory_mib": 1, "output_mib": 1}
    found = [(key, getattr(limits, key), low) for key, low in least.items()]
    wrong = [(key, value, low) for key, value, low in found if not low <= value < float("inf")]
    told = [f"{key} is {value}, should be a number of at least {low}" for key, value, low in wrong]
    told += [] if wrong or limits.wall_s + limits.wall_factor > 0 else ["wall_s and wall_factor are both 0"]
    return [f"pyproject.toml [tool.rowproof.limits]: {sentence}" for sentence in told]


def _wrong_paths(root: Path, settings: Settings) -> list[str]:
    made = {"catalogue": (settings.catalogue,), "reports": (settings.reports,)}
    named = {
        "roots": settings.roots,
        "helpers": settings.helpers,
        "tests": settings.tests,
        "suite": settings.suite,
        "matrix": settings.matrix,
        "import_paths": settings.import_paths,
    }
    found = [(key, path) for key, paths in (made | named).items() for path in paths]
    problems = [
        f"{_WHERE}: {key} names '{path}', which is not inside the project; move it there, or run rowproof "
        "in the folder that holds both"
        for key, path in found
        if Path(path).is_absolute() or os.path.normpath(path).split(os.sep)[0] == ".."
    ]
    problems += [
        f"{_WHERE}: {key} is '{path}', the project itself; give it a folder of its own"
        for key, paths in made.items()
        for path in paths
        if os.path.normpath(path) == "."
    ]
    return problems or [
        f"{_WHERE}: {key} names '{path}', which does not exist; name an existing path"
        for key, path in found
        if key in named and not (root / path).exists()
    ]
