"""One mutant and one test: reach, infect, propagate, reveal, each measured in a fork of its own.

The mutant and the original are recorded once each. Where they never differ, both are run again on other
data; where they do, the original is run once more (is it the mutant, or chance?), and then with exactly
the differing elements poisoned (does an assertion depend on them?).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..campaign import NOTHING, Campaign
from ..prepare import Fault, make_fault
from ..serving import read_source
from . import compare
from .classes import NOT_COMPARED, NOT_VARIED, Class
from .compare import Change, Difference, Noise
from .runs import NoAnswer, Run, limits, other_data, read, told_of
from .wrapped import wrapped

LOOK: Mapping[str, Any] = {"style": None, "scalars": False, "rows": False}
_FRACTIONS = {"float", "complex", "ndarray", "tensor", "float64", "float32"}


@dataclass
class Finding:
    """What the probe found for one mutant and one test; `before` and `after` are at `path` of `where`."""

    test: str
    cls: Class
    sentence: str
    where: str = ""
    path: str = ""
    before: str = ""
    after: str = ""
    reached: bool = False
    infected: bool = False
    notes: list[str] = field(default_factory=list)
    runs: int = 0
    cpu_s: float = 0.0

    def as_data(self) -> dict[str, Any]:
        """The form of `why` in reports/run.json."""
        data = asdict(self)
        data["class"] = data.pop("cls")
        return data


class Probe:
    """Carries out the runs for one mutant and one test."""

    def __init__(
        self, campaign: Campaign, fault: Fault, test: str, mode: str, why: str | None = None
    ) -> None:
        self.campaign, self.fault, self.test, self.mode, self.declared = campaign, fault, test, mode, why
        self.poison_mode = mode
        self.runs, self.cpu_s = 0, 0.0

    def find(self) -> Finding:
        """Run what is needed and decide."""
        try:
            found = self._find()
        except NoAnswer as error:
            found = Finding(self.test, Class.UNKNOWN, f"{error}.")
        found.runs, found.cpu_s = self.runs, round(self.cpu_s, 4)
        return found

    def _find(self) -> Finding:
        if not self.fault.bytecode_differs:
            return Finding(
                self.test, Class.NO_OP, "The compiler sees no difference between original and mutant."
            )
        mutant = self._record(self.fault)
        if not mutant.reached:
            calls = mutant.recording["calls"]
            how = f"is called {_times(calls)}, and no changed line runs" if calls else "is never called"
            return Finding(self.test, Class.NOT_REACHED, f"{self._changed()} {how}.")
        original = self._record(NOTHING, vary=LOOK)
        if original.red is not None or original.crashed:
            raise NoAnswer(f"the test does not pass without the mutant ({original.red or 'it crashed'})")
        found = self._effect(original, mutant)
        found.reached = True
        found.notes += limits(original.recording)
        return found

    def _effect(self, original: Run, mutant: Run) -> Finding:
        quiet = Noise()
        difference = compare.first_difference(original.recording, mutant.recording, quiet)
        beyond = compare.seen(original.recording, mutant.recording, quiet)
        if difference is None and not beyond.anything:
            return self._seen(mutant, None) if mutant.red else self._without_effect(original)
        keep = _wanted(difference) if not (mutant.red or mutant.crashed) else {}
        again = self._record(NOTHING, seed=1, keep=keep)
        quiet = compare.noise(original.recording, again.recording)
        difference = compare.first_difference(original.recording, mutant.recording, quiet)
        beyond = compare.seen(original.recording, mutant.recording, quiet)
        if difference is not None and keep.get(str(difference.index)):
            difference = self._with_elements(difference, again, keep, quiet)
        if mutant.red or mutant.crashed:
            return self._seen(mutant, difference)
        if difference is not None:
            return self._poisoned(difference, beyond, original)
        if (
            any(place.startswith(("enter", "exit", "raise")) for place, _ in quiet.paths)
            or "borders" in quiet.since
        ):
            sentence = f"Two runs of the original differ at {quiet.example or 'the number of calls'}."
            return Finding(self.test, Class.NONDETERMINISTIC, sentence, path=quiet.example)
        if beyond.anything:
            change = beyond.end or beyond.handed or (beyond.line[1] if beyond.line else None)
            assert change is not None
            path, before, after = compare.told(change)
            sentence = (
                f"{self._changed()} ends alike, and yet the test holds another {path} ({before}, {after})."
            )
            return Finding(
                self.test, Class.UNRESOLVED, sentence, "the test", path, before, after, infected=True
            )
        return self._without_effect(original)

    # No difference: other data

    def _without_effect(self, original: Run) -> Finding:
        count = original.recording["calls"]
        tried: list[str] = []
        for vary in other_data(original.recording["inputs"]):
            one = self._record(NOTHING, vary=vary)
            if not one.recording["varied"]:
                continue
            other = self._record(self.fault, vary=vary)
            difference = compare.first_difference(one.recording, other.recording, Noise())
            if difference is not None and self._meaningful(difference, one, original):
                return self._collapsed(difference, one, count)
            tried += [name for name in one.recording["varied"] if name not in tried]
        if self.declared is not None:
            sentence = f"Declared equivalent ({self.declared}); it ran {_times(count)} and ended alike, on other data too."
            return Finding(self.test, Class.NO_OP, sentence)
        on = f" and on other data ({told_of(tried)})" if tried else "; there was no fraction to vary"
        sentence = (
            f"{self._changed()} ran {_times(count)} and always ended alike, on this test's data{on}. "
            f"Not varied: {NOT_VARIED}. Not compared: {NOT_COMPARED}."
        )
        return Finding(self.test, Class.UNRESOLVED, sentence)

    def _would_be_seen(self, original: Run) -> str | None:
        """Whether the same test, fed a ramp, stays green without the mutant and turns red with it, and where."""
        ramps = [vary for vary in other_data(original.recording["inputs"]) if not vary["scalars"]]
        for vary in ramps[:1]:
            one = self._record(NOTHING, vary=vary, silent=True)
            if one.red is None and not one.crashed and one.recording["varied"]:
                return self._record(self.fault, vary=vary, silent=True).red
        return None

    def _meaningful(self, difference: Difference, varied: Run, original: Run) -> bool:
        """Not where the original itself refuses the varied data: then the data lies outside its contract."""
        if difference.kind != "raise":
            return True
        events = original.recording["borders"]
        plain = events[difference.index] if difference.index < len(events) else ["", "", 0]
        return str(plain[0]) == "raise"

    def _collapsed(self, difference: Difference, varied: Run, count: int) -> Finding:
        path, before, after = compare.told(difference.changes[0])
        how = told_of(varied.recording["varied"])
        sentence = (
            f"{self._changed()} ran {_times(count)} and always ended alike on this test's data; with {how} "
            f"{difference.spot} {_verb(difference)} {path}: {before}, mutant {after}."
        )
        return Finding(self.test, Class.COLLAPSED, sentence, difference.spot, path, before, after)

    # A difference: does it last, and does anybody look?

    def _with_elements(
        self, difference: Difference, original: Run, keep: Mapping[str, Sequence[str]], quiet: Noise
    ) -> Difference:
        """Run the mutant once more if the elements that differ are in arrays too large to be kept at first."""
        mutant = self._record(self.fault, seed=1, keep=keep)
        again = compare.first_difference(original.recording, mutant.recording, quiet)
        return again if again is not None and again.index == difference.index else difference

    def _poisoned(self, difference: Difference, seen: compare.Seen, original: Run) -> Finding:
        change = difference.changes[0]
        path, before, after = compare.told(change)
        what = f"{difference.spot} {_verb(difference)} {path}: {before}, mutant {after}"
        found = Finding(self.test, Class.UNREAD, "", difference.spot, path, before, after, infected=True)
        red, notes = self._react(difference)
        found.notes += notes
        if red is not None and seen.anything:
            found.cls = Class.WEAK_ASSERTION
            found.sentence = (
                f"{what}; {red} depends on it (a gross change turns it red) and lets this one pass."
            )
        elif red is None and (line := self._would_be_seen(original)) is not None:
            found.cls = Class.COLLAPSED
            found.sentence = (
                f"{what}, which no assertion depends on; on a ramp this test turns red at {line}: "
                "its own data collapses what it looks at."
            )
        elif red is None and (seen.end or seen.handed):
            found.sentence = f"{what}; it {_lasts(seen)}, and no assertion depends on it."
        else:
            found.cls = Class.DEAD
            larger = f" A gross change would reach {red}." if red is not None else ""
            found.sentence = f"{what}; {_gone(seen)}.{larger}"
        return found

    def _react(self, difference: Difference) -> tuple[str | None, list[str]]:
        """Poison until an assertion turns red; returns where, and what stood in the way."""
        marks = [
            {"path": change.path, "kind": change.kind, "at": change.at, "grown": change.grown}
            for change in difference.changes
        ]
        if difference.changes[0].path == "calls":
            return None, [
                "the two runs call each other's functions in another order, which cannot be poisoned"
            ]
        fault = self._hooked(difference)
        notes: list[str] = []
        for manner in _manners(difference.changes):
            order = {"call": difference.call, "kind": difference.kind, "marks": marks, "manner": manner}
            try:
                run = self._record(fault, poison=order, silent=True)
            except NoAnswer as error:
                notes.append(f"poisoned, {error}")
                continue
            if run.red is not None:
                return run.red, notes
            if not run.recording["poisoned"]:
                return None, [*notes, "what differs cannot be written to, so it was not poisoned"]
            if run.crashed:
                notes.append("poisoned, the test crashed before an assertion could tell")
        return None, list(dict.fromkeys(notes))

    def _hooked(self, difference: Difference) -> Fault:
        if difference.kind == "enter":
            return NOTHING
        files = [file for file, name in self.fault.functions if name in (difference.function, "<module>")]
        for file in files or list(self.fault.overlay):
            text = read_source(str(self.campaign.root / file))
            hooked = wrapped(text, difference.function, difference.kind == "raise")
            if hooked is not None:
                return make_fault({file: (text, hooked)})
        return NOTHING

    def _seen(self, mutant: Run, difference: Difference | None) -> Finding:
        found = Finding(self.test, Class.SEEN, "", infected=difference is not None)
        end = mutant.red or "the test ends by an error"
        found.sentence = f"The test turns red with the mutant: {end}."
        if difference is not None:
            found.where = difference.spot
            found.path, found.before, found.after = compare.told(difference.changes[0])
            found.sentence += f" First, {difference.spot} {_verb(difference)} {found.path}: {found.before}, mutant {found.after}."
        return found

    # One run

    def _record(
        self,
        fault: Fault,
        vary: Mapping[str, Any] | None = None,
        keep: Mapping[str, Sequence[str]] | None = None,
        poison: Mapping[str, Any] | None = None,
        silent: bool = False,
        seed: int = 0,
    ) -> Run:
        functions: dict[str, list[str]] = {}
        for file, name in self.fault.functions:
            functions.setdefault(file, []).append(name)
        order: dict[str, Any] = {
            "functions": functions,
            "roots": list(self.campaign.settings.roots),
            "test": self.test,
            "keep": dict(keep or {}),
            "silent": silent,
            "seed": seed,
            "from_import": self.fault.trace_import,
        }
        if vary is not None:
            order["vary"] = dict(vary)
        if poison is not None:
            order["poison"] = dict(poison)
        mode = self.mode if poison is None else self.poison_mode
        reply = self.campaign.ask(fault, mode, [self.test], probe=order)
        self.runs += 1
        self.cpu_s += float(reply.get("cpu_s", 0.0))
        if reply["end"] == "answered" and reply["answer"]["kind"] == "refused" and mode == "swap":
            # The hooks of a poisoning may be refused where the mutant is not; the other runs go on by swap.
            self.poison_mode = self.campaign.reference
            self.mode = self.mode if poison is not None else self.campaign.reference
            return self._record(fault, vary, keep, poison, silent, seed)
        return read(reply, self.test)

    def _changed(self) -> str:
        names = dict.fromkeys(name for _, name in self.fault.functions)
        return (
            ", ".join("the module's body" if name == "<module>" else name for name in names) or "the change"
        )


def _wanted(difference: Difference | None) -> dict[str, list[str]]:
    """The paths whose bytes are needed to tell which elements differ, by the number of the event."""
    paths = [change.path for change in difference.changes if change.needs_bytes] if difference else []
    return {str(difference.index): paths} if difference and paths else {}


def _manners(changes: Sequence[Change]) -> list[str]:
    kinds = {change.kind for change in changes}
    found = ["nan"] if kinds & _FRACTIONS else []
    found += ["up", "down"]
    return found if kinds & _FRACTIONS or "int" not in kinds else [*found, "zero"]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _verb(difference: Difference) -> str:
    return {"enter": "is entered with another", "exit": "leaves another", "raise": "raises with another"}[
        difference.kind
    ]


def _lasts(seen: compare.Seen) -> str:
    if seen.end is not None:
        return f"is still there when the test ends ({seen.end.path})"
    return "is handed to the test"


def _gone(seen: compare.Seen) -> str:
    if seen.line is not None:
        return f"it is there at line {seen.line[0]} of the test and gone when the test ends"
    return (
        "it never comes to the test"
        if seen.ended
        else "it never came to the test, as far as the test was followed"
    )
