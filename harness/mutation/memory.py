"""What the stem remembers so that each child need not find it out again.

Rewritten test modules take the place of bytecode files, which could be stale and would be written to
the tree; the metadata of installed distributions saves a fifth of a child's start.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import os
import pathlib
import warnings
from collections.abc import Iterator
from types import CodeType
from typing import Any

from . import bounds
from .serving import Sources


class _Distribution:
    """An installed distribution whose files, metadata and entry points are read once."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.entry_points = real.entry_points
        if any(point.group == "pytest11" for point in self.entry_points):
            self.files, self.metadata = real.files, real.metadata

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def remember_distributions() -> None:
    """Answer `importlib.metadata.distributions()` from memory; a search with conditions stays as it is."""
    plain: Any = importlib.metadata.distributions
    known = [_Distribution(real) for real in plain()]

    def distributions(**conditions: Any) -> Iterator[Any]:
        return plain(**conditions) if conditions else iter(known)

    importlib.metadata.distributions = distributions


def import_all(names: list[str]) -> None:
    """Import modules that a child turned out to need; some import only in their parent's company."""
    for name in names:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(name)
        except Exception:  # noqa: BLE001, S112 - a child that needs it will import it itself
            continue


def import_late(names: list[str]) -> None:
    """In a slot: import what its last child imported late, unless that would start a thread."""
    if not names:
        return
    pid = os.fork()
    if pid == 0:
        import_all(names)
        os._exit(bounds.threads() != 1)
    _, status = os.waitpid(pid, 0)
    if status == 0:
        import_all(names)


def leave_plugins_plain() -> None:
    """Do not rewrite the assertions of installed plug-ins: they decide nothing and cost seconds."""
    from _pytest import config as pytest_config

    cls: Any = pytest_config.Config

    def mark(config: Any, hook: Any, *rest: Any) -> None:
        config.pluginmanager.rewrite_hook = hook

    cls._mark_plugins_for_rewrite = mark


def remember_tests(sources: Sources, paths: list[str]) -> None:
    """Rewrite the assertions of test modules once; no bytecode file of the project is ever read.

    Plug-ins that a project names in `pytest_plugins` are rewritten too, so a mutant of one is served here.
    """
    from _pytest.assertion import rewrite as pytest_rewrite

    rewrite: Any = pytest_rewrite
    plain, read_pyc = rewrite._rewrite_test, rewrite._read_pyc
    known = {path: plain(pathlib.Path(path), None) for path in paths}

    def rewrite_test(fn: Any, config: Any) -> Any:
        text = sources.overlay.get(os.path.realpath(fn))
        if text is not None:
            sources.note(os.path.realpath(fn))
            return _rewritten(rewrite, text, str(fn), config)
        hooked = config.getini("enable_assertion_pass_hook")
        return known[str(fn)] if str(fn) in known and not hooked else plain(fn, config)

    def no_pyc(source: Any, pyc: Any, trace: Any = lambda text: None) -> Any:
        return read_pyc(source, pyc, trace) if sources.project.relative(str(source)) is None else None

    rewrite._rewrite_test = rewrite_test
    rewrite._read_pyc = no_pyc
    # What the stem preloaded is third-party and keeps plain asserts; that is no warning's business.
    rewrite.AssertionRewritingHook._warn_already_imported = lambda hook, name: None


def _rewritten(rewrite: Any, text: str, path: str, config: Any) -> tuple[bytes, CodeType]:
    source = text.encode()
    tree = ast.parse(source, filename=path)
    rewrite.rewrite_asserts(tree, source, path, config)
    return importlib.util.source_hash(source), compile(tree, path, "exec", dont_inherit=True)
