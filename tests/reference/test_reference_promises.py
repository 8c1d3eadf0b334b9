"""What a sequence promises: the closed form of its base against the rule step by step, and every refusal."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from reference_impl.promises import REFUSALS, Promises, Refused

GEOMETRIES = [
    (4, 2, 16),
    (128, 1, 16),
    (8, 1, 16),
    (4, 2, 0),
    (4, 2, 3),
    (3, 2, 5),
    (1, 2, 2),
    (1, 1, 0),
    (8, 2, 1),
]


def advanced(ratio: int, span: int, *tokens: int, margin: int = 16) -> Promises:
    promises = Promises(ratio, span, margin)
    for n in tokens:
        promises.advance(n)
    return promises


class StepByStep:
    """The rule as it is applied at each operation: it carries a base and knows no high water and no floor."""

    def __init__(self, ratio: int, span: int, margin: int) -> None:
        self.ratio, self.span, self.margin = ratio, span, margin
        self.tokens = self.base = 0

    def first_token_needed(self, tokens: int) -> int:
        block = tokens // self.ratio
        return 0 if block + 1 < self.span else (block + 1 - self.span) * self.ratio

    def advance(self, n: int) -> None:
        if n:
            self.tokens += n
            self.base = max(self.first_token_needed(max(self.tokens - self.margin, 0)), self.base)

    def can_roll_back(self, n: int) -> bool:
        return n <= self.tokens and self.first_token_needed(self.tokens - n) >= self.base


def play_one_history(rng: random.Random, seen: dict[str, int]) -> None:
    ratio, span, margin = rng.choice(GEOMETRIES)
    model, steps = Promises(ratio, span, margin), StepByStep(ratio, span, margin)
    for _ in range(rng.randint(1, 25)):
        operation = rng.choice(["advance", "advance", "advance", "rollback", "rollback", "trim", "restore"])
        if operation == "advance":
            n = rng.choice([0, 1, 1, 2, 4, rng.randint(0, 3 * ratio)])
            model.advance(n)
            steps.advance(n)
        elif operation == "rollback":
            n = rng.randint(0, margin + 2 * ratio)
            allowed = model.rollback_refusal(n) is None
            assert allowed == steps.can_roll_back(n)
            if allowed:
                model.rollback(n)
                steps.tokens -= n
            else:
                operation = "refused"
        elif operation == "trim":
            new_base = rng.randint(0, model.tokens // ratio) * ratio
            allowed = model.trim_refusal(new_base) is None
            assert allowed == (steps.base <= new_base <= steps.first_token_needed(steps.tokens))
            if allowed:
                model.trim(new_base)
                steps.base = new_base
        else:
            tokens = rng.randint(0, 6 * ratio + margin)
            base = rng.randint(0, steps.first_token_needed(tokens) // ratio) * ratio
            model.restore(tokens, base)
            steps.tokens, steps.base = tokens, base
            operation = "wide restore" if model.width > model.width_limit else operation
        seen[operation] = seen.get(operation, 0) + 1
        assert (model.tokens, model.base) == (steps.tokens, steps.base)
        assert model.violations() == []


def test_the_closed_form_of_the_base_equals_the_rule_applied_step_by_step_over_4000_random_histories():
    rng, seen = random.Random(20240), {}
    for _ in range(4000):
        play_one_history(rng, seen)
    for operation in ("advance", "rollback", "refused", "trim", "restore", "wide restore"):
        assert seen[operation] > 1000, seen


def test_a_widely_restored_row_keeps_its_base_until_it_advances():
    promises = Promises(4, 2)
    promises.restore(100, 8)
    assert (promises.base, promises.width) == (8, 92)
    promises.advance(0)
    assert promises.base == 8
    promises.rollback(50)
    assert promises.base == 8
    promises.advance(1)
    assert promises.base == promises.need(51 - 16) == 28


def test_a_restored_row_never_promises_again_what_its_snapshot_had_given_up():
    promises = advanced(4, 2, 60)
    promises.rollback(16)
    restored = Promises(4, 2)
    restored.restore(promises.tokens, promises.base)
    assert (restored.tokens, restored.base) == (44, 40)
    restored.advance(1)
    assert restored.base == 40  # the rule alone would give need(29) = 24
    assert restored.rollback_refusal(2) == promises.rollback_refusal(1) == "rollback-below-base"


def test_restore_forgets_everything_about_the_row_that_was_there_before():
    used = advanced(4, 2, 500)
    used.trim(used.need(500))
    used.restore(20, 0)
    fresh = Promises(4, 2)
    fresh.restore(20, 0)
    assert used == fresh


def test_need_is_the_first_token_that_the_next_block_reads():
    csa, hca = Promises(4, 2), Promises(128, 1)
    assert [csa.need(tokens) for tokens in (0, 3, 4, 7, 8, 11, 12)] == [0, 0, 0, 0, 4, 4, 8]
    assert [hca.need(tokens) for tokens in (0, 127, 128, 255, 256)] == [0, 0, 128, 128, 256]


def test_an_advance_by_0_changes_nothing_retention_included():
    promises = Promises(4, 2)
    promises.restore(100, 0)
    before = replace(promises)
    promises.advance(0)
    assert promises == before and promises.base == 0


def test_a_rollback_lowers_the_tokens_and_leaves_the_base():
    promises = advanced(4, 2, 40)
    assert promises.base == 20
    promises.rollback(16)
    assert (promises.tokens, promises.base, promises.live_blocks) == (24, 20, 6)


def test_equal_tokens_with_unequal_bases_is_a_normal_state():
    direct, returned = advanced(4, 2, 40), advanced(4, 2, 44)
    returned.rollback(4)
    assert direct.tokens == returned.tokens == 40
    assert (direct.base, returned.base) == (20, 24)


def test_the_base_does_not_follow_an_advance_below_the_high_water():
    promises = advanced(4, 2, 60)
    promises.rollback(10)
    promises.advance(3)
    assert promises.base == advanced(4, 2, 60).base == 40


def test_how_the_tokens_were_cut_into_advances_does_not_matter():
    rng = random.Random(3)
    for _ in range(200):
        ratio, span, margin = rng.choice(GEOMETRIES)
        cuts = [rng.randint(0, 20) for _ in range(5)]
        chunked = advanced(ratio, span, *cuts, margin=margin)
        assert chunked == advanced(ratio, span, sum(cuts), margin=margin)


@pytest.mark.parametrize("ratio, span, margin", GEOMETRIES)
def test_a_row_alone_can_always_roll_back_by_the_margin(ratio, span, margin):
    for tokens in range(4 * ratio + 2 * margin):
        promises = advanced(ratio, span, tokens, margin=margin)
        for n in range(min(margin, tokens) + 1):
            assert promises.rollback_refusal(n) is None, (tokens, n)


@pytest.mark.parametrize("ratio, span, margin", GEOMETRIES)
def test_the_width_limit_is_reached_and_never_passed_without_a_restore(ratio, span, margin):
    widths = [advanced(ratio, span, tokens, margin=margin).width for tokens in range(6 * ratio + 3 * margin)]
    assert max(widths) == Promises(ratio, span, margin).width_limit == span * ratio + margin - 1


def test_the_published_width_limits_are_23_and_143():
    assert Promises(4, 2).width_limit == 23
    assert Promises(128, 1).width_limit == 143


def test_a_rollback_below_zero_is_refused():
    assert advanced(4, 2, 3).rollback_refusal(4) == "rollback-below-zero"


def test_a_rollback_to_zero_is_allowed_while_the_base_is_zero():
    promises = advanced(4, 2, 3)
    promises.rollback(3)
    assert (promises.tokens, promises.base) == (0, 0)


def test_a_rollback_is_refused_as_soon_as_the_next_block_needs_a_token_before_the_base():
    promises = advanced(4, 2, 40)  # base 20: a sequence of 24 tokens needs token 20 next, one of 23 needs 16
    assert promises.rollback_refusal(16) is None
    assert promises.rollback_refusal(17) == "rollback-below-base"


@pytest.mark.parametrize(
    "new_base, rows, kind",
    [
        (24, 2, "trim-multi-row"),
        (22, 1, "trim-not-a-multiple"),
        (40, 1, "trim-above-need"),
        (16, 1, "trim-below-base"),
        (-4, 1, "trim-below-base"),
        (20, 1, None),
        (36, 1, None),
    ],
)
def test_a_trim_is_allowed_on_one_row_to_a_multiple_between_base_and_need(new_base, rows, kind):
    assert advanced(4, 2, 40).trim_refusal(new_base, rows) == kind


def test_a_trim_raises_the_base_for_good():
    promises = advanced(4, 2, 40)
    promises.trim(36)
    assert promises.base == 36
    assert promises.rollback_refusal(1) == "rollback-below-base"
    promises.advance(4)
    assert promises.base == 36


@pytest.mark.parametrize(
    "tokens, base, kind",
    [
        (3, 4, "restore-base-above-tokens"),
        (-1, -1, "restore-base-above-tokens"),
        (40, 30, "restore-not-a-multiple"),
        (40, 40, "restore-above-need"),
        (40, 36, None),
        (0, 0, None),
    ],
)
def test_a_snapshot_that_breaks_an_invariant_is_refused(tokens, base, kind):
    assert Promises(4, 2).restore_refusal(tokens, base) == kind


@pytest.mark.parametrize(
    "order",
    [("rollback", 17), ("rollback", 41), ("trim", 16), ("trim", 22), ("trim", 40), ("restore", 3, 4)],
)
def test_a_refused_operation_says_its_kind_and_leaves_the_model_as_it_was(order):
    promises = advanced(4, 2, 40)
    before = replace(promises)
    with pytest.raises(Refused) as refused:
        getattr(promises, order[0])(*order[1:])
    assert refused.value.kind in REFUSALS
    assert str(refused.value).startswith(refused.value.kind)
    assert promises == before


@pytest.mark.parametrize("operation", ["advance", "rollback", "rollback_refusal"])
def test_negative_counts_are_errors_of_the_caller_and_not_refusals(operation):
    with pytest.raises(ValueError, match="it should be 0 or more") as raised:
        getattr(advanced(4, 2, 9), operation)(-1)
    assert not isinstance(raised.value, Refused)


@pytest.mark.parametrize("geometry", [(0, 1, 16), (4, 3, 16), (4, 2, -1)])
def test_an_impossible_geometry_is_an_error(geometry):
    with pytest.raises(ValueError, match="correct the layer's geometry"):
        Promises(*geometry)


@pytest.mark.parametrize(
    "observed, invariants",
    [
        ({}, []),
        ({"tokens": 40, "base": 20, "capacity": 20, "earliest_read": 20}, []),
        ({"base": 44}, ["I1", "I4", "I7"]),
        ({"capacity": 19}, ["I2"]),
        ({"earliest_read": 19}, ["I3"]),
        ({"base": 40}, ["I4", "I7"]),
        ({"tokens": 41}, ["I5"]),
        ({"base": 16}, ["I6", "I7"]),
        ({"base": 24}, ["I7"]),
        ({"base": 22}, ["I7", "I8"]),
    ],
)
def test_an_observed_state_is_told_which_invariants_it_breaks(observed, invariants):
    found = advanced(4, 2, 40).violations(**observed)
    assert [sentence.split(":")[0] for sentence in found] == invariants


def test_only_a_restored_row_that_has_not_advanced_may_be_wider_than_the_limit():
    promises = Promises(4, 2)
    promises.restore(100, 0)
    assert promises.width == 100 and promises.violations() == []
    promises.advance(1)
    assert promises.width <= promises.width_limit
    assert [s.split(":")[0] for s in promises.violations(base=0)] == ["I6", "I7"]
