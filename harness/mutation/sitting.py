"""pytest, embedded: configure, collect, and run single items, without ever ending the session.

`pytest_sessionfinish` is never called (it rewrites junit files, caches and coverage data). Items run
through `config.hook.pytest_runtest_protocol`; calling `runtestprotocol` directly would skip the
hook wrappers of pytest-timeout and of the warning filters.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from . import neutral
from .facts import leaves, message
from .serving import Project

_modules: dict[str, Any] = sys.modules


class Recorder:
    """A plugin that notes every report as raw facts. Several call reports per item are normal (subtests).

    An outcome is what pytest counts: that of the report it logged. Hooks of the project may rewrite one after
    it was made (a list of forgiven failures does), and what was never logged neither passed nor failed.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self.phases: list[dict[str, Any]] = []
        self._made: list[Any] = []
        self._logged: list[Any] = []
        self.collect_errors: list[dict[str, str]] = []

    def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
        """Note phase, outcome and the leaves of the exception."""
        report = yield
        self.phases.append(
            {
                "phase": report.when,
                "outcome": report.outcome,
                "xfail": hasattr(report, "wasxfail"),
                "leaves": leaves(call.excinfo.value, self.project) if call.excinfo is not None else [],
            }
        )
        self._made.append(report)
        self._logged.append(None)
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep what pytest counts beside what was made: the same report, or the one that took its place."""
        waiting = [n for n, logged in enumerate(self._logged) if logged is None]
        same = [n for n in waiting if self._made[n] is report]
        for_it = same or [n for n in waiting if self.phases[n]["phase"] == report.when]
        if for_it:
            self._logged[for_it[-1]] = report
        else:
            self.phases.append({"phase": report.when, "outcome": "", "xfail": False, "leaves": []})
            self._made.append(report)
            self._logged.append(report)

    def begin(self) -> None:
        """Forget the item before."""
        self.phases, self._made, self._logged = [], [], []

    def settle(self) -> None:
        """After an item: read the logged outcomes, which a hook may have changed until now."""
        for phase, logged in zip(self.phases, self._logged, strict=True):
            phase["outcome"] = "not logged" if logged is None else logged.outcome
            phase["xfail"] |= hasattr(logged, "wasxfail")

    def pytest_collectreport(self, report: Any) -> None:
        """Note collection errors; an import error of the code under test arrives here."""
        if report.outcome == "failed":
            text = str(getattr(report, "longreprtext", "") or report.longrepr)
            lines = [line for line in text.splitlines() if line.strip()]
            self.collect_errors.append({"node": report.nodeid, "message": lines[-1][:400] if lines else ""})


class Sitting:
    """One configured and collected session."""

    def __init__(self, project: Project, args: list[str], basetemp: str) -> None:
        self.recorder = Recorder(project)
        self.items: dict[str, Any] = {}
        self.not_found: list[str] = []
        self._args = args
        self._basetemp = basetemp

    def configure(self, root: str, extra: list[str]) -> None:
        """Load ini file, plug-ins and conftests; imports of the project may happen here."""
        import _pytest.config
        import pytest

        # A private cache folder: the project's own one is neither read (thousands of lines) nor written.
        private = [f"--basetemp={self._basetemp}", "-o", f"cache_dir={self._basetemp}-cache"]
        line = [*extra, f"--rootdir={root}", "--tb=no", "--no-header", *private, *self._args]
        _use_hypothesis_profile()
        self.config: Any = _pytest.config._prepareconfig(line, [neutral.early()])
        neutral.set_back(self.config)
        pytest.hookimpl(wrapper=True)(Recorder.pytest_runtest_makereport)
        self.config.pluginmanager.register(self.recorder, "rowproof-recorder")
        self.config._do_configure()

    def collect(self) -> None:
        """Start the session and collect; items are then found by exact node id."""
        import pytest
        from _pytest.main import Session

        session: Any = Session.from_config(self.config)
        self.config.hook.pytest_sessionstart(session=session)
        try:
            self.config.hook.pytest_collection(session=session)
        except (pytest.UsageError, session.Interrupted, session.Failed) as error:
            self.not_found = str(error).splitlines() if not error.args else [str(a) for a in error.args]
        for item in getattr(session, "items", []):
            self.items[item.nodeid] = item
            if not hasattr(item, "dtest"):
                # A doctest stands in the code's own file; every other item says which file holds tests.
                self.recorder.project.holds_tests(str(item.path))
            _settle_hypothesis(item)

    def restart_capture(self) -> None:
        """In a child of a collected session: the capture file's offset is shared by fork, take a new one."""
        manager = self.config.pluginmanager.getplugin("capturemanager")
        if manager is not None:
            manager.stop_global_capturing()
            manager.start_global_capturing()

    def use_basetemp(self, folder: str) -> None:
        """Give this child its own folder for tmp_path."""
        import pathlib

        factory = getattr(self.config, "_tmp_path_factory", None)
        if factory is not None:
            factory._given_basetemp = pathlib.Path(folder)
            factory._basetemp = None

    def run(self, node: str) -> list[dict[str, Any]]:
        """Run one item and return the facts of its phases."""
        recorder = self.recorder
        recorder.begin()
        item = self.items[node]
        escape = []
        try:
            self.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        except BaseException as error:  # noqa: BLE001 - pytest.exit and KeyboardInterrupt leave the protocol
            escape = [escaped(error, recorder.project)]
        recorder.settle()
        return recorder.phases + escape


def escaped(error: BaseException, project: Project) -> dict[str, Any]:
    """The facts of an exception that left pytest itself."""
    return {"phase": "protocol", "outcome": "failed", "xfail": False, "leaves": leaves(error, project)}


def _profile(parent: Any) -> Any:
    from hypothesis import Phase, settings

    phases = (Phase.explicit, Phase.generate, Phase.target)
    return settings(parent, derandomize=True, database=None, deadline=None, phases=phases)


def _use_hypothesis_profile() -> None:
    if "hypothesis" in sys.modules:
        from hypothesis import settings

        settings.register_profile("mutation", _profile(settings()))
        settings.load_profile("mutation")


def _settle_hypothesis(item: Any) -> None:
    # Explicit @settings and profiles loaded by a conftest are overruled after collection.
    function: Any = getattr(item, "obj", None)
    function = getattr(function, "__func__", function)
    current = getattr(function, "_hypothesis_internal_use_settings", None)
    if current is not None:
        # Its plug-in would prepare a patch file for every red property, a second each; nobody reads it here.
        _modules["hypothesis.extra._patching"] = None
        function._hypothesis_internal_use_settings = _profile(current)


def quiet() -> None:
    """Point standard output and error at the null device; a child's dots belong to nobody."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


def first_line(error: BaseException) -> str:
    """Type and first line of an error that ended configuration or collection."""
    return f"{type(error).__name__}: {message(error)}"
