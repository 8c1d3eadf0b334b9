"""The fixtures on other data, one item a stream: `python -m harness.lens` asks them of every mutant.

On production as it is all are green, whatever the data: a stream that finds fault with right code is no witness.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from harness.rows.defaults import ORACLE, SUBJECT
from harness.rows.fixture import default_folder, load_folder
from harness.rows.lens import VALUES_FIXTURES, Seen, look, look_at_values, named_in
from harness.rows.streams import STREAMS
from harness.rows.subject import load

CATALOGUE = Path(__file__).parents[2] / "mutants"


@cache
def seen() -> Seen:
    """One round of plays answers for all streams; a process plays it once.

    Played is every fixture that some entry of the catalogue names: together they claim to see all of it.
    """
    text = "".join(path.read_text() for path in sorted(CATALOGUE.glob("*.toml")))
    return look(named_in(text, load_folder(default_folder())), load(SUBJECT), load(ORACLE))


@pytest.mark.parametrize("stream", STREAMS)
def test_data(stream: str) -> None:
    places = seen().data[stream]
    assert not places, places[0]


def test_counts_and_promises() -> None:
    assert not seen().promises, seen().promises[0]


@pytest.mark.parametrize("stream", STREAMS)
def test_values(stream: str) -> None:
    fixtures = load_folder(default_folder())
    places = look_at_values([fixtures[name] for name in VALUES_FIXTURES], load(SUBJECT), load(ORACLE), stream)
    assert not places, places[0]
