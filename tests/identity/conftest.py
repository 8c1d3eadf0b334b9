"""Items for fixtures: test_identity[<fixture>-<payload>-<plan>-<check>], ids that stay for ever."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.rows.checks import checks_of
from harness.rows.defaults import PLANS, RETAINS
from harness.rows.fixture import default_folder, load, load_folder
from harness.rows.schedule import Fixture


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "play_id" in metafunc.fixturenames:
        wanted = _named(metafunc.config)
        ids = list(_all_ids()) if wanted is None else [name for name in wanted if _exists(name)]
        metafunc.parametrize("play_id", ids)


def _named(config: pytest.Config) -> list[str] | None:
    """The ids on the command line, if it asks for no more: some thousand items need not be made for one."""
    found = []
    for argument in config.args:
        path, _, name = argument.partition("::test_identity[")
        if name and path.endswith("test_fixtures.py"):
            found.append(name.removesuffix("]"))
        elif "::" not in argument or "test_fixtures.py" in argument:
            return None  # a folder, or the whole file
    return list(dict.fromkeys(found))


def _all_ids() -> Iterator[str]:
    for fixture in load_folder(default_folder()).values():
        yield from _ids(fixture)


def _ids(fixture: Fixture) -> Iterator[str]:
    for retain in [each for each in RETAINS if each in fixture.payloads]:
        for plan in PLANS:
            for check in checks_of(fixture):
                yield f"{fixture.name}-{retain}-{plan}-{check}"


def _exists(play_id: str) -> bool:
    path = default_folder() / f"{play_id.partition('-')[0]}.toml"
    return path.is_file() and play_id in _ids(load(path))
