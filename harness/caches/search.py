"""Random histories of whatever a cache offers, until one is wrong; the shortest that is still wrong becomes a fixture."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.caches.needs import missing
from harness.caches.play import CachePlay
from harness.caches.protocol import Described, Geometry, NotOffered
from harness.caches.results import ABORTED, GREEN, RED, Result, messages
from harness.rows.fixture import FixtureError, dump, from_mapping
from harness.rows.schedule import Fixture

Steps = list[dict[str, Any]]

GEOMETRIES = ((4, 2), (8, 1))
_ROWS_MAX, _STEPS_MAX, _WIDTH_MAX, _BACK_MAX = 4, 10, 6, 6
_PROMPTS_MAX = (3, 24, 80)  # short ones meet the start, long ones pass the end of a window
_SHRINKS_MAX = 600
_FACT = "depth_refused"  # a fixture declares what its play must witness; of any history, that is all there is


@dataclass(frozen=True)
class Found:
    """A history that a cache gets wrong: its file, its play, and how many were played until then."""

    path: Path
    result: Result
    histories: int
    message: str


def search(
    cache: Described,
    folder: Path,
    *,
    histories: int,
    seed: int = 0,
    arguments: str = "",
    played: Callable[[int], None] = lambda _: None,
) -> Found | None:
    """Play up to `histories` random histories; the first wrong one is shrunk and written to `folder`.

    played: told how many were right so far, before each.
    """
    rng, geometries, ended = np.random.default_rng(seed), _offered(cache), 0
    for number in range(1, histories + 1):
        played(number - 1)
        ratio, span = geometries[number % len(geometries)]
        steps = Drawn(rng, cache).steps()
        result = judged(cache, ratio, span, steps)
        if result is not None and result.word in (RED, ABORTED):
            return _written(cache, ratio, span, shrunk(cache, ratio, span, steps), folder, number, arguments)
        ended += result is not None and result.word == GREEN
    if not ended:
        raise NothingPlayed(
            f"none of {histories} histories was played to its end: the cache refused each; it should take prompts and steps "
            "of a few tokens"
        )
    return None


class NothingPlayed(Exception):
    """No history came to its end, so nothing was found out."""


def _offered(cache: Described) -> list[tuple[int, int]]:
    """The geometries that a cache has."""
    offered = []
    for ratio, span in GEOMETRIES:
        try:
            cache.factory(Geometry(ratio, span), 1)
            offered.append((ratio, span))
        except NotOffered:
            continue
    return offered


def wrong(cache: Described, ratio: int, span: int, steps: Steps) -> Result | None:
    """The play of these steps if the cache gets them wrong."""
    result = judged(cache, ratio, span, steps)
    return result if result is not None and result.word in (RED, ABORTED) else None


def judged(cache: Described, ratio: int, span: int, steps: Steps) -> Result | None:
    """The play of these steps; None if they are no schedule for this cache."""
    try:
        fixture = _fixture(ratio, span, steps)
    except FixtureError:
        return None
    if missing(fixture, cache):
        return None
    play = CachePlay(fixture, cache)
    play.run()
    return Result(fixture, play)


def _fixture(
    ratio: int, span: int, steps: Steps, name: str = "found", proves: str = "Found by search."
) -> Fixture:
    return from_mapping(
        name, {"proves": proves, "ratio": ratio, "span": span, "facts": [_FACT], "step": steps}
    )


class Drawn:
    """Draws one schedule out of what a cache offers; rows are followed, so that it is one."""

    def __init__(self, rng: np.random.Generator, cache: Described) -> None:
        self.rng, self.cache = rng, cache
        self.rows: list[int] = []  # the length of each row
        self.numbers: list[int] = []  # the sequence in each row
        self.opened = 0
        self.parked: dict[int, int] = {}

    def steps(self) -> Steps:
        rows, longest = self._count(1, _ROWS_MAX), _PROMPTS_MAX[self._count(0, len(_PROMPTS_MAX) - 1)]
        lengths = [self._count(1, longest)] * rows
        if self.cache.offers("prefill.ragged"):
            lengths = [self._count(1, longest) for _ in range(rows)]
        self.rows, self.numbers, self.opened = list(lengths), list(range(rows)), rows
        drawn: Steps = [{"do": "prefill", "lengths": lengths}]
        for _ in range(self._count(1, _STEPS_MAX)):
            drawn += self._step()
        return drawn

    def _count(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def _step(self) -> Steps:
        offers = self.cache.offers
        choices = [self._advance, self._advance]
        choices += [self._verify] if offers("rollback") else []
        choices += (
            [self._rollback]
            if offers("rollback.ragged") or (offers("rollback") and len(self.rows) == 1)
            else []
        )
        choices += [self._select] if offers("select") else []
        forks = offers("repeat") and offers("rollback.ragged") and len(self.rows) < _ROWS_MAX
        choices += [self._fork_and_go_back] if forks else []
        choices += [self._join] if offers("assemble") else []
        choices += [self._leave] if offers("split") and offers("assemble") and offers("select") else []
        return choices[self._count(0, len(choices) - 1)]()

    def _counts(self, low: int, high: int, ragged: bool) -> list[int]:
        if not ragged:
            return [self._count(max(low, 1), high)] * len(self.rows)
        return [self._count(low, high) for _ in self.rows]

    def _advance(self) -> Steps:
        counts = self._counts(0, _WIDTH_MAX, self.cache.offers("advance.ragged"))
        self.rows = [length + n for length, n in zip(self.rows, counts, strict=True)]
        return [{"do": "advance", "n_new": counts}]

    def _verify(self) -> Steps:
        width = self._count(1, _WIDTH_MAX)
        if self.cache.offers("rollback.ragged"):
            accept = [self._count(0, width) for _ in self.rows]
        else:
            accept = [self._count(0, width)] * len(self.rows)
        self.rows = [length + n for length, n in zip(self.rows, accept, strict=True)]
        return [{"do": "verify", "width": width, "accept": accept}]

    def _rollback(self) -> Steps:
        row = self._count(0, len(self.rows) - 1)
        n = self._count(1, min(self.rows[row], _BACK_MAX)) if self.rows[row] else 0
        self.rows[row] -= n
        return [{"do": "rollback", "row": row, "n": n}] if n else self._advance()

    def _fork_and_go_back(self) -> Steps:
        """A row becomes two, one of them goes back behind the fork, and they go on with different tokens."""
        row, rows = self._count(0, len(self.rows) - 1), len(self.rows)
        n = self._count(1, max(min(self.rows[row], _BACK_MAX), 1))
        self.rows.append(self.rows[row])
        self.numbers.append(self.opened)
        self.opened += 1
        fork: Steps = [{"do": "select", "rows": [*range(rows), row]}]
        if n <= self.rows[row]:
            gone = row if self._count(0, 1) else rows
            self.rows[gone] -= n
            fork.append({"do": "rollback", "row": gone, "n": n})
        return [*fork, *self._advance()]

    def _select(self) -> Steps:
        rows = len(self.rows)
        chosen = [int(row) for row in self.rng.permutation(rows)[: self._count(1, rows)]]
        if self.cache.offers("repeat") and self._count(0, 2) == 0 and rows < _ROWS_MAX:
            chosen.append(chosen[0])
        numbers: list[int] = []
        for row in chosen:
            if self.numbers[row] in numbers:
                numbers.append(self.opened)
                self.opened += 1
            else:
                numbers.append(self.numbers[row])
        self.rows, self.numbers = [self.rows[row] for row in chosen], numbers
        return [{"do": "select", "rows": chosen}]

    def _join(self) -> Steps:
        if len(self.rows) >= _ROWS_MAX:
            return self._advance()
        length, number = self._count(1, _PROMPTS_MAX[1]), self.opened
        self.opened += 1
        self.rows.append(length)
        self.numbers.append(number)
        return [
            {"do": "prefill", "lengths": [length], "parked": True},
            {"do": "assemble", "sequences": [number]},
        ]

    def _leave(self) -> Steps:
        if len(self.rows) < 2:
            return self._advance()
        row = self._count(0, len(self.rows) - 1)
        number, length = self.numbers.pop(row), self.rows.pop(row)
        leave: Steps = [{"do": "split", "rows": [row]}, *self._advance()]
        self.rows.append(length)
        self.numbers.append(number)
        return [*leave, {"do": "assemble", "sequences": [number]}]


def shrunk(cache: Described, ratio: int, span: int, steps: Steps) -> Steps:
    """The same fault with fewer steps, fewer rows and smaller numbers, as far as one change at a time leads."""
    left = _SHRINKS_MAX
    going = True
    while going and left:
        going = False
        for smaller in _smaller(steps):
            left -= 1
            if wrong(cache, ratio, span, smaller) is not None:
                steps, going = smaller, True
                break
            if not left:
                break
    return steps


def _smaller(steps: Steps) -> Iterator[Steps]:
    """Neighbours that are smaller: cut short, without a step, without a row, with a smaller number."""
    for length in range(1, len(steps)):
        yield steps[:length]
    for k in range(1, len(steps)):
        yield _fitting(steps[:k] + steps[k + 1 :])
        yield _fitting(steps[:k] + steps[k + 2 :])  # such as a row that joins
    for row in range(len(steps[0]["lengths"])):
        yield [_without(step, row, number) for number, step in enumerate(steps)]
    for k, step in enumerate(steps):
        for key in ("lengths", "n_new", "accept", "width", "n"):
            for value in _lower(step.get(key)):
                yield [*steps[:k], {**step, key: value}, *steps[k + 1 :]]


def _without(step: dict[str, Any], row: int, number: int) -> dict[str, Any]:
    """The step of a batch that never had this row; other rows keep their numbers only where no step names them."""
    keys = ("lengths",) if number == 0 else ("n_new", "accept")
    kept = {key: value[:row] + value[row + 1 :] for key, value in step.items() if key in keys}
    if step["do"] == "select":
        kept["rows"] = [other - (other > row) for other in step["rows"] if other != row]
    return {**step, **kept}


def _fitting(steps: Steps) -> Steps:
    """The steps with counts and choices cut to the rows that are left when one of them is gone."""
    rows = 0
    fitting: Steps = []
    for step in steps:
        kept: dict[str, Any] = {key: step[key][:rows] for key in ("n_new", "accept") if key in step}
        if step["do"] == "select":
            kept["rows"] = [row for row in step["rows"] if row < rows]
        fitting.append({**step, **kept})
        rows = _rows_after(fitting[-1], rows)
    return fitting


def _rows_after(step: dict[str, Any], rows: int) -> int:
    match step["do"]:
        case "prefill":
            return rows if rows else len(step["lengths"])
        case "select":
            return len(step["rows"])
        case "split":
            return rows - len(step["rows"])
        case "assemble":
            return rows + len(step["sequences"])
        case _:
            return rows


def _lower(value: list[int] | int | None) -> Iterator[list[int] | int]:
    if isinstance(value, int):
        yield from (lower for lower in (value // 2, value - 1) if 0 < lower < value)
    elif value is not None:
        if len(set(value)) == 1 and value[0] > 1:  # rows that must stay equal
            yield [value[0] // 2] * len(value)
            yield [value[0] - 1] * len(value)
        for k, each in enumerate(value):
            yield from (
                [*value[:k], lower, *value[k + 1 :]] for lower in (each // 2, each - 1) if 0 <= lower < each
            )


def _written(
    cache: Described, ratio: int, span: int, steps: Steps, folder: Path, histories: int, arguments: str
) -> Found:
    result = wrong(cache, ratio, span, steps)
    assert result is not None
    red = sorted({mismatch.check for mismatch in result.trace.mismatches}) or ["the play goes on"]
    proves = f"Found by search in {cache.name}: {', '.join(red)} through {len(steps)} steps."
    text = dump(_fixture(ratio, span, steps, proves=proves))
    path = folder / f"found_{hashlib.sha256(text.encode()).hexdigest()[:10]}.toml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    play = CachePlay(_fixture(ratio, span, steps, path.stem, proves), cache)
    play.run()
    again = Result(play.fixture, play)
    said = messages([again], None, f" --fixtures {shlex.quote(str(folder))}{arguments}")[:1]
    said.append(f"\nfound after {histories} histories, written to {path}")
    return Found(path, again, histories, "\n".join(said))
