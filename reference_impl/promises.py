"""What one sequence promises: how far it can be rolled back, what it must refuse, and its earliest token.

A stateful compressor keeps only the tokens `base..tokens-1`, so some rollbacks are impossible. This model
knows which, from a history of operations alone: it stores three counts and no data. All counts are tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

Refusal = Literal[
    "rollback-below-zero",
    "rollback-below-base",
    "trim-multi-row",
    "trim-not-a-multiple",
    "trim-above-need",
    "trim-below-base",
    "restore-base-above-tokens",
    "restore-not-a-multiple",
    "restore-above-need",
]
REFUSALS: tuple[Refusal, ...] = get_args(Refusal)


class Refused(ValueError):
    """The model was told to do what it must refuse. `kind` is the reason; nothing was changed."""

    def __init__(self, kind: Refusal, sentence: str) -> None:
        super().__init__(f"{kind}: {sentence}")
        self.kind = kind


@dataclass
class Promises:
    """The promises of one sequence under advance, rollback, trim and restore.

    `tokens` is how many tokens were consumed. `high_water` is the largest count that an *advance* reached
    since the start or the last restore, 0 if none did: only an advance drops old tokens, so a rollback does
    not lower it, and a restore, which keeps what it was given, starts it anew. `floor` is the base that the
    last trim or restore set. `margin` is how many tokens may always be rolled back.

    A copy (`dataclasses.replace(promises)`) is the same sequence going on somewhere else, as split,
    select and assemble do. Raises ValueError for an impossible geometry.
    """

    ratio: int
    span: int
    margin: int = 16
    tokens: int = field(default=0, kw_only=True)
    high_water: int = field(default=0, kw_only=True)
    floor: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if self.ratio < 1 or self.span not in (1, 2) or self.margin < 0:
            raise ValueError(
                f"ratio is {self.ratio}, span {self.span}, margin {self.margin}; they should be at least 1, "
                "1 (HCA) or 2 (CSA and indexer), and at least 0: correct the layer's geometry"
            )

    def need(self, tokens: int) -> int:
        """First token the next block after `tokens` tokens reads: `max(floor(tokens/r) + 1 - sp, 0) * r`."""
        return max(tokens // self.ratio + 1 - self.span, 0) * self.ratio

    @property
    def base(self) -> int:
        """Earliest token the sequence can still be resumed from: `max(need(max(high_water - m, 0)), floor)`.

        This is the closed form of the retention rule `base' = max(need(max(t + T - m, 0)), base)`, which
        every advance by T > 0 from t tokens applies, and no other operation.
        """
        return max(self.need(max(self.high_water - self.margin, 0)), self.floor)

    @property
    def live_blocks(self) -> int:
        """Completed blocks that may be read: `floor(tokens / r)`."""
        return self.tokens // self.ratio

    @property
    def width(self) -> int:
        """Retained tokens, `tokens - base`."""
        return self.tokens - self.base

    @property
    def width_limit(self) -> int:
        """Largest width without a restore, `sp*r + m - 1`; also with one, as soon as the row has advanced."""
        return self.span * self.ratio + self.margin - 1

    def advance(self, n: int) -> None:
        """Consume n tokens. With n = 0 nothing happens at all, retention included. ValueError for n < 0."""
        if n < 0:
            raise ValueError(f"advance by {n}; it should be 0 or more: use rollback to take tokens back")
        if n == 0:
            return
        self.tokens += n
        self.high_water = max(self.high_water, self.tokens)

    def rollback_refusal(self, n: int) -> Refusal | None:
        """Why the last n tokens cannot be taken back, or None. Changes nothing. ValueError for n < 0."""
        if n < 0:
            raise ValueError(f"rollback by {n}; it should be 0 or more: use advance to add tokens")
        if n > self.tokens:
            return "rollback-below-zero"
        if self.need(self.tokens - n) < self.base:
            return "rollback-below-base"
        return None

    def rollback(self, n: int) -> None:
        """Take the last n tokens back; the base stays. Raises Refused if `rollback_refusal` has a reason."""
        kind = self.rollback_refusal(n)
        if kind is not None:
            raise Refused(
                kind,
                f"{self.tokens} tokens minus {n} leave {self.tokens - n}, whose next block reads from token "
                f"{self.need(max(self.tokens - n, 0))}; the base is {self.base}: roll back less",
            )
        self.tokens -= n

    def trim_refusal(self, new_base: int, rows: int = 1) -> Refusal | None:
        """Why the base cannot become `new_base` in a cache of `rows` rows, or None. Changes nothing.

        Reasons are looked for in this order: multi-row, not a multiple of r, above need(tokens), below base.
        """
        if rows != 1:
            return "trim-multi-row"
        if new_base % self.ratio:
            return "trim-not-a-multiple"
        if new_base > self.need(self.tokens):
            return "trim-above-need"
        if new_base < self.base:
            return "trim-below-base"
        return None

    def trim(self, new_base: int, rows: int = 1) -> None:
        """Drop the tokens before `new_base`. Raises Refused, unchanged, if `trim_refusal` says so."""
        kind = self.trim_refusal(new_base, rows)
        if kind is not None:
            raise Refused(
                kind,
                f"trim to {new_base} in a cache of {rows} row(s); it should be a multiple of {self.ratio} in "
                f"{self.base}..{self.need(self.tokens)} in a cache of one row: split the row off first",
            )
        self.floor = new_base

    def restore_refusal(self, tokens: int, base: int) -> Refusal | None:
        """Why a snapshot with these counts is not a state of this geometry, or None. Changes nothing."""
        if not 0 <= base <= tokens:
            return "restore-base-above-tokens"
        if base % self.ratio:
            return "restore-not-a-multiple"
        if base > self.need(tokens):
            return "restore-above-need"
        return None

    def restore(self, tokens: int, base: int) -> None:
        """Become a snapshot's sequence, whose base holds until an advance raises it.

        The restored run may be wider than `width_limit`, hence `high_water` starts again at 0 and not at
        `tokens`. Raises Refused, unchanged, if `restore_refusal` says so.
        """
        kind = self.restore_refusal(tokens, base)
        if kind is not None:
            raise Refused(
                kind,
                f"restore of {tokens} tokens with base {base}; the base should be a multiple of {self.ratio} "
                f"in 0..{self.need(max(tokens, 0))}: take the snapshot again",
            )
        self.tokens, self.floor, self.high_water = tokens, base, 0

    def violations(
        self,
        tokens: int | None = None,
        base: int | None = None,
        *,
        capacity: int | None = None,
        earliest_read: int | None = None,
    ) -> list[str]:
        """The invariants that an observed state of this sequence breaks, a sentence each; empty if none.

        `tokens` and `base` default to the model's own. `capacity` is how many tokens the row's storage holds
        (I2) and `earliest_read` the first token that was read (I3); what is not given is not judged. Whether
        the blocks and the tail hold the right values (the rest of I5) is not a matter of counts.
        """
        tokens = self.tokens if tokens is None else tokens
        base = self.base if base is None else base
        found = []
        if not 0 <= base <= tokens:
            found.append(f"I1: base is {base}; it should lie in 0..{tokens}, the tokens consumed")
        if capacity is not None and base + capacity < tokens:
            found.append(f"I2: {capacity} tokens are stored; it should be at least the run, {tokens - base}")
        if earliest_read is not None and earliest_read < base:
            found.append(f"I3: token {earliest_read} was read; nothing before the base {base} should be")
        if self.need(tokens) < base:
            found.append(f"I4: base is {base}; the next block reads from token {self.need(tokens)} already")
        if tokens != self.tokens:
            found.append(f"I5: tokens is {tokens}; the same history alone has {self.tokens}")
        wide_by_restore = self.high_water == 0 and self.tokens > 0
        if not wide_by_restore and tokens - base > self.width_limit:
            found.append(f"I6: {tokens - base} tokens are retained; it should be at most {self.width_limit}")
        if base != self.base:
            found.append(
                f"I7: base is {base}; it should be {self.base}, from high water {self.high_water}, margin "
                f"{self.margin} and floor {self.floor}"
            )
        if base % self.ratio:
            found.append(f"I8: base is {base}; it should be a multiple of the ratio {self.ratio}")
        return found
