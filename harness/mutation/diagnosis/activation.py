"""One activation of a frame that the probe looks at: from its call to its return, or to its next yield."""

from __future__ import annotations

import dis
import types
from typing import TYPE_CHECKING, Any

from ..reach import ENTERED
from . import arrays

if TYPE_CHECKING:
    from .recorder import Recorder

CALLS_MAX = 150
HANDED_MAX = 150
LINES_MAX = 80
WATCHED, TEST, HELPER, PACKAGE, TESTED, FOREIGN, LINES, CODE = 1, 2, 4, 8, 16, 32, 64, 128
TESTS = TEST | HELPER
OURS = WATCHED | PACKAGE | TESTED | LINES
RESUMED = 0x20 | 0x80 | 0x100 | 0x200


class Activation:
    """One activation of a frame: from its call to its return, or to its next yield."""

    def __init__(
        self, recorder: Recorder, frame: types.FrameType, role: int, handed: bool, outermost: bool
    ) -> None:
        self.recorder, self.frame, self.role = recorder, frame, role
        self.handed, self.outermost = handed, outermost
        self.code = frame.f_code
        # Asked for once per event: asking again would undo what was written into it.
        self.values: dict[str, Any] = {}
        self.number = -1
        self.noted = False
        self.error: Any = None
        self.arguments: dict[str, Any] = {}
        self.wanted: set[int] = set()
        self.resumable = bool(self.code.co_flags & RESUMED)

    def begin(self) -> None:
        """The frame was entered or resumed."""
        recorder, frame = self.recorder, self.frame
        self.values = values = frame.f_locals
        first = recorder.frames.get(id(frame)) if self.resumable else None
        names = argument_names(self.code)
        if self.outermost:
            recorder.busy.inside = self
            if first is None and recorder.vary is not None:
                recorder.vary.arguments(values, names)
        self.arguments = first.arguments if first else {n: values[n] for n in names if n in values}
        if self.resumable:
            recorder.frames[id(frame)] = first or self
        wanted = recorder.wanted_lines(self.code) if self.role & LINES else set()
        if ENTERED in wanted:
            recorder.hit = True
        self.wanted = wanted
        if self.role & WATCHED:
            with recorder.lock:
                self.number = recorder.calls
                recorder.calls += 1
                if recorder.poison is not None:
                    recorder.poison.entered(self)
                self.noted = not recorder.full("calls", self.number, CALLS_MAX)
                if self.noted:
                    self._border("enter", first is not None)
        if self.role & TESTED:
            recorder.tested += 1

    def trace(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        """The local tracer of this frame; an error of its own must not become one of the program."""
        try:
            self._trace(frame, event, arg)
        except Exception as error:  # noqa: BLE001 - whatever the objects of the project do to a walk
            self.recorder.failed = f"{type(error).__name__}: {error}"
        return self.trace

    def _trace(self, frame: types.FrameType, event: str, arg: Any) -> None:
        recorder = self.recorder
        if event == "line":
            if frame.f_lineno in self.wanted and not recorder.hit:
                recorder.hit = True
                frame.f_trace_lines = bool(self.role & TESTED and not recorder.silent)
            if self.role & TESTED:
                self._line(frame)
        elif event == "exception":
            self.error = arg[1] if isinstance(arg[1], BaseException) else arg[0]
        elif event == "return":
            self._end(frame, arg)

    def _end(self, frame: types.FrameType, result: Any) -> None:
        recorder = self.recorder
        self.values = frame.f_locals
        raised = result is None and self.error is not None and not _returns(frame)
        if self.outermost:
            recorder.busy.inside = None
            if recorder.vary is not None:
                recorder.vary.leave_alone(result)
        with recorder.lock:
            if self.role & WATCHED:
                if recorder.poison is not None:
                    recorder.poison.left(self)
                if self.noted:
                    self._border(
                        "raise" if raised else "exit", self.resumable, self.error if raised else result
                    )
            if self.handed and not recorder.full("handed", len(recorder.handed), HANDED_MAX):
                walk = recorder.walk()
                walk.root("exception" if raised else "what it is handed", self.error if raised else result)
                number = recorder.note(recorder.seen, "handed", self.code.co_qualname, walk)
                recorder.handed.append((number, result))
            if self.role & TESTED and not recorder.silent:
                self._last(frame)
        if not self.resumable or frame.f_code.co_code[frame.f_lasti] in _FINAL:
            # A frame that is kept would keep its locals, and with them weak references and files.
            recorder.frames.pop(id(frame), None)
            self.arguments = {}
            self.values = {}
            del self.frame

    def _border(self, kind: str, with_locals: bool, outcome: Any = None) -> None:
        recorder = self.recorder
        walk = recorder.walk(len(recorder.borders))
        for path, value in self.roots(kind, with_locals, outcome):
            walk.root(path, value)
        for library, state in arrays.random_states(recorder.pinned):
            walk.leaves.append((f"the random state of {library}", "state", state))
        recorder.note(recorder.borders, kind, f"{self.code.co_qualname}#{self.number}", walk)

    def roots(self, kind: str, with_locals: bool, outcome: Any = None) -> list[tuple[str, Any]]:
        """Everything that belongs to a border: outcome, arguments, free variables, globals of the function."""
        values = self.values
        found: list[tuple[str, Any]] = []
        if kind == "exit":
            found.append(("result", outcome))
        elif kind == "raise":
            found.append(("exception", outcome))
        found += list(self.arguments.items())
        found += [(name, values[name]) for name in self.code.co_freevars if name in values]
        if with_locals:
            known = {name for name, _ in found}
            found += [(name, value) for name, value in values.items() if name not in known]
        module = str(self.frame.f_globals.get("__name__", ""))
        for name in _global_names(self.code):
            value = self.frame.f_globals.get(name, _global_names)
            if is_data(value):
                found.append((f"{module}.{name}", value))
        return found

    def _line(self, frame: types.FrameType) -> None:
        recorder = self.recorder
        if recorder.full("lines", recorder.lines, LINES_MAX):
            return
        recorder.lines += 1
        walk = recorder.walk()
        for name, value in list(frame.f_locals.items()):
            walk.root(name, value)
        recorder.note(recorder.seen, "line", str(frame.f_lineno), walk)

    def _last(self, frame: types.FrameType) -> None:
        recorder = self.recorder
        walk = recorder.walk()
        for name, value in list(self.values.items()):
            walk.root(name, value)
        for module in recorder.mutated_modules():
            for name, value in list(vars(module).items()):
                if not name.startswith("__") and is_data(value):
                    walk.root(f"{module.__name__}.{name}", value)
        recorder.note(recorder.seen, "end", "", walk)
        for number, value in recorder.handed:
            alive = id(value) in walk.met
            recorder.seen[number][0] = "held" if alive else "handed"


def argument_names(code: types.CodeType) -> list[str]:
    """The names of all parameters, starred ones included."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 4) + bool(code.co_flags & 8)
    return list(code.co_varnames[:count])


def is_data(value: Any) -> bool:
    """Whether a module's name holds data, and no function, class or module."""
    return not (isinstance(value, types.ModuleType | type) or callable(value))


def _global_names(code: types.CodeType) -> list[str]:
    names = list(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names += const.co_names
    return list(dict.fromkeys(names))


def _returns(frame: types.FrameType) -> bool:
    """Whether the frame ends by a return or a yield; a tracer is told None for an exception too."""
    return frame.f_code.co_code[frame.f_lasti] in _ENDS


def _codes(*names: str) -> set[int]:
    return {dis.opmap[name] for name in names if name in dis.opmap}


_FINAL = _codes("RETURN_VALUE", "RETURN_CONST")
_ENDS = _FINAL | _codes("YIELD_VALUE", "RETURN_GENERATOR", "SEND")
