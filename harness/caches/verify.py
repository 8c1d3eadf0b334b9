"""For a test of your own: every row of a cache is itself, or an assertion that says which tokens are wrong."""

from __future__ import annotations

import shlex
from pathlib import Path

from harness.caches.protocol import load_cache
from harness.caches.results import holds, messages, results
from harness.rows.fixture import default_folder, load_folder


def require_identity(subject: str, fixtures: Path | None = None) -> None:
    """Play every fixture that the cache named `package.module:factory` can play.

    fixtures: a folder of fixture files, such as findings that you keep; by default those of this distribution.
    Raises AssertionError with every difference in tokens, or if nothing could be played; ValueError if the name
    leads to no cache, FixtureError if a file is no fixture.
    """
    found = list(results(list(load_folder(fixtures or default_folder()).values()), load_cache(subject)))
    if not holds(found):
        needs = sorted({need for result in found for need in result.needs})
        folder = f" --fixtures {shlex.quote(str(fixtures))}" if fixtures else ""
        said = messages(found, None, f"{folder} --subject {subject}")
        raise AssertionError(
            "\n\n".join(said) or f"no fixture was played to its end; they need {', '.join(needs)}"
        )
