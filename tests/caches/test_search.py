"""The search for a history that a cache gets wrong: what it draws, what it shrinks to, and that it is told again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.caches.needs import missing
from harness.caches.protocol import Described, Geometry, NotOffered, describe, load_cache
from harness.caches.search import Drawn, NothingPlayed, _fixture, search, shrunk, wrong
from harness.caches.verify import require_identity
from harness.rows.fixture import load
from harness.subjects.gru import GRUCache
from harness.subjects.sliding_window import SlidingWindowCache


def described(factory: Any) -> Described:
    return describe("test:it", factory, factory(Geometry(), 1))


class Even(SlidingWindowCache):
    """Offers even steps alone."""

    supports = ("rollback", "select")


@pytest.mark.parametrize("factory", [SlidingWindowCache, GRUCache, Even])
def test_every_history_that_is_drawn_is_a_schedule_that_the_cache_offers(factory: Any):
    cache, rng = described(factory), np.random.default_rng(3)
    kinds = set()
    for _ in range(150):
        fixture = _fixture(4, 2, Drawn(rng, cache).steps())
        assert not missing(fixture, cache)
        kinds |= {step.do for step in fixture.step}
    offered = {"prefill", "advance", "verify", "select", "rollback"}
    assert kinds == offered | ({"split", "assemble"} if factory is not Even else set())


def test_a_right_cache_is_found_right_and_the_same_seed_plays_the_same(tmp_path: Path):
    assert search(load_cache("harness.subjects.gru:GRUCache"), tmp_path, histories=20) is None
    assert list(tmp_path.iterdir()) == []
    cache = described(SlidingWindowCache)
    first, again = (Drawn(np.random.default_rng(5), cache).steps() for _ in range(2))
    assert first == again


class Twisted(SlidingWindowCache):
    """Moves the keys of chosen rows, and leaves their counts in the old order."""

    def select(self, rows: Sequence[int]) -> None:
        kept = self.tokens[sorted(rows)], self.oldest[sorted(rows)]
        super().select(rows)
        self.tokens, self.oldest = kept


def test_a_fault_is_shrunk_to_few_steps_and_its_file_is_wrong_on_its_own(tmp_path: Path):
    found = search(described(Twisted), tmp_path, histories=300)
    assert found is not None
    fixture = load(found.path)
    assert len(fixture.step) == 2
    assert [step.do for step in fixture.step] == ["prefill", "select"]
    assert wrong(described(Twisted), fixture.ratio, fixture.span, _steps(found.path)) is not None
    assert wrong(described(SlidingWindowCache), fixture.ratio, fixture.span, _steps(found.path)) is None
    assert f"written to {found.path}" in found.message and "--until 1" in found.message


def test_what_is_shrunk_stays_within_what_the_cache_offers():
    class Late(Even):
        def advance(self, xs: Any, n_new: Sequence[int]) -> None:
            super().advance(xs, n_new)
            if len(n_new) > 1 and self.tokens[0] > 5:
                self.keys[1] = self.keys[0]

    cache = described(Late)
    steps = [{"do": "prefill", "lengths": [4, 4, 4]}, {"do": "advance", "n_new": [3, 3, 3]}]
    small = shrunk(cache, 4, 2, steps)
    assert len(small[0]["lengths"]) == 2
    assert wrong(cache, 4, 2, small) is not None
    assert not missing(_fixture(4, 2, small), cache)


def test_the_assertion_for_a_test_of_ones_own_says_which_tokens_are_wrong(tmp_path: Path):
    require_identity("harness.subjects.sliding_window:SlidingWindowCache", _one(tmp_path))
    with pytest.raises(AssertionError, match=r"no fixture was played to its end; they need rollback\.ragged"):
        require_identity("tests.caches.test_protocol:Minimal", _one(tmp_path))


def _one(folder: Path) -> Path:
    (folder / "drafts.toml").write_text(
        'proves = "Rows go back."\nratio = 4\nspan = 2\nfacts = ["accept_some"]\n'
        'step = [{ do = "prefill", lengths = [5, 5] }, { do = "verify", width = 3, accept = [1, 2] }]\n'
    )
    return folder


def _steps(path: Path) -> list[dict[str, Any]]:
    return [dict(vars(step)) for step in load(path).step]


def test_a_cache_that_refuses_every_history_is_no_success(tmp_path: Path):
    class Never(SlidingWindowCache):
        def advance(self, xs: Any, n_new: Sequence[int]) -> None:
            raise self.refusal("not today")

    with pytest.raises(
        NothingPlayed, match="none of 5 histories was played to its end: the cache refused each"
    ):
        search(described(Never), tmp_path, histories=5)


def test_a_geometry_that_is_not_offered_is_no_finding(tmp_path: Path):
    class Four(SlidingWindowCache):
        def __init__(self, geometry: Geometry, rows: int) -> None:
            if geometry.ratio != 4:
                raise NotOffered(f"ratio {geometry.ratio}; 4")
            super().__init__(geometry, rows)

    assert search(described(Four), tmp_path, histories=10) is None
