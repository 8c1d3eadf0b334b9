"""Why a mutant survives a test: the classes, and what to do about each."""

from __future__ import annotations

from enum import StrEnum


class Class(StrEnum):
    """The answers to "why is it not seen?", from the one that goes furthest to the one that says least."""

    SEEN = "seen"
    WEAK_ASSERTION = "weak-assertion"
    UNREAD = "unread"
    DEAD = "dead-on-the-way"
    COLLAPSED = "collapsed"
    UNRESOLVED = "unresolved"
    NONDETERMINISTIC = "nondeterministic"
    NO_OP = "no-op"
    NOT_REACHED = "not-reached"
    UNKNOWN = "unknown"

    @property
    def meaning(self) -> str:
        """One line for the report."""
        return _MEANINGS[self]

    @property
    def advice(self) -> str:
        """One sentence of advice."""
        return _ADVICE[self]


_MEANINGS = {
    Class.SEEN: "this test sees it",
    Class.WEAK_ASSERTION: "an assertion depends on what differs, and lets the difference pass",
    Class.UNREAD: "the difference lasts, and no assertion depends on it",
    Class.DEAD: "the difference is gone before an assertion could see it",
    Class.COLLAPSED: "the changed lines run without effect on this test's data, and with effect on other data",
    Class.UNRESOLVED: "the changed lines run without effect, on varied data too",
    Class.NONDETERMINISTIC: "what the mutant changes differs between two runs of the original as well",
    Class.NO_OP: "nothing differs that could be seen",
    Class.NOT_REACHED: "the test never executes a changed line",
    Class.UNKNOWN: "the probe came to no answer",
}

_ADVICE = {
    Class.SEEN: "It belongs in killed_by, if it is not there.",
    Class.WEAK_ASSERTION: "Make that assertion exact, or its tolerance smaller than the difference.",
    Class.UNREAD: "Assert on what differs.",
    Class.DEAD: "Assert nearer to the function, before the difference is overwritten, or drop what never matters.",
    Class.COLLAPSED: "Feed values that all differ, such as a ramp, in place of zeros, constants or equal rows.",
    Class.UNRESOLVED: "Vary what was not varied, or declare the entry equivalent and say why.",
    Class.NONDETERMINISTIC: "Seed or freeze what is random, then ask again.",
    Class.NO_OP: 'Remove the entry, or keep it as `kind = "equivalent"`.',
    Class.NOT_REACHED: "Choose input that takes the changed branch, or another test.",
    Class.UNKNOWN: "Run the test by itself with the mutant, and see how it ends.",
}

NOT_VARIED = "single whole numbers, truth values, text, shapes, the number and the order of calls"
NOT_COMPARED = "what is printed, and what is written to files"
