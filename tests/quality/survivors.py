"""Planted survivors: mutants that one test of a small target does not kill, each labelled with the reason.

The labels were written, and committed, before any program had looked for the reasons. What they mean:

no-op             the compiler sees no difference, or the entry is declared equivalent
not-reached       the test never executes a changed line
collapsed         executed without effect; other values of the same inputs would have shown one
unresolved        executed without effect, with other values too: single whole numbers, text, shapes, the
                  number of calls were not varied, or nothing can tell the two apart
dead-on-the-way   an effect that is gone before it comes to the test, or before the test ends
unread            an effect that lasts, and that no assertion depends on
weak-assertion    an effect that an assertion depends on, and lets pass
nondeterministic  what the mutant changes differs between two runs of the original as well
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from harness.mutation.anchor import Edit

FOLDER = Path(__file__).parent / "survivors"
LABELS = ("no-op", "not-reached", "collapsed", "unresolved", "dead-on-the-way", "unread", "weak-assertion",
          "nondeterministic")  # fmt: skip


@dataclass(frozen=True)
class Survivor:
    """One row of the table; `declared` is the sentence of an entry that is declared equivalent."""

    id: str
    target: str
    edit: Edit
    test: str
    label: str
    killable: bool
    origin: str
    why: str
    declared: str | None


def table() -> list[Survivor]:
    """All rows, in the order of the files."""
    return [
        Survivor(
            row["id"],
            path.stem,
            Edit(row["file"], row["scope"], row["find"], row["replace"]),
            row["test"],
            row["label"],
            row["killable"],
            row["origin"],
            row["why"],
            row.get("declared"),
        )
        for path in sorted(FOLDER.glob("*.toml"))
        for row in tomllib.loads(path.read_text())["survivor"]
    ]


def lay(root: Path) -> Path:
    """Write all targets and their tests as one project."""
    for path in FOLDER.glob("*.toml"):
        for name, text in tomllib.loads(path.read_text())["files"].items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    return root
