"""Can a fixture's data tell one token from another? A fixture that cannot is refused, never answered by loosening.

The margin of a fixture is the smallest distance, in bounds, between a block of its values lane and the nearest block
with one wrong token (its neighbour) or a position bias off by one slot. Correct code uses a small part of the bound; a
margin of 100 leaves no doubt on which side of it a block stands. Exact data has no bound to be near to: there a proof
takes the margin's place.
"""

from __future__ import annotations

from harness.rows import schedule as do
from harness.rows.events import Ledger
from harness.rows.exact import Proof, prove
from harness.rows.fixture import FixtureError
from harness.rows.schedule import Fixture
from harness.rows.stage import stream_of, weights_of
from harness.rows.subject import Oracle

MARGIN_MIN = 100.0


def require_told_apart(fixture: Fixture, oracle: Oracle) -> float | Proof:
    """What a fixture's data can tell apart: its margin; or for exact data a proof. Raises FixtureError if too little."""
    if fixture.values.data != "exact":
        return require_margin(fixture, oracle)
    try:
        return prove(fixture)
    except ValueError as error:
        raise FixtureError([f"{fixture.name}: {problem}" for problem in str(error).splitlines()]) from None


def require_margin(fixture: Fixture, oracle: Oracle) -> float:
    """The fixture's margin. Raises FixtureError, with the margin, for one that is below 100 or has no block."""
    found = margin(fixture, oracle)
    if found is None:
        raise FixtureError(
            [
                f"{fixture.name}: no row completes a block, so its data was not tried; feed at least {fixture.ratio} tokens"
            ]
        )
    if not found >= MARGIN_MIN:
        values = fixture.values
        raise FixtureError(
            [
                f"{fixture.name}: the margin is {found:.3g}, it should be at least {MARGIN_MIN:g}: in {values.dtype} its data "
                f"({values.data}) and position bias ({values.bias}) hardly tell a token from its neighbour; use normal "
                "data and a normal bias, or a wider hidden state"
            ]
        )
    return found


def margin(fixture: Fixture, oracle: Oracle) -> float | None:
    """The smallest margin of all blocks that the fixture's sequences can complete; None if there is no block."""
    stream, weights, ledger = stream_of(fixture), weights_of(fixture), Ledger()
    found = []
    for sequence, tokens in enumerate(_lengths(fixture)):
        kv, z = oracle.payload(weights, stream.feed(ledger.append(sequence, 0, tokens)))
        found += [oracle.margin(weights, kv, z, block) for block in range(tokens // fixture.ratio)]
    return min(found, default=None)


def _lengths(fixture: Fixture) -> list[int]:
    """How many tokens each sequence is fed at most, in the order in which they are opened.

    A batch's rows may be reordered; then the longest is taken for all, since only the data is tried here.
    """
    lengths: list[int] = []
    grown = 0
    for step in fixture.step:
        match step:
            case do.Prefill(lengths=opened):
                lengths += opened
            case do.Adopt(tokens=opened):
                lengths += opened
            case do.Advance(n_new=counts):
                grown += max(counts, default=0)
            case do.Verify(width=width):
                grown += width
    return [length + grown for length in lengths]
