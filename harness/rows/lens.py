"""The same plays on other data: which streams let a difference show, and which hide it.

A play of the lens is a play of the token lane in which a token is not its id but what each stream feeds for it,
all streams side by side. It keeps apart what *data* shows (blocks, tails, K/V slots, bytes: per stream) and what
counts and promises show (tokens, base, shapes, refusals, calls, writes), which no stream can hide. Dead memory is not
poisoned: poison is a device against blind data, and here the data speaks alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from harness.rows.checks import REFERENCE, VALUES_LANE
from harness.rows.compare import Judge
from harness.rows.formats import rounded
from harness.rows.play import Play
from harness.rows.schedule import Fixture
from harness.rows.stage import Member
from harness.rows.streams import STREAMS, SideBySide, Vectors, apart
from harness.rows.subject import Array, Oracle, Subject, Weights, random_weights

DATA_CHECKS = (
    "comp.tokens",
    "comp.tokens" + REFERENCE,
    "tail.tokens",
    "tail.tokens" + REFERENCE,
    "kv.tokens",
    "idle.bytes",
    "flag_off.bytes",
    "forced.bytes",
)
# What its plays in plain arithmetic can answer: which last bits are right is a question of arithmetic, not of data.
VALUES_CHECKS = tuple(check for check in VALUES_LANE if check != "rows.bytes")
# Two of four combinations, so that each payload and each plan is played.
OPTIONS = ({"retain": "hidden", "plan": "grouped"}, {"retain": "projected", "plan": "gathered"})
# The values lane costs a play for every stream: few fixtures, one for each thing that a block is made of.
VALUES_FIXTURES = (
    "accept_none_some_all",
    "float32_csa",
    "four_residues",
    "one_column",
    "ratio_128",
    "rolled_back_row_beside_others",
    "two_rows_two_destinations",
)
HIDDEN_WIDTH, BLOCK_WIDTH, ROPE_WIDTH = 32, 32, 32


@dataclass
class Seen:
    """Where a difference showed first: by data, per stream, and by counts and promises.

    A place is one line: fixture, payload, plan, step and check. plays: how many were played.
    """

    data: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in STREAMS})
    promises: list[str] = field(default_factory=list)
    plays: int = 0


class StreamPlay(Play):
    """One play of one fixture with all streams side by side."""

    def __init__(
        self, fixture: Fixture, subject: Subject, oracle: Oracle, options: Mapping[str, str], seen: Seen
    ) -> None:
        super().__init__(fixture, subject, oracle, options, poison=False)
        self.side = SideBySide(self.ledger)
        self.stream = self.side
        self.setup = replace(self.setup, channels=len(STREAMS))
        if fixture.kv_window:
            self.slots = subject.slots(self.setup, len(STREAMS))
        self.judge = _StreamJudge(self, seen)

    def kv(self, ids: list[int]) -> Array:
        return self.side.feed(ids)


class _StreamJudge(Judge):
    """The comparisons of the token lane, on what each stream fed."""

    def __init__(self, play: StreamPlay, seen: Seen) -> None:
        super().__init__(play)
        self._fed, self._seen = play.side, seen

    def _see(self, check: str, streams: Iterable[str]) -> None:
        trace = self.stage.trace
        told = ", ".join(trace.options.values())
        place = f"{trace.fixture.name} ({told}) · step {self.stage.at} {trace.steps[self.stage.at]} · {check}"
        for name in streams:
            self._seen.data[name].append(place)

    def _tokens(
        self, check: str, axis: str, row: int | None, member: Member, sides: tuple[Array, Array, Array]
    ) -> None:
        batch, alone, ids = sides
        blocks = check.startswith("comp")
        right = self._right_blocks(ids) if blocks else self._right_tail(ids)
        for name, one, other in ((check, batch, alone), (check + REFERENCE, alone, right)):
            self.trace.compared[name] += 1
            if one.shape == other.shape:
                self._see(name, apart(one, other, blocks))
            else:  # any data would show it, so it is no merit of the data
                self.record(name, row, (f"shapes differ: {list(one.shape)}, {list(other.shape)}",))

    def _right_tail(self, ids: Array) -> Array:
        """ids [n, parts * streams], alike in every column, as what was fed for them."""
        return np.tile(self._fed.feed(ids[:, 0].tolist()), ids.shape[1] // len(STREAMS))

    def _right_blocks(self, ids: Array) -> Array:
        """ids [live, slots + 1] as blocks of all streams [live, slots * streams + 1]."""
        live, slots = len(ids), ids.shape[1] - 1
        fed = self._fed.feed(ids[:, :-1].ravel().tolist()).reshape(live, slots * len(STREAMS))
        return np.concatenate([fed, ids[:, -1:]], axis=1)

    def _slot_tokens(self, row: int, member: Member, held: Array, right: Array) -> None:
        fed = self._fed.feed(right[:, 0].tolist())
        if held.shape == fed.shape:
            self._see("kv.tokens", apart(held, fed, False))
        else:
            self.record("kv.tokens", row, (f"shapes differ: {list(held.shape)}, {list(fed.shape)}",))

    def _scattered(self, before: Array, after: Array, expected: set[tuple[int, int]]) -> None:
        """Which cells changed is data, and `comp.tokens` looks at it stream by stream; here only writes are counted."""

    def _idle_part(self, row: int, name: str, was: Array, now: Array) -> None:
        if not was.ndim and was != now:
            self.record("idle.bytes", row, (f"{name} of row {row} changed",))
        elif was.ndim and was.shape == now.shape:
            self._see("idle.bytes", apart(was, now, name == "comp"))

    def _bytes_of_twins(self) -> None:
        stage = self.stage
        mine = stage.present().memory() if stage.twins else {}
        for check, twin in stage.twins.items():
            self.trace.compared[check] += 1
            for name, other in twin.memory().items():
                if mine[name].shape != other.shape or (other.ndim == 1 and (mine[name] != other).any()):
                    self.record(check, None, (f"{name} differs",))
                elif other.ndim > 1:
                    self._see(check, apart(mine[name], other, name == "comp"))


def named_in(text: str, fixtures: Mapping[str, Fixture]) -> list[Fixture]:
    """The fixtures whose items a text names (`::test_identity[NAME-`); all of them if it names none."""
    names = set(re.findall(r"::test_identity\[(\w+)-", text))
    return [fixture for name, fixture in fixtures.items() if name in names] or list(fixtures.values())


def look(fixtures: Sequence[Fixture], subject: Subject, oracle: Oracle) -> Seen:
    """Play every fixture with every stream, and say where which stream shows a difference."""
    seen = Seen()
    for fixture in fixtures:
        for options in OPTIONS:
            play = StreamPlay(fixture, subject, oracle, options, seen)
            trace = play.run()
            seen.plays += 1
            told = f"{fixture.name} ({', '.join(options.values())})"
            for mismatch in trace.mismatches:
                if mismatch.check != "facts":
                    seen.promises.append(
                        f"{told} · step {mismatch.step} {trace.steps[mismatch.step]} · {mismatch.check}"
                    )
            if trace.stopped is not None:
                seen.promises.append(
                    f"{told} · step {trace.stopped.step} · the play stopped: {trace.stopped.why}"
                )
    return seen


class ValuesPlay(Play):
    """One play of the values lane on one stream: the real compressor, small, in the fixture's format."""

    def __init__(
        self, fixture: Fixture, subject: Subject, oracle: Oracle, options: Mapping[str, str], stream: str
    ) -> None:
        super().__init__(fixture, subject, oracle, options, lane="values", poison=False)
        drawn = random_weights(fixture.ratio, fixture.span, HIDDEN_WIDTH, BLOCK_WIDTH, ROPE_WIDTH)
        dtype = fixture.values.dtype
        wkv, wgate, bias, gamma = (
            rounded(w, dtype) for w in (drawn.wkv, drawn.wgate, drawn.bias, drawn.gamma)
        )
        self.stream = Vectors(self.ledger, stream, HIDDEN_WIDTH, dtype)
        self.setup = replace(self.setup, weights=Weights(wkv, wgate, bias, gamma, ROPE_WIDTH, dtype))

    def classify(self) -> None:
        """Not asked: a stream is to be compared with others, not explained."""


def look_at_values(fixtures: Sequence[Fixture], subject: Subject, oracle: Oracle, stream: str) -> list[str]:
    """Where the values of blocks are wrong on one stream: one line a place."""
    places = []
    for fixture in fixtures:
        for options in OPTIONS:
            trace = ValuesPlay(fixture, subject, oracle, options, stream).run()
            told = f"{fixture.name} ({', '.join(options.values())})"
            places += [
                f"{told} · step {m.step} {trace.steps[m.step]} · {m.check}: {m.said[0]}"
                for m in trace.mismatches
                if m.check in VALUES_CHECKS
            ]
    return places
