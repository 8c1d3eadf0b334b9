"""The exit codes of every command, in one enum. README's table is tested against it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class ExitCode(IntEnum):
    """What a command's exit status says; `meaning` is the sentence README prints."""

    OK = 0
    FINDING = 1
    USAGE = 2
    INCONCLUSIVE = 3
    INSTRUMENT = 4
    ABSENT = 5
    INTERNAL = 70
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """One sentence for the README table and for the last line of a run."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.OK: "nothing found: every check green (identity); every listed mutant killed by its named checks, controls "
    "behaved, evidence fresh (mutate, gate)",
    ExitCode.FINDING: "a finding: identity mismatch, or a mutant survived / not reached / killed elsewhere / "
    "overclaimed",
    ExitCode.USAGE: "usage or input refused: bad flag, invalid catalogue or fixture, dead or ambiguous anchor",
    ExitCode.INCONCLUSIVE: "inconclusive: timed out, crashed, flaky, not applied, unknown",
    ExitCode.INSTRUMENT: "the instrument is broken: baseline red, a listed killer that did not pass in the "
    "baseline (skipped, xfailed), or a control misbehaved; results void",
    ExitCode.ABSENT: "nothing judged, or evidence missing, partial, stale or not re-derivable",
    ExitCode.INTERNAL: "internal error",
    ExitCode.INTERRUPTED: "interrupted",
}

# The most instrument-like code wins: a red baseline must not hide behind a survivor.
_PRECEDENCE = (
    ExitCode.INTERRUPTED,
    ExitCode.INTERNAL,
    ExitCode.INSTRUMENT,
    ExitCode.ABSENT,
    ExitCode.USAGE,
    ExitCode.INCONCLUSIVE,
    ExitCode.FINDING,
    ExitCode.OK,
)


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """Return the code that stands for several at once; OK when there are none."""
    found = set(codes)
    return next((code for code in _PRECEDENCE if code in found), ExitCode.OK)
