"""Events in words: whose token it is, and whether anybody still holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.rows.events import STRIDE, origin

if TYPE_CHECKING:
    from harness.caches.play import CachePlay

PADDING = (1 << 20) - 1


def pad_ids(n: int) -> list[int]:
    """The ids of n columns of padding: events of a sequence that nobody opens."""
    return [PADDING * STRIDE + event + 1 for event in range(n)]


class Labels:
    """The names of one play's tokens."""

    def __init__(self, play: CachePlay) -> None:
        self.play = play

    def token(self, token: int) -> str:
        """r1:t37, or padding; and whether its sequence no longer holds it."""
        sequence = origin(token)[0]
        if sequence == PADDING:
            return "padding"
        label = self.play.ledger.label(token)
        fed = token > 0 and sequence < len(self.play.members)
        # A fork holds what its origin dropped, so all are asked.
        held = not fed or any(token in member.history for member in self.play.members)
        return label if held else f"{label}, rolled back"

    def tokens(self, ids: Sequence[int]) -> str:
        """A few tokens as they are, many by the first and the last."""
        return self._joined([self.token(token) for token in ids])

    def fed(self, ids: Sequence[int]) -> str:
        """The same without a word on who still holds them."""
        return self._joined([self.play.ledger.label(token) for token in ids])

    def _joined(self, labels: Sequence[str]) -> str:
        return ", ".join(labels) if len(labels) <= 3 else f"{labels[0]} .. {labels[-1]}"
