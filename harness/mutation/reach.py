"""Did a changed line run? A tracer that removes itself at the first hit.

Lines are matched by file, qualified name and number, not by code identity: a compiler such as
dynamo runs a different code object under the same name.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

Watch = dict[str, set[tuple[str, int]]]
ENTERED = 0


class Reach:
    """Watches (qualified name, line) pairs of some files; line 0 means entering the function."""

    def __init__(self, watch: Watch, stale: set[int]) -> None:
        self.hit = False
        self.stale = False
        self._watch = watch
        self._stale = stale
        self._names = {name for lines in watch.values() for name, _ in lines}
        self._paths: dict[str, str] = {}
        self.when_found: Callable[[], None] | None = None

    def start(self) -> None:
        """Trace this thread and every thread started from now on."""
        if self._watch and not self.hit:
            threading.settrace(self._call)
            sys.settrace(self._call)

    def stop(self) -> None:
        """Stop tracing."""
        if not self._watch:
            return
        sys.settrace(None)
        threading.settrace(None)

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if self.hit or code.co_qualname not in self._names:
            return None
        name = code.co_filename
        if name not in self._paths:
            self._paths[name] = os.path.realpath(name)
        lines = self._watch.get(self._paths[name])
        if lines is None:
            return None
        if id(code) in self._stale:
            # The old code of a swapped function still runs somewhere: the swap is not effective.
            self.stale = True
        if (code.co_qualname, ENTERED) in lines:
            return self._found()
        wanted = {line for qualname, line in lines if qualname == code.co_qualname}

        def local(inner: FrameType, what: str, value: Any) -> Any:
            return self._found() if what == "line" and inner.f_lineno in wanted else local

        return local

    def _found(self) -> None:
        self.hit = True
        self.stop()
        if self.when_found is not None:
            self.when_found()


class Mapper:
    """Notes every executed line of some functions, in every thread; for a run without a mutant."""

    def __init__(self, functions: dict[str, set[str]]) -> None:
        self.lines: set[tuple[str, str, int]] = set()
        self._new: set[tuple[str, str, int]] = set()
        self._functions = functions
        self._names = {name for names in functions.values() for name in names}
        self._paths: dict[str, str] = {}

    def start(self) -> None:
        """Trace this thread and every thread started from now on."""
        if self._functions:
            threading.settrace(self._call)
            sys.settrace(self._call)

    def stop(self) -> None:
        """Stop tracing."""
        self.take()
        if self._functions:
            sys.settrace(None)
            threading.settrace(None)

    def take(self) -> set[tuple[str, str, int]]:
        """The lines executed since it was last asked."""
        new, self._new = self._new, set()
        self.lines |= new
        return new

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        qualname = frame.f_code.co_qualname
        if qualname not in self._names and qualname.partition(".<locals>")[0] not in self._names:
            return None
        name = frame.f_code.co_filename
        if name not in self._paths:
            self._paths[name] = os.path.realpath(name)
        path = self._paths[name]
        if path not in self._functions:
            return None
        self._new.add((path, qualname, ENTERED))

        def local(inner: FrameType, what: str, value: Any) -> Any:
            if what == "line":
                self._new.add((path, qualname, inner.f_lineno))
            return local

        return local


def as_watch(pairs: dict[str, Iterable[Iterable[Any]]]) -> Watch:
    """Rebuild a watch from its JSON form."""
    return {path: {(str(n), int(ln)) for n, ln in lines} for path, lines in pairs.items()}
