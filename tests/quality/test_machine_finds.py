"""Does the search find? Faults planted in production, each found, shrunk, and written as a fixture of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.rows.checks import checks_of
from harness.rows.defaults import ORACLE, PLANS, RETAINS, SUBJECT
from harness.rows.fixture import load as load_fixture
from harness.rows.results import results
from harness.rows.schedule import Fixture
from harness.rows.search import Found, require_nothing, search
from harness.rows.subject import load
from torch_impl.geometry import Geometry, at_least_zero
from torch_impl.xs_rolling import XsRolling

SEED = 0
# Half of 16 seeds need 24 examples or fewer for the first fault, the slowest 245. `pytest -rP` prints what this seed needs.
ENOUGH = 5000

Plant = Callable[[pytest.MonkeyPatch], None]


def dispatch_looks_at_tokens_only(patch: pytest.MonkeyPatch) -> None:
    def is_uniform(self: XsRolling, counts: list[int]) -> bool:
        return len(set(self.tokens)) == len(set(counts)) == 1

    patch.setattr(XsRolling, "_is_uniform", is_uniform)


def rollback_asks_the_first_rows_base(patch: pytest.MonkeyPatch) -> None:
    right = XsRolling.rollback_refusal

    def rollback_refusal(self: XsRolling, row: int, n: int):
        kept, alike = self.base, len(set(self.tokens)) == 1
        self.base = kept[:1] * self.rows if alike else kept
        try:
            return right(self, row, n)
        finally:
            self.base = kept

    patch.setattr(XsRolling, "rollback_refusal", rollback_refusal)


def retention_promises_again_what_was_given_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Geometry, "base_after", lambda self, tokens, base: self.need(at_least_zero(tokens - self.margin))
    )


def select_leaves_the_bases_where_they_were(patch: pytest.MonkeyPatch) -> None:
    right = XsRolling.select

    def select(self: XsRolling, rows: list[int]) -> None:
        base = self.base
        right(self, rows)
        self.base = (base * len(rows))[: len(rows)]

    patch.setattr(XsRolling, "select", select)


FAULTS: dict[Plant, set[str]] = {
    dispatch_looks_at_tokens_only: {"base"},
    rollback_asks_the_first_rows_base: {"refusal"},
    retention_promises_again_what_was_given_up: {"base@reference"},
    select_leaves_the_bases_where_they_were: {"base", "invariant"},
}


def found_with(plant: Plant, folder: Path) -> Found:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        found = search(load(SUBJECT), load(ORACLE), folder, examples=ENOUGH, seed=SEED)
        assert found is not None, f"{plant.__name__} was not found in {ENOUGH} examples"
        assert not holds(load_fixture(found.path))
    print(f"{plant.__name__}: {found.examples} examples, {len(found.trace.steps)} steps: {found.trace.steps}")
    return found


def holds(fixture: Fixture) -> bool:
    """What `python -m harness.identity` says of this fixture, played with every payload and plan."""
    result = next(results([fixture], load(SUBJECT), load(ORACLE), RETAINS, PLANS))
    return all(result.outcome(check) == "green" for check in checks_of(fixture))


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found_and_its_fixture_is_red_on_its_own(plant: Plant, tmp_path: Path) -> None:
    found = found_with(plant, tmp_path)
    assert FAULTS[plant] & {mismatch.check for mismatch in found.trace.mismatches}
    assert holds(load_fixture(found.path)), "the fixture should be green as production is built"
    assert len(found.trace.steps) <= 6, "a shrunk history is short"
    assert [path.name for path in tmp_path.iterdir()] == [found.path.name]
    assert f"--fixtures {tmp_path} --fixture {found.path.stem}" in found.message.splitlines()[-1]
    with pytest.raises(AssertionError, match=found.path.stem):
        require_nothing(found)
