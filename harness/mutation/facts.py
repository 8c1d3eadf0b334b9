"""What happened to one test, as raw facts. Nothing here decides what a kill is; `verdict` does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from .serving import Project

MESSAGE_MAX = 400
_HEAD = "Traceback (most recent call last)"
_TOLD = re.compile(r'File "([^"\n]+)", line (\d+)')
# An example of a doctest that printed something else, and one that raised.
DOCTEST_FAILED, _RAISED_IN_DOCTEST = "doctest.DocTestFailure", "doctest.UnexpectedException"
_DOCTEST = "<doctest "


def leaves(error: BaseException, project: Project) -> list[dict[str, Any]]:
    """One record per leaf exception: Hypothesis and task groups raise several at once."""
    return [_leaf(leaf, project) for leaf in _flatten(error)]


def _flatten(error: BaseException) -> Iterator[BaseException]:
    # Hypothesis' complaint about a flaky property is a group too, and speaks for itself.
    if isinstance(error, BaseExceptionGroup) and not type(error).__module__.startswith("hypothesis"):
        for inner in error.exceptions:
            yield from _flatten(inner)
    elif type_name(type(error)) == "_pytest.doctest.MultipleDoctestFailures":
        for inner in getattr(error, "failures", ()):
            yield from _flatten(inner)
    elif type_name(type(error)) == _RAISED_IN_DOCTEST:
        yield getattr(error, "exc_info", (None, error))[1]
    else:
        yield error


def _leaf(error: BaseException, project: Project) -> dict[str, Any]:
    kind, at, from_timeout = None, None, False
    for filename, line, module, _ in _frames(error.__traceback__):
        from_timeout |= module.startswith("pytest_timeout")
        found = "test" if filename.startswith(_DOCTEST) else project.kind(filename)
        if found is not None:
            kind, at = found, f"{project.relative(filename) or filename}:{line}"
    for filename, at_line in _told_frames(error):
        if (found := project.kind(filename)) is not None:
            kind, at = found, f"{project.relative(filename)}:{at_line}"
    if type_name(type(error)) == DOCTEST_FAILED:
        # Raised by the doctest runner, so no frame tells; the exception knows the example that was not met.
        kind, at = "test", _example(error, project)
    return {
        "types": [type_name(cls) for cls in type(error).__mro__ if cls is not object],
        "frame": kind,
        "at": at,
        "timeout_plugin": from_timeout,
        "message": message(error),
    }


def _example(error: Any, project: Project) -> str | None:
    test, example = error.test, error.example
    shown = project.relative(str(test.filename)) if test.filename else None
    return f"{shown or test.name}:{(test.lineno or 0) + example.lineno + 1}"


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, int, str, str]]:
    while trace is not None:
        frame = trace.tb_frame
        module = str(frame.f_globals.get("__name__", ""))
        yield frame.f_code.co_filename, trace.tb_lineno, module, frame.f_code.co_name
        trace = trace.tb_next


def _told_frames(error: BaseException) -> list[tuple[str, int]]:
    """Frames of an exception that came from another process, where they are text: it was raised there, not here.

    Pools of processes hang the text on the cause; torch's data loader puts it into the message.
    """
    text = ""
    if type(error.__cause__).__name__.endswith("RemoteTraceback"):
        text = str(error.__cause__)
    elif [(m, name) for *_, m, name in _frames(error.__traceback__)][-1:] == [("torch._utils", "reraise")]:
        text = str(error)
    return [(file, int(line)) for file, line in _TOLD.findall(text.rpartition(_HEAD)[2])]


def type_name(cls: type) -> str:
    """The dotted name of an exception class; pytest's Failed hides its module, so it is spelt out."""
    if cls.__module__ == "builtins" and cls.__name__ == "Failed":
        return "pytest.Failed"
    return f"{cls.__module__}.{cls.__qualname__}"


def message(error: BaseException) -> str:
    """The first line of an exception's text; a text that cannot be made is said to be so."""
    try:
        text = _unmet(error) if type_name(type(error)) == DOCTEST_FAILED else str(error)
    except Exception:  # noqa: BLE001 - the code under test may raise anything from __str__
        text = "(the exception has no readable text)"
    return next((line for line in text.splitlines() if line.strip()), "")[:MESSAGE_MAX]


def _unmet(error: Any) -> str:
    shown = (error.example.source.strip(), error.got.strip(), error.example.want.strip())
    return "{} gives {}, should give {}".format(*(" ".join(text.split()) for text in shown))
