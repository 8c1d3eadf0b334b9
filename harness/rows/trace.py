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


@dataclass
class Trace:
    """One play of one fixture.

    compared counts, per check, what was looked at: a check that looked at nothing is not green.
    stopped is why the play ended before its last step, or None.
    """

    fixture: Fixture
    options: dict[str, str]
    steps: list[str] = field(default_factory=list)
    compared: Counter[str] = field(default_factory=Counter)
    mismatches: list[Mismatch] = field(default_factory=list)
    facts: set[str] = field(default_factory=set)
    stopped: str | None = None

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
        name = self.fixture.name
        where = [name, f"step {mismatch.step} {self.steps[mismatch.step]}" if self.steps else "end"]
        replay = f"python -m harness.identity{arguments} --fixture {name}"
        for option, value in sorted(self.options.items()):
            replay += f" --{option.replace('_', '-')} {value}"
        if mismatch.row is not None:
            where.append(f"row {mismatch.row}")
            replay += f" --row {mismatch.row}"
        replay += f" --until {mismatch.step}"
        head = " · ".join([*where, mismatch.check])
        options = ", ".join(self.options[key] for key in sorted(self.options))
        body = "\n".join(f"  {line}" for line in mismatch.said)
        return f"IDENTITY MISMATCH  {head}  ({options})\n{body}\n  replay: {replay}"
