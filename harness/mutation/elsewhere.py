"""Other processes that a test starts: they are served the mutant too, and say that they ran it.

The child sets two environment variables: the folder `site/` comes first on PYTHONPATH, and a note names
what to serve. An interpreter that starts with them patches its loader before the project is imported.
One that drops its environment (`python -I`, `env={}`) sees the original file, and the report says so.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from . import bounds
from .reach import Reach, as_watch
from .serving import Project, Sources

NOTE = "ROWPROOF_ELSEWHERE"
SITE = str(Path(__file__).with_name("site"))


class Guests:
    """The inviting side, in a judging child: what the processes that its tests start have told."""

    def __init__(
        self, path: str, boot: dict[str, Any], overlay: dict[str, str], watch: dict[str, Any]
    ) -> None:
        self._told = Path(f"{path}.told")
        note = {"boot": boot, "overlay": overlay, "watch": watch, "told": str(self._told)}
        Path(path).write_text(json.dumps(note))
        rest = os.environ.get("PYTHONPATH", "")
        if not rest.startswith(SITE):
            os.environ["PYTHONPATH"] = os.pathsep.join([SITE, rest]) if rest else SITE
        os.environ[NOTE] = path

    def told(self) -> list[dict[str, Any]]:
        """Everything that they have told so far."""
        try:
            lines = self._told.read_text().splitlines()
        except OSError:
            return []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def reached(self) -> bool:
        """Whether a changed line ran in one of them."""
        return any(item.get("reached") for item in self.told())

    def served(self) -> dict[str, str]:
        """{real path: digest} of the mutated sources that they executed."""
        return {path: value for item in self.told() for path, value in item.get("served", {}).items()}

    def note_reach(self) -> None:
        """Called in a forked copy of the child when it meets a changed line."""
        tell(str(self._told), {"reached": True})


def tell(path: str, fact: dict[str, Any]) -> None:
    """Append one line; short appends of several processes do not mix."""
    with open(path, "a", encoding="utf-8") as handle:
        handle.write(json.dumps(fact) + "\n")


def join(note: str) -> None:
    """In a started interpreter, before it imports anything of the project: serve and watch."""
    bounds.spare_everyone()
    facts = json.loads(Path(note).read_text())
    boot, told = facts["boot"], facts["told"]
    sources = Sources(Project(boot["root"], boot["tests"], boot["helpers"], boot["mutated"]))
    sources.overlay = facts["overlay"]
    sources.noted = lambda path, value: tell(told, {"served": {path: value}})
    sources.install()
    tell(told, {"joined": True})
    watch = as_watch(facts["watch"])
    reach = Reach(watch, set())
    reach.when_found = lambda: tell(told, {"reached": True})
    reach.start()
