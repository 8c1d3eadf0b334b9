"""Each example cache on every fixture that it can play: one item each, the killers that mutants name."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from harness.caches.needs import missing
from harness.caches.protocol import Described, Geometry, load_cache
from harness.caches.results import GREEN, NOT_OFFERED, REFUSED, results
from harness.report import caches as report
from harness.rows.fixture import default_folder, load_folder
from harness.subjects.mamba import MambaCache

FIXTURES = load_folder(default_folder())
EXAMPLES = {
    "xs_rolling": "harness.subjects.xs_rolling_cache:XsRollingCache",
    "sliding_window": "harness.subjects.sliding_window:SlidingWindowCache",
    "mamba": "harness.subjects.mamba:MambaCache",
    "gru": "harness.subjects.gru:GRUCache",
}
PLAYED_MIN = 40


@lru_cache
def described(example: str) -> Described:
    return load_cache(EXAMPLES[example])


def playable(example: str) -> list[str]:
    """Ratio 128 says nothing new to a cache without blocks, and its prompts are long."""
    compressed = example == "xs_rolling"
    return [
        name
        for name, fixture in FIXTURES.items()
        if (compressed or fixture.ratio < 128) and not missing(fixture, described(example))
    ]


PLAYS = [(example, name) for example in EXAMPLES for name in playable(example)]


@pytest.mark.parametrize(("example", "fixture"), PLAYS, ids=[f"{a}-{b}" for a, b in PLAYS])
def test_cache(example: str, fixture: str):
    [result] = results([FIXTURES[fixture]], described(example))
    assert result.word in (GREEN, REFUSED), "\n".join(report.messages([result]))


def test_every_example_plays_most_of_the_fixtures():
    for example in EXAMPLES:
        assert len([name for a, name in PLAYS if a == example]) >= PLAYED_MIN
        words = [result.word for result in results(list(FIXTURES.values())[:12], described(example))]
        assert NOT_OFFERED in words and GREEN in words


def test_the_convolution_of_mamba_holds_its_last_three_inputs():
    xs = np.random.default_rng(1).standard_normal((1, 9, MambaCache.width))
    cache = MambaCache(Geometry(), 1)
    cache.advance(xs, [9])
    assert np.array_equal(cache.read(0)["conv"], xs[0, -3:])
