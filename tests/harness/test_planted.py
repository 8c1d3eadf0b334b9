"""What the engine's own faults return in place of the right thing: never the right thing, where that can be helped."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest

from harness.mutation.planted import wrong

Pair = namedtuple("Pair", "a b")
OPAQUE = object()


@pytest.mark.parametrize(
    ("value", "instead"),
    [
        (True, False),
        (1, 2),
        (0.5, 1.5),
        ("a", "a!"),
        (b"a", b"a!"),
        ([1, OPAQUE], [2, OPAQUE]),
        ({"a": 1}, {"a": 2}),
        (Pair(1, "b"), Pair(2, "b!")),
        # Nothing in these can be made wrong, so that they hold one thing less or, when empty, one more.
        ([OPAQUE, None], [OPAQUE]),
        ({"a": OPAQUE}, {}),
        ((None,), ()),
        ([], [None]),
        ({}, {None: None}),
        (set(), {None}),
    ],
)
def test_a_wrong_value_differs_and_has_the_same_type(value: Any, instead: Any) -> None:
    made = wrong(value)
    assert made == instead
    assert type(made) is type(value)
