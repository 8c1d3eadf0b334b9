"""What stops a run: refused input, or an instrument that cannot be trusted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class InputRefused(Exception):
    """Input that is wrong, as a list of sentences (all of them, not the first)."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class InstrumentBroken(Exception):
    """The engine cannot judge here: a server died, a thread ran before a fork, a lock is held."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known word, or an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""
