"""A cache that is fed the ids of events is told in tokens at once: no history has to be searched."""

from __future__ import annotations

import numpy as np
import pytest

from harness.caches.play import play
from harness.caches.protocol import Geometry, describe
from harness.rows import schedule as do
from harness.rows.events import origin
from harness.rows.schedule import Fixture
from harness.subjects.v4_tokens import V4TokenCache

FIXTURE = Fixture(
    "two_rows",
    "Two rows stand beside each other.",
    ratio=4,
    span=2,
    step=(do.Prefill((9, 3)), do.Advance((1, 1)), do.Verify(3, (1, 3))),
)


def told(factory: type[V4TokenCache]) -> list[str]:
    played = play(FIXTURE, describe("here:factory", factory, factory(Geometry(), 1)))
    return [played.trace.message(mismatch) for mismatch in played.trace.mismatches]


class Neighbourly(V4TokenCache):
    """In a batch, row 1 reads the window of row 0."""

    def read(self, row: int):
        held = dict(super().read(row))
        if self.cache.rows > 1 and row == 1:
            held["l0.mask"] = dict(super().read(0))["l0.mask"][-len(held["l0.mask"]) :]
        return held


class Displaced(V4TokenCache):
    """In a batch, queries are said to stand one token further on."""

    def read(self, row: int):
        held = dict(super().read(row))
        if self.cache.rows > 1:
            held["l1.positions"] = held["l1.positions"] + 1
        return held


class Forgetful(V4TokenCache):
    """In a batch the last block is not there."""

    def read(self, row: int):
        held = dict(super().read(row))
        if self.cache.rows > 1:
            held["l1.comp"] = held["l1.comp"][:-1]
        return held


def test_a_right_cache_is_told_nothing():
    assert told(V4TokenCache) == []


def test_what_a_neighbours_window_holds_is_named_on_both_sides():
    [message] = told(Neighbourly)
    assert "two_rows · step 0 prefill(9,3) · row 1 · l0.mask" in message
    assert "batch has r0:t0 .. r0:t6, which alone has not; alone has r1:t0, which batch has not" in message
    assert "(3 of 3 entries differ)" in message


def test_numbers_are_told_as_numbers():
    first, *_ = told(Displaced)
    assert "entry 0 of 8: batch holds [[2, 2, 0, 0, 0, 0, 0, 0, 1, 2]]" in first
    assert "alone holds [[1, 1, -1, -1, -1, -1, -1, -1, 0, 1]]" in first


def test_a_block_that_is_missing_is_named_by_its_tokens():
    first, *_ = told(Forgetful)
    assert "entry 1 of 2: alone has r0:t0 .. r0:t7, which batch has not   (1 of 2 entries differ)" in first


@pytest.mark.parametrize(("stream", "width"), [("words", 1), ("ids", 2)])
def test_a_stream_that_there_is_not_is_refused(stream: str, width: int):
    factory = type("Odd", (V4TokenCache,), {"stream": stream, "width": width})
    with pytest.raises(
        ValueError, match=f"stream is '{stream}' and width {width}; it should be vectors, or ids"
    ):
        describe("here:Odd", factory, factory(Geometry(), 1))


def test_events_are_fed_as_int64_and_padding_as_events_of_nobody():
    fed = []

    class Listening(V4TokenCache):
        def advance(self, xs, n_new) -> None:
            fed.append(np.array(xs))
            super().advance(xs, n_new)

    assert told(Listening) == []
    first = fed[0]
    assert first.dtype == np.int64
    assert first.shape == (2, 9, 1)
    assert first[0, :, 0].tolist() == list(range(1, 10))
    assert {origin(token)[0] for token in first[1, :3, 0].tolist()} == {1}
    assert not {origin(token)[0] for token in first[1, 3:, 0].tolist()} & {0, 1}
