"""The comparisons of the values lane: real numbers, each within a bound that the oracle derives for it.

The batch may be off by the bound and so may a row alone: the two are compared within twice of it. A bfloat16 layer
rounds its payload before the pool, so it is judged in two stages, each side by itself: the payload as it was
projected, and the block as the oracle pools the very payload that this side stored.

On exact data (`harness.rows.exact`) nothing is rounded before the norm. There batch and alone must be equal to the bit,
payloads must be the oracle's to the bit, and what was pooled, read back from the finished block, must be its integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from harness.rows.checks import REFERENCE
from harness.rows.exact import OneHotStream, denominator, numerators, told
from harness.rows.stage import Member, Stage
from harness.rows.subject import Array, Bounded, Weights

# One token's payload: kv and its bound, z and its bound, each [sp*d].
_Token = tuple[Array, Array, Array, Array]
Record = Callable[[str, int | None, tuple[str, ...]], None]
# Above this share of its bound a value is still right, and worth a look: correct float32 code uses 0.06.
WARN_ABOVE = 0.25
_SHOWN_MAX = 8


@dataclass(frozen=True)
class _Right:
    """Values and bounds of several blocks or tokens, [n, d]. to_the_bit: no bound counts, and no sign of a zero is lost."""

    value: Array
    bound: Array
    to_the_bit: bool = False


@dataclass(frozen=True)
class _Side:
    name: str
    holds: Array


class ValueJudge:
    """Compares floats of a play and notes, per check, the largest share of a bound that was used."""

    def __init__(self, stage: Stage, record: Record) -> None:
        self._stage, self._trace, self._record = stage, stage.trace, record
        self._blocks: dict[tuple[object, ...], Bounded] = {}
        self._payloads: dict[int, _Token] = {}
        self._stored: dict[tuple[str, int], _Token] = {}

    def compare(
        self, row: int | None, member: Member, batch: Mapping[str, Array], alone: Mapping[str, Array]
    ) -> None:
        """One sequence: what the batch holds, what alone holds, and what is right within its bound."""
        if self._stage.fixture.values.dtype != "float64" or self._exact:
            self._tail(row, member, batch, alone)
        if self._stage.fixture.values.row_invariant:
            self._bytes(row, member, batch, alone)
        if self._weights.dtype == "bfloat16" and not self._exact:
            for side, check, held in (
                ("batch", "comp.values", batch),
                ("alone", "comp.values" + REFERENCE, alone),
            ):
                right = self._pooled_from_what_it_stored(side, member)
                self._within(check, row, member, "block", _Side(side, held["comp"]), right, "reference")
            return
        self._pair("comp.values", row, member, "block", (batch["comp"], alone["comp"]), self._right(member))

    def _bytes(
        self, row: int | None, member: Member, batch: Mapping[str, Array], alone: Mapping[str, Array]
    ) -> None:
        """Blocks and retained payloads, to the bit. Where the mode was refused by name, nothing was promised."""
        if self._stage.trace.declined is not None:
            self._trace.compared["rows.bytes"] += 1
            return
        run = member.promises.width
        for what, mine, twin in (
            ("block", batch["comp"], alone["comp"]),
            ("token", _last(batch["tail"], run), _last(alone["tail"], run)),
        ):
            right = _Right(twin, np.zeros_like(twin), to_the_bit=True)
            self._within("rows.bytes", row, member, what, _Side("batch", mine), right, "alone")

    @property
    def _exact(self) -> bool:
        return isinstance(self._stage.stream, OneHotStream)

    @property
    def _weights(self) -> Weights:
        weights = self._stage.setup.weights
        assert weights is not None
        return weights

    def _pair(
        self, check: str, row: int | None, member: Member, what: str, held: tuple[Array, Array], right: _Right
    ) -> None:
        """Batch against alone within twice the bound (exact: to the bit), alone against the reference within it."""
        batch, alone = held
        twice = _Right(alone, 2 * right.bound, self._exact) if alone.shape == right.bound.shape else right
        self._within(check, row, member, what, _Side("batch", batch), twice, "alone")
        self._within(check + REFERENCE, row, member, what, _Side("alone", alone), right, "reference")

    def _tail(
        self, row: int | None, member: Member, batch: Mapping[str, Array], alone: Mapping[str, Array]
    ) -> None:
        events = member.history[len(member.history) - member.promises.width :]
        if self._stage.setup.options.get("retain") != "projected":
            fed = self._stage.stream.feed(events)
            sides = (_last(batch["tail"], len(events)), _last(alone["tail"], len(events)))
            self._pair(
                "tail.values", row, member, "token", sides, _Right(fed, np.zeros_like(fed), self._exact)
            )
            return
        for part, right in zip(("kv", "z"), self._right_payload(events), strict=True):
            sides = (_last(batch[part], len(events)), _last(alone[part], len(events)))
            if self._weights.dtype != "bfloat16" or self._exact:
                self._pair("tail.values", row, member, part, sides, right)
                continue
            for name, check, found in zip(
                ("batch", "alone"), ("tail.values", "tail.values" + REFERENCE), sides, strict=True
            ):
                self._within(check, row, member, part, _Side(name, found), right, "reference")
        if self._exact:
            return
        for side, held in (("batch", batch), ("alone", alone)):
            kv, z = (_last(held[part], len(events)) for part in ("kv", "z"))
            for event, one, other in zip(events, kv, z, strict=False):
                self._stored.setdefault((side, event), (one, np.zeros_like(one), other, np.zeros_like(other)))

    def _right_payload(self, events: list[int]) -> tuple[_Right, _Right]:
        """kv and z [n, sp*d] that these tokens project to; a token is projected once."""
        new = list(dict.fromkeys(event for event in events if event not in self._payloads))
        if new:
            kv, z = self._stage.oracle.payload(self._weights, self._stage.stream.feed(new))
            doubt = 0.0 if self._exact else 1.0
            parts = zip(kv.value, doubt * kv.bound, z.value, doubt * z.bound, strict=True)
            self._payloads |= dict(zip(new, parts, strict=True))
        return self._gathered([self._payloads[event] for event in events])

    def _gathered(self, tokens: list[_Token]) -> tuple[_Right, _Right]:
        width = self._weights.wkv.shape[0]
        kv, kv_bound, z, z_bound = (
            np.array([token[part] for token in tokens]).reshape(-1, width) for part in range(4)
        )
        return _Right(kv, kv_bound, self._exact), _Right(z, z_bound, self._exact)

    def _right(self, member: Member) -> _Right:
        """The oracle's blocks, from the whole history."""
        self._right_payload(member.history)
        return self._blocks_of("oracle", member, self._payloads)

    def _pooled_from_what_it_stored(self, side: str, member: Member) -> _Right:
        stored = {event: token for (which, event), token in self._stored.items() if which == side}
        return self._blocks_of(side, member, stored)

    def _blocks_of(self, source: str, member: Member, tokens: Mapping[int, _Token]) -> _Right:
        """The blocks that the oracle pools from these tokens' payloads, each asked for once."""
        found = []
        for block in range(member.promises.live_blocks):
            slots = [token for token in self._tokens_of(block) if token >= 0]
            key = (source, block, *(member.history[token] for token in slots))
            if key not in self._blocks:
                # By absolute token, as the oracle counts: what the block does not read is left at zero.
                kv, z = (_Right(*np.zeros((2, slots[-1] + 1, self._weights.wkv.shape[0]))) for _ in range(2))
                for token in slots:
                    kv.value[token], kv.bound[token], z.value[token], z.bound[token] = tokens[
                        member.history[token]
                    ]
                self._blocks[key] = self._stage.oracle.block(
                    self._weights, kv, z, block, pool_is_exact=self._exact
                )
            found.append(self._blocks[key])
        return self._stacked(found)

    def _stacked(self, blocks: list[Bounded]) -> _Right:
        shape = (len(blocks), len(self._weights.gamma))
        return _Right(
            np.array([block.value for block in blocks]).reshape(shape),
            np.array([block.bound for block in blocks]).reshape(shape),
        )

    def _tokens_of(self, block: int) -> list[int]:
        fixture = self._stage.fixture
        return self._stage.oracle.block_tokens(block, fixture.ratio, fixture.span)

    def _pooled(self, member: Member, block: int) -> list[int]:
        return [member.history[token] for token in self._tokens_of(block) if token >= 0]

    def _within(
        self,
        check: str,
        row: int | None,
        member: Member,
        what: str,
        side: _Side,
        right: _Right,
        against: str,
    ) -> None:
        self._trace.compared[check] += 1
        got, want = side.holds, right.value
        if got.shape != want.shape:
            self._record(
                check,
                row,
                (
                    f"{side.name} has {what}s of shape {list(got.shape)}, {against} of shape {list(want.shape)}",
                ),
            )
            return
        used = _bits_apart(got, want) if right.to_the_bit else share(got, want, right.bound)
        self._trace.shares[check] = max(self._trace.shares.get(check, 0.0), float(used.max(initial=0.0)))
        off = used > 1
        if self._exact and what == "block" and not right.to_the_bit:
            off |= self._integers(got) != self._integers(want)
        if not off.any():
            return
        place, channel = (int(i) for i in np.argwhere(off)[0])
        digits = 17 if right.to_the_bit else 12
        said = [
            f"first wrong cell: {what} {place} of {len(got)}, channel {channel}   "
            f"{side.name} holds {got[place, channel]:.{digits}g}   {against} {want[place, channel]:.{digits}g}",
            f"{int(off.any(axis=1).sum())} of {len(got)} {what}s differ {_by_how_much(used, right)}",
        ]
        if what == "block":
            tokens = [self._stage.ledger.label(event) for event in self._pooled(member, place)]
            shown = tokens if len(tokens) <= _SHOWN_MAX else [tokens[0], "...", tokens[-1]]
            said.append(f"block {place} pools {', '.join(shown)}")
        if what == "block" and self._exact:
            fixture = self._stage.fixture
            sides = self._integers(got)[place], self._integers(want)[place]
            said += told(*sides, denominator(fixture.ratio, fixture.span), (side.name, against))
        self._record(check, row, tuple(said))

    def _integers(self, blocks: Array) -> Array:
        """What exact blocks [n, d] pooled, as integers."""
        fixture = self._stage.fixture
        before_norm = self._stage.oracle.before_norm(self._weights, blocks)
        return numerators(before_norm, fixture.ratio, fixture.span)


def _by_how_much(used: Array, right: _Right) -> str:
    if right.to_the_bit:
        return "in some bit; none may"
    if not (used > 1).any():
        return "in what they pooled, though no value leaves its bound"
    if np.isinf(used).any():
        return "by more than their bound, the worst where nothing may be rounded or nothing finite is held"
    return f"by more than their bound, the worst by {used.max():.3g} times it"


def share(got: Array, want: Array, bound: Array) -> Array:
    """The part of its bound that each value uses; NaN and a difference without any bound count as infinite."""
    off = np.abs(got - want)
    used = np.divide(off, bound, out=np.where(off == 0, 0.0, np.inf), where=bound > 0)
    found: Array = np.where(np.isnan(used), np.inf, used)
    return found


def _bits_apart(got: Array, want: Array) -> Array:
    """0 where two float64 arrays hold the same bits, infinity elsewhere."""
    same = np.ascontiguousarray(got).view(np.uint64) == np.ascontiguousarray(want).view(np.uint64)
    return np.where(same, 0.0, np.inf)


def _last(columns: Array, n: int) -> Array:
    """The last n columns of a window."""
    return columns[len(columns) - n :] if n <= len(columns) else columns
