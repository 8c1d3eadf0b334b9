"""One cache on a set of fixtures: what was played, what it does not offer, and one word for each fixture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from harness.caches.needs import missing
from harness.caches.play import CachePlay, play
from harness.caches.protocol import Described
from harness.rows.schedule import Fixture
from harness.rows.trace import Mismatch, Trace

GREEN, RED, ABORTED, REFUSED, NOT_OFFERED = "green", "red", "aborted", "refused", "not offered"


@dataclass
class Result:
    """One fixture: its play, or what playing it would take.

    needs: what the cache does not offer, with the first step that takes it; geometry: why it has not this one.
    """

    fixture: Fixture
    played: CachePlay | None = None
    needs: dict[str, int] = field(default_factory=dict)
    geometry: str = ""

    @property
    def trace(self) -> Trace:
        assert self.played is not None
        return self.played.trace

    @property
    def word(self) -> str:
        """A mismatch outlives whatever ended the play; a play that compared nothing is none."""
        if self.played is None:
            return NOT_OFFERED
        if self.trace.mismatches:
            return RED
        if self.played.refused:
            return REFUSED
        compared = sum(self.trace.compared.values())
        return GREEN if compared and self.trace.stopped is None else ABORTED

    def checks(self) -> dict[str, str]:
        """Every check that compared something, with its own word."""
        red = {mismatch.check for mismatch in self.trace.mismatches}
        return {check: RED if check in red else GREEN for check in sorted({*self.trace.compared, *red})}


def results(fixtures: Sequence[Fixture], cache: Described, until: int | None = None) -> Iterator[Result]:
    """Every fixture that the cache can play, played; the others with what they need."""
    for fixture in fixtures:
        needs = missing(fixture, cache)
        if needs:
            yield Result(fixture, needs=needs)
            continue
        played = play(fixture, cache, until)
        if isinstance(played, CachePlay):
            yield Result(fixture, played)
        else:
            yield Result(fixture, geometry=str(played))


def holds(found: Sequence[Result]) -> bool:
    """No difference and no crash, and at least one fixture was played to its end."""
    words = Counter(result.word for result in found)
    return words[GREEN] > 0 and not words[RED] and not words[ABORTED]


def messages(found: Sequence[Result], row: int | None = None, arguments: str = "") -> list[str]:
    """Every difference in words, one message for arrays that went wrong together, and where plays ended by a crash."""
    said = []
    for result in found:
        if result.played is None:
            continue
        trace = result.trace
        chosen = [each for each in trace.mismatches if row is None or each.row in (row, None)]
        said += [trace.message(mismatch, arguments) for mismatch in _together(chosen)]
        if result.word == ABORTED and trace.stopped is not None:
            said.append(trace.stop_message(arguments))
    return said


def _together(mismatches: Sequence[Mismatch]) -> list[Mismatch]:
    """Arrays of one row that went wrong in one step for one reason, the sentence that ends their messages."""
    groups: dict[tuple[object, ...], list[Mismatch]] = {}
    for each in mismatches:
        groups.setdefault((each.step, each.row, each.said[-1]), []).append(each)
    merged = []
    for first, *others in groups.values():
        also = (f"so do {', '.join(each.check for each in others)}",) if others else ()
        merged.append(replace(first, said=(*first.said, *also)))
    return merged
