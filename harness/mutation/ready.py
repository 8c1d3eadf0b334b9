"""Before anything is judged: every test name resolved, what the tests import preloaded, the slots forked.

A name that matches nothing is an input error of its entry, never a verdict; the other entries can do
without that one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .campaign import Campaign
from .catalogue import Mutant
from .errors import InputRefused, InstrumentBroken, did_you_mean
from .servers import Servers


@dataclass
class Ready:
    """The must_stay_green tests by entry, and what is wrong with entries that cannot be judged."""

    greens: dict[str, list[str]] = field(default_factory=dict)
    problems: dict[str, list[str]] = field(default_factory=dict)


def get_ready(campaign: Campaign, entries: Sequence[Mutant], whole: bool) -> Ready:
    """Prepare the servers for these entries; with `whole`, for every test that a matrix looks at.

    Raises InputRefused when no entry is left, InstrumentBroken when the tests cannot be collected.
    """
    ready, servers = Ready(), campaign.servers
    learned = _learn(campaign, entries)
    lost = [test for test in killers_of(entries) if test not in learned["items"]]
    if lost:
        _report_lost(servers, entries, lost, ready)
    _resolve_greens(servers, entries, ready)
    left = [mutant for mutant in entries if mutant.id not in ready.problems]
    if not left:
        raise InputRefused([problem for found in ready.problems.values() for problem in found])
    servers.preload(_learn(campaign, left) if lost else learned)
    wanted = _wanted(campaign, killers_of(left), whole)
    servers.fork(wanted, sorted({file for mutant in left for file in mutant.files}))
    return ready


def _learn(campaign: Campaign, entries: Sequence[Mutant]) -> dict[str, Any]:
    """Collect the killers and run the first of each file, to see what they import."""
    killers = killers_of(entries)
    first_of_file = {test.partition("::")[0]: test for test in reversed(killers)}
    found = campaign.servers.list_tests(killers or campaign.settings.tests, sorted(first_of_file.values()))
    if found["error"] or found["collect_errors"]:
        told = found["error"] or "; ".join(
            f"{item['node'] or 'the session'}: {item['message']}" for item in found["collect_errors"]
        )
        raise InstrumentBroken(f"baseline: the tests cannot be collected without any mutant: {told}")
    return found


def _report_lost(servers: Servers, entries: Sequence[Mutant], lost: Sequence[str], ready: Ready) -> None:
    """One id that is gone makes pytest refuse all of them; their files say which ones are gone."""
    files = list(dict.fromkeys(test.partition("::")[0] for test in lost))
    known = set(servers.list_tests(files)["items"])
    for mutant in entries:
        for test in mutant.killed_by:
            if test in lost and test not in known:
                sentence = f"killed_by names '{test}', which is not collected{did_you_mean(test, known)}"
                ready.problems.setdefault(mutant.id, []).append(f"mutant '{mutant.id}': {sentence}")
    if not ready.problems:
        raise InputRefused([f"{lost[0]} is collected with its file but not by its own id"])


def killers_of(entries: Sequence[Mutant]) -> list[str]:
    """Every listed killer once, in catalogue order."""
    return list(dict.fromkeys(test for mutant in entries for test in mutant.killed_by))


def _wanted(campaign: Campaign, killers: Sequence[str], whole: bool) -> list[str]:
    """What the collected process must hold."""
    given = campaign.settings
    wanted = list(killers or given.tests)
    if whole:
        suite = given.matrix or given.suite or given.tests
        wanted = [*suite, *(test for test in wanted if not _below(test, suite))]
    return wanted


def _below(test: str, paths: Sequence[str]) -> bool:
    return any(path == "." or test.startswith((f"{path.rstrip('/')}/", f"{path}::")) for path in paths)


def _resolve_greens(servers: Servers, entries: Sequence[Mutant], ready: Ready) -> None:
    files = {glob.partition("::")[0] for mutant in entries for glob in mutant.must_stay_green}
    known = list(servers.list_tests(sorted(files))["items"]) if files else []
    for mutant in entries:
        matched: dict[str, None] = {}
        for glob in mutant.must_stay_green:
            hits = [test for test in known if matches(test, glob)]
            if not hits:
                sentence = f"must_stay_green '{glob}' matches no test{did_you_mean(glob, known)}"
                ready.problems.setdefault(mutant.id, []).append(f"mutant '{mutant.id}': {sentence}")
            matched.update(dict.fromkeys(hits))
        ready.greens[mutant.id] = [test for test in matched if test not in mutant.killed_by]


def matches(test: str, glob: str) -> bool:
    """Match a node id; only `*` is special, since brackets are part of ids."""
    return re.fullmatch(".*".join(re.escape(part) for part in glob.split("*")), test, re.DOTALL) is not None
