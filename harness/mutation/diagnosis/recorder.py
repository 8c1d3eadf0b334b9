"""What a run of one test shows at the borders of the mutated functions, and to the test itself.

A tracer notes, for every call of a mutated function, leaves at its entry and at its end (a return, an
exception, a yield), and for the test: what it is handed, what its local names hold at each of its
lines, and what is left when it returns. The same numbers of the same events in two runs are compared
by the engine. Tracing costs next to nothing where nothing is noted.
"""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from ..reach import Watch
from ..serving import Project
from . import arrays
from .activation import CODE, FOREIGN, HELPER, LINES, OURS, PACKAGE, TEST, TESTED, TESTS, WATCHED, Activation
from .poison import Poison
from .vary import Vary
from .walk import LEAVES_MAX, Walk

LEAVES_IN_ALL = 60_000
# Characters of array leaves; beyond these, bytes are kept only where the engine asks for them.
RAW_IN_ALL = 3 << 20
# And so many for what the mutated functions return, where a difference is most likely to begin: it spares a run.
RESULTS_IN_ALL = 1 << 20
# Bytes of arrays that are read in one run: at the borders, and for what the test sees.
BORDER_BYTES, SEEN_BYTES = 160 << 20, 32 << 20
MODULE = "<module>"
_NO_TOOLS = ("_pytest", "pytest", "pluggy", "hypothesis")


