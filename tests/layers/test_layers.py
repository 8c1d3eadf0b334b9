"""Whole V4 layers on the fixtures, one item per form, fixture and check: the killers that mutants name.

A check covers an array of all layers: `mask` compares what batch and alone hold, `mask@reference` what alone holds
with what is right. `fresh` compares all arrays with a start from the tokens that are left, `play` the refusals, what can
be read at all, and whether the data could have shown a wrong token.
"""

from __future__ import annotations

from functools import cache

import pytest

from harness.caches.compare import FRESH, REFERENCE
from harness.caches.play import CachePlay, play
from harness.caches.protocol import load_cache
from harness.rows.fixture import default_folder, load
from harness.rows.verdict import NotEvaluated, PlayAborted

FORMS = {
    "tokens": "harness.subjects.v4_tokens:V4TokenCache",
    "float64": "harness.subjects.v4_model:V4ModelCache",
}
# Loaded with this module: a judgement is forked from a process that has collected, and need not import them again.
CACHES = {form: load_cache(name) for form, name in FORMS.items()}
ARRAYS = {
    "tokens": ("mask", "picks", "blocks", "positions", "lead", "kv", "comp", "index"),
    "float64": ("logits", "attention", "kv", "comp", "index"),
}
FIXTURES = (
    "accept_at_ratio_8",
    "accept_lands_on_block_edge",
    "accept_none_some_all",
    "chosen_rows_go_on",
    "doubled_rows_go_on",
    "drain_8_to_3",
    "eight_residues",
    "four_residues",
    "idle_rows",
    "prompts_of_3_and_4",
    "rebatched_24_times",
    "repeated_row",
    "rollback_around_block_edge",
    "rolled_back_row_beside_others",
    "rows_join_and_leave",
    "short_row_after_long",
    "short_row_beside_long",
    "step_without_draft",
    "three_chunks",
    "two_rows_two_destinations_ratio_128",
    "wide_verify",
)
ITEMS = [
    (form, fixture, check)
    for form, arrays in ARRAYS.items()
    for fixture in FIXTURES
    for check in (*(array + side for array in arrays for side in ("", REFERENCE)), "fresh", "play")
]


@cache
def played_of(form: str, fixture: str) -> CachePlay:
    """One play answers many items; a process plays it once."""
    # The replay line of a message explains it; dozens of faults are judged by these plays, and none needs the reason.
    played = play(load(default_folder() / f"{fixture}.toml"), CACHES[form], explain=False)
    assert isinstance(played, CachePlay)
    return played


def belongs(name: str, check: str) -> bool:
    """Whether a comparison of the player, such as l2.mask@reference, is one of an item's."""
    if "." not in name:
        return check == "play"
    return name.endswith(FRESH) if check == "fresh" else name.partition(".")[2] == check


@pytest.mark.parametrize(("form", "fixture", "check"), ITEMS, ids=["-".join(item) for item in ITEMS])
def test_layers(form: str, fixture: str, check: str) -> None:
    trace = played_of(form, fixture).trace
    arguments = f" --subject {FORMS[form]}"
    red = [trace.message(each, arguments) for each in trace.mismatches if belongs(each.check, check)]
    assert not red, "\n".join(red)
    if trace.stopped is not None:
        raise PlayAborted(trace.stop_message(arguments))
    if not sum(n for name, n in trace.compared.items() if belongs(name, check)):
        raise NotEvaluated(f"{fixture}: nothing was compared")


@pytest.mark.parametrize("form", FORMS)
def test_every_comparison_of_a_play_is_some_items(form: str) -> None:
    checks = {check for each, _, check in ITEMS if each == form}
    for name in played_of(form, FIXTURES[0]).trace.compared:
        assert any(belongs(name, check) for check in checks), name
