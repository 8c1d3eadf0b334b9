"""From traces to answers: an assertion for a test, a matrix for a person."""

from __future__ import annotations

from collections.abc import Sequence

from harness.rows.trace import Trace


class PlayAborted(Exception):
    """The play stopped before its end, and this check had found nothing until then. Not an assertion."""


class NotEvaluated(Exception):
    """The check compared nothing: absent evidence is no evidence. Not an assertion."""


def require_green(trace: Trace, check: str) -> None:
    """Raise AssertionError with every mismatch of `check`, or say why there is no answer."""
    outcome = trace.outcome(check)
    if outcome == "red":
        raise AssertionError("\n".join(trace.message(mismatch) for mismatch in trace.of(check)))
    if outcome == "aborted":
        raise PlayAborted(f"{check}: no answer\n{trace.stop_message()}")
    if outcome == "unevaluated":
        raise NotEvaluated(f"{trace.fixture.name} · {check}: nothing was compared")


def worst(outcomes: Sequence[str]) -> str:
    """One word for several plays: red before aborted before unevaluated before green."""
    for word in ("red", "aborted", "unevaluated"):
        if word in outcomes:
            return word
    return "green"
