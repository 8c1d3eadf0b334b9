"""Small schedules on a cache by its name, and what is said of them."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from harness.caches.protocol import load_cache
from harness.caches.results import Result, results
from harness.report import caches as report
from harness.rows.fixture import from_mapping


def played(subject: str, *steps: dict[str, Any]) -> tuple[Result, str]:
    """The play of these steps, and its messages."""
    raw = {"proves": "A schedule.", "ratio": 4, "span": 2, "facts": ["accept_some"], "step": [*steps]}
    [result] = results([from_mapping("schedule", raw)], load_cache(subject))
    return result, "\n".join(report.messages([result]))


def found_in(package: str, wanted: str) -> None:
    """A finding is one of the version that it was found in: in another, look again, and keep what still holds."""
    assert version(package) == wanted, f"{package} is {version(package)}; these findings are of {wanted}"