class Recorder:
    """One run of one test; start it before the test is set up and stop it when it is torn down."""

    def __init__(self, order: dict[str, Any], project: Project, watch: Watch, mask: str) -> None:
        self.hit = False
        self._ended = False
        self.stale = False
        self.when_found: Callable[[], None] | None = None
        self.tested = 0
        self.pinned: list[str] = []
        self.failed: str | None = None
        self._project, self._watch, self._mask = project, watch, mask
        self._functions = {
            os.path.realpath(os.path.join(project.root, f)): set(n) for f, n in order["functions"].items()
        }
        self._roots = [os.path.realpath(os.path.join(project.root, root)) for root in order["roots"]]
        self._test = order["test"].partition("[")[0].split("::")
        self._keep = {int(at): frozenset(paths) for at, paths in order.get("keep", {}).items()}
        self.silent = bool(order.get("silent"))
        self._seed = int(order.get("seed", 0))
        self._outside = 0 if self.silent else TESTS
        self.vary = Vary(**order["vary"], own=self.own) if order.get("vary") else None
        self.poison = Poison(order["poison"], self) if order.get("poison") else None
        self._roles: dict[int, int] = {}
        self._real: dict[str, str] = {}
        self._paths: dict[int, str] = {}
        # Held, so that no two of them ever have one id.
        self._codes: list[tuple[types.CodeType, str]] = []
        self._owned: dict[type, bool] = {}
        self.lock = threading.RLock()
        self.busy = threading.local()
        self.borders: list[list[Any]] = []
        self.seen: list[list[Any]] = []
        self._tables: dict[tuple[Any, ...], int] = {}
        self.leaves: list[list[Any]] = []
        self.calls = 0
        self.opaque: dict[str, int] = {}
        self.cut: list[str] = []
        self._total = self._raw = 0
        self._digests = arrays.Digests()
        self._read = {"borders": 0, "seen": 0}
        self.handed: list[tuple[int, Any]] = []
        self.lines = self._depth = 0
        self.frames: dict[int, Activation] = {}

    def attach(self, config: Any) -> None:
        """Trace while pytest runs fixtures, the test and its tear-down, and not while it keeps its own books."""
        import pytest

        def traced(*arguments: Any) -> Any:
            self._resume()
            self._depth += 1
            try:
                return (yield)
            finally:
                # A fixture may be asked for inside a test; the test goes on after it.
                self._depth -= 1
                if not self._depth:
                    self.stop()

        hooks = ("pytest_fixture_setup", "pytest_runtest_call", "pytest_runtest_teardown")
        mark = pytest.hookimpl(wrapper=True, trylast=True)
        plugin = type("Tracing", (), {name: staticmethod(mark(_copy(traced))) for name in hooks})()
        config.pluginmanager.register(plugin, "rowproof-probe")

    def start(self) -> None:
        """Trace this thread and every thread started from now on."""
        self.pin()
        self._resume()

    def pin(self) -> None:
        """Give the global random states the seed of this run."""
        self.pinned = arrays.pin_random_states(self._seed)

    def _resume(self) -> None:
        if self._ended:
            return
        threading.settrace(self._call)
        sys.settrace(self._call)

    def stop(self, for_good: bool = False) -> None:
        """Stop tracing; for good: also in the parts of the test that follow."""
        self._ended |= for_good
        sys.settrace(None)
        threading.settrace(None)

    def told(self) -> dict[str, Any]:
        """Everything that was noted, as plain data."""
        return {
            "borders": self.borders,
            "seen": self.seen,
            "leaves": self.leaves,
            "calls": self.calls,
            "opaque": self.opaque,
            "cut": self.cut,
            "tested": self.tested,
            "failed": self.failed,
            "varied": self.vary.noted if self.vary else [],
            "inputs": self.vary.met if self.vary else {},
            "poisoned": self.poison.done if self.poison else [],
        }

    # Which frames are of interest

    def role(self, frame: types.FrameType) -> int:
        """What a frame is to the probe, as flags; found once per code object."""
        code = frame.f_code
        known = self._roles.get(id(code))
        if known is not None:
            return known
        path = code.co_filename
        if path.startswith("<"):
            # Methods that dataclasses write have no file; their globals do.
            path = str(frame.f_globals.get("__file__", path))
        real = self._real.get(path)
        if real is None:
            real = self._real[path] = os.path.realpath(path) if os.path.isabs(path) else path
        role = self._role(code, path, real, frame)
        self._codes.append((code, real))
        if role & (WATCHED | LINES):
            self._paths[id(code)] = real
        self._roles[id(code)] = role
        return role

    def _role(self, code: types.CodeType, path: str, real: str, frame: types.FrameType) -> int:
        kind = self._project.kind(path)
        if kind is None:
            top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            return FOREIGN if top in _NO_TOOLS else 0
        flags = {"test": TEST, "helper": HELPER, "code": CODE}[kind]
        if any(real == root or real.startswith(root + os.sep) for root in self._roots) and kind == "code":
            flags |= PACKAGE
        names = self._functions.get(real)
        if names is not None and (code.co_name[0] != "<" or code.co_name == "<lambda>"):
            flags |= WATCHED if code.co_qualname in names or MODULE in names else 0
        if any(name == code.co_qualname for name, _ in self._watch.get(real, ())):
            flags |= LINES
        if kind == "test" and self._is_test(code, real):
            flags |= TESTED
        return flags

    def _is_test(self, code: types.CodeType, real: str) -> bool:
        file = os.path.realpath(os.path.join(self._project.root, self._test[0]))
        return real == file and code.co_name == self._test[-1]

    def own(self, cls: type) -> bool:
        """Whether a class is the project's."""
        found = self._owned.get(cls)
        if found is None:
            file = getattr(sys.modules.get(cls.__module__), "__file__", None)
            found = isinstance(file, str) and self._project.kind(file) in ("code", "helper")
            self._owned[cls] = found
        return found

    def mutated_modules(self) -> list[types.ModuleType]:
        """The modules of the mutated files, as far as they are imported."""
        names = {os.path.basename(real) for real in self._functions}
        files = [(getattr(module, "__file__", None), module) for module in list(sys.modules.values())]
        likely = [(f, m) for f, m in files if isinstance(f, str) and os.path.basename(f) in names]
        return [module for file, module in likely if os.path.realpath(file) in self._functions]

    # The tracer

    def _call(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        roles = self._roles
        role = roles.get(id(frame.f_code))
        if role is None:
            role = self.role(frame)
        back = frame.f_back
        outside = 0
        if back is not None:
            found = roles.get(id(back.f_code))
            outside = self.role(back) if found is None else found
        if not (role & OURS or outside & self._outside):
            return None
        handed = outside & TESTS and not role & (TESTS | FOREIGN)
        handed = bool(handed and (role & CODE or outside & TEST))
        outermost = bool(self.vary and role & PACKAGE and not getattr(self.busy, "inside", None))
        lines = bool(role & LINES and not self.hit)
        if not (handed or outermost or lines or role & (WATCHED | TESTED)):
            return None
        call = Activation(self, frame, role, handed, outermost)
        frame.f_trace_lines = lines or bool(role & TESTED and not self.silent)
        try:
            call.begin()
        except Exception as error:  # noqa: BLE001 - whatever the objects of the project do to a walk
            self.failed = f"{type(error).__name__}: {error}"
        return call.trace

    def wanted_lines(self, code: types.CodeType) -> set[int]:
        """The changed lines of a function."""
        return {line for name, line in self._watch.get(self._paths[id(code)], ()) if name == code.co_qualname}

    # What is noted

    def walk(self, number: int = -1, places: bool = False) -> Walk:
        """A walk with this run's conventions; whole arrays for the events that the engine asked for."""
        kept = arrays.RAW_MAX if self._raw < RAW_IN_ALL else 0
        whole = self._keep.get(number, frozenset())
        digests = arrays.Digests(blind=True) if places else self._digests
        walk = Walk(self._mask, self.own, kept, places, digests, whole)
        walk.result_kept = max(0, RESULTS_IN_ALL - self._raw) // 2 if number >= 0 else 0
        return walk

    def note(self, events: list[list[Any]], kind: str, where: str, walk: Walk) -> int:
        """Append an event; equal leaves are stored once."""
        self._read["borders" if events is self.borders else "seen"] += self._digests.spent
        self._digests.spent = 0
        for name, count in walk.opaque.items():
            self.opaque[name] = max(count, self.opaque.get(name, 0))
        if len(walk.leaves) >= LEAVES_MAX and "leaves" not in self.cut:
            self.cut.append("leaves")
        key = tuple(walk.leaves)
        number = self._tables.get(key)
        if number is None:
            number = self._tables[key] = len(self.leaves)
            self.leaves.append([list(leaf) for leaf in walk.leaves])
            self._total += len(walk.leaves)
            self._raw += sum(len(text) for _, kind, text in walk.leaves if kind in ("ndarray", "tensor"))
        events.append([kind, where, number])
        return len(events) - 1

    def full(self, what: str, count: int, limit: int) -> bool:
        """Whether no more of this is noted; that it was cut short is said."""
        if self.silent:
            return True
        if count >= limit or self._total >= LEAVES_IN_ALL or self._full_of_bytes(what):
            if what not in self.cut:
                self.cut.append(what)
            return True
        return False

    def _full_of_bytes(self, what: str) -> bool:
        return self._read["borders"] >= BORDER_BYTES if what == "calls" else self._read["seen"] >= SEEN_BYTES


def _copy(function: Any) -> Any:
    return types.FunctionType(function.__code__, function.__globals__, None, None, function.__closure__)
