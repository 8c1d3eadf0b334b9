"""Some hundreds of random steps a play: rows join, leave, change places and go back, each by its own number of tokens."""

from __future__ import annotations

import pytest
from schedules import random_schedule
from test_layers import FORMS

from harness.caches.play import CachePlay, play
from harness.caches.protocol import load_cache

SEED = 3
PLAYS = {
    "tokens-32": ("tokens", 32, 40),
    "tokens-8": ("tokens", 8, 120),
    "tokens-3": ("tokens", 3, 300),
    "float64-5": ("float64", 5, 60),
    "float64-2": ("float64", 2, 120),
}


@pytest.mark.parametrize("name", PLAYS)
def test_every_row_of_a_random_schedule_is_itself(name: str):
    form, rows, steps = PLAYS[name]
    played = play(random_schedule(SEED, rows, steps), load_cache(FORMS[form]), every=20)
    assert isinstance(played, CachePlay)
    trace = played.trace
    assert not trace.mismatches, trace.message(trace.mismatches[0])
    assert trace.stopped is None
    assert len(trace.steps) == steps
    assert trace.compared["l1.kv"] > 5 * trace.compared["l1.kv@reference"] > 0


@pytest.mark.parametrize("name", PLAYS)
def test_a_random_schedule_goes_through_everything_that_makes_rows_differ(name: str):
    _, rows, steps = PLAYS[name]
    fixture = random_schedule(SEED, rows, steps)
    assert fixture == random_schedule(SEED, rows, steps)
    done = [step.do for step in fixture.step]
    assert {"assemble", "split", "select", "reorder", "verify", "advance", "rollback"} <= {*done}
    assert any(len(set(step.rows)) < len(step.rows) for step in fixture.step if step.do == "select")
    widths = {step.width for step in fixture.step if step.do == "verify"}
    assert {2, 8} <= widths <= {*range(2, 9)}
    accepted = [step.accept for step in fixture.step if step.do == "verify"]
    assert any(len(set(each)) > 1 for each in accepted)
    assert any(0 in step.n_new for step in fixture.step if step.do == "advance")


def test_a_play_in_steps_of_twenty_compares_with_the_reference_after_the_last_one_too():
    fixture = random_schedule(1, 2, 45)
    played = play(fixture, load_cache(FORMS["tokens"]), every=20)
    compared = played.trace.compared
    standing = len(played.order) + len(played.parked)
    assert standing * 3 >= compared["l0.mask@reference"] == compared["l0.mask@fresh"] > standing
    assert play(fixture, load_cache(FORMS["tokens"]), every=50).trace.compared["l0.mask@fresh"] == standing
