"""What a play went through: a green run says something about the situations that it met, and about no others."""

from __future__ import annotations

from collections.abc import Collection

from harness.caches.protocol import Described

SITUATIONS = {
    "padded": ("prompts of unequal length in one call", "prefill.ragged"),
    "chunked": ("a prompt in several calls", ""),
    "idle": ("a row that takes no token beside one that does", "advance.ragged"),
    "dropped": ("drafts that are dropped", "rollback"),
    "dropped_unevenly": ("rows that drop different numbers of drafts", "rollback.ragged"),
    "dropped_past": ("a row that goes back behind what its last step brought", "rollback"),
    "replaced": ("a token in the place of one that was dropped", "rollback"),
    "shrunk": ("rows that leave a batch whose other rows go on", "select"),
    "moved": ("rows that change places", "select"),
    "forked": ("a row that becomes two, each with tokens of its own", "repeat"),
    "dropped_fork": ("a row that goes back behind a fork and goes on otherwise", "rollback.ragged"),
    "joined": ("a row that joins a batch", "assemble"),
    "left": ("a row that leaves for a cache of its own", "split"),
    "restored": ("a batch that was written and read again", "snapshot"),
}
"""Each with its sentence, and what a cache must offer to come into it."""

_ALSO = {"dropped_fork": "repeat"}


def reachable(cache: Described) -> list[str]:
    """The situations that a cache can come into, by what it offers."""
    return [
        name
        for name, (_, needed) in SITUATIONS.items()
        if all(not what or cache.offers(what) for what in (needed, _ALSO.get(name, "")))
    ]


def unmet(cache: Described, met: Collection[str]) -> list[str]:
    """The sentences of those that it can come into and did not."""
    return [SITUATIONS[name][0] for name in reachable(cache) if name not in met]
