"""What a play found: comparisons counted per check, mismatches in tokens, facts witnessed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from harness.rows.schedule import Fixture


@dataclass(frozen=True)
class Mismatch:
    """One wrong thing, said in tokens. row is a batch row, or None where it concerns the whole batch."""

    check: str
    step: int
    row: int | None
    said: tuple[str, ...]


@dataclass(frozen=True)
class Stop:
    """A play that ended before its last step: at which, and what the subject raised."""

    step: int
    why: str


@dataclass
class Trace:
    """One play of one fixture.

    compared counts, per check, what was looked at: a check that looked at nothing is not green.
    shares: per check of the values lane, the largest part of a rounding bound that a value used.
    declined: what the subject said where it refused row-invariant arithmetic; the play is then one in plain arithmetic.
    stopped: where and why the play ended before its last step, or None.
    """

    fixture: Fixture
    options: dict[str, str]
    steps: list[str] = field(default_factory=list)
    compared: Counter[str] = field(default_factory=Counter)
    mismatches: list[Mismatch] = field(default_factory=list)
    facts: set[str] = field(default_factory=set)
    shares: dict[str, float] = field(default_factory=dict)
    declined: str | None = None
    stopped: Stop | None = None

    def outcome(self, check: str) -> str:
        """`red`, `aborted`, `unevaluated` or `green`. A mismatch that was seen outlives an abort."""
        if any(mismatch.check == check for mismatch in self.mismatches):
            return "red"
        if self.stopped is not None:
            return "aborted"
        return "green" if self.compared[check] else "unevaluated"

    def of(self, check: str, row: int | None = None) -> list[Mismatch]:
        """The mismatches of one check, of one batch row if given."""
        return [m for m in self.mismatches if m.check == check and (row is None or m.row in (row, None))]

    def message(self, mismatch: Mismatch, arguments: str = "") -> str:
        """The mismatch with its place and the command that shows it again.

        arguments: what the replay needs besides, e.g. " --fixtures reports/found".
        """
        places = [mismatch.check] if mismatch.row is None else [f"row {mismatch.row}", mismatch.check]
        only = "" if mismatch.row is None else f" --row {mismatch.row}"
        return self._told("IDENTITY MISMATCH", mismatch.step, places, mismatch.said, arguments, only)

    def stop_message(self, arguments: str = "") -> str:
        """The same for a play that ended early: its checks did not come to an answer."""
        assert self.stopped is not None
        return self._told("IDENTITY STOPPED", self.stopped.step, [], (self.stopped.why,), arguments, "")

    def _told(
        self, what: str, step: int, places: list[str], said: tuple[str, ...], arguments: str, only: str
    ) -> str:
        name, options = self.fixture.name, sorted(self.options.items())
        chosen = "".join(f" --{option.replace('_', '-')} {value}" for option, value in options)
        head = " · ".join([name, f"step {step} {self.steps[step]}", *places])
        body = "\n".join(f"  {line}" for line in said)
        replay = f"python -m harness.identity{arguments} --fixture {name}{chosen}{only} --until {step}"
        played = f"  ({', '.join(value for _, value in options)})" if options else ""
        return f"{what}  {head}{played}\n{body}\n  replay: {replay}"
