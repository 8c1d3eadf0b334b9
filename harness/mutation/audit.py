"""Two ways of judging compared: the fast ones must come to the verdicts of a fresh interpreter."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from ..exit_codes import ExitCode
from .decide import Finding


def sample(seal: str, names: Sequence[str], wanted: int) -> tuple[frozenset[str], int]:
    """Entries to judge again and a seed for their order: equal for equal evidence, others for other evidence."""
    draw = random.Random(seal)
    chosen = draw.sample(sorted(names), min(wanted, len(names)))
    return frozenset(chosen), draw.randrange(1 << 30)


def differences(before: Mapping[str, Any], after: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Entries that the evidence lacks, judged as another text, or judged to another end."""
    return [
        Finding(
            ExitCode.INSTRUMENT if record["id"] in before else ExitCode.ABSENT,
            f"audit: {record['id']}: {what}",
        )
        for record in after
        if (what := _difference(before.get(record["id"]), record)) is not None
    ]


def _difference(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> str | None:
    if before is None or before["sources"] != after["sources"]:
        return "the evidence holds no result of this text to compare with; run the catalogue first"
    for what in ("verdict", "killed"):
        if before[what] != after[what]:
            return f"{what} {before[what]} in the evidence (by {before['mode']}), {after[what]} by {after['mode']}"
    return None
