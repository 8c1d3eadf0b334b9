"""A whole run: read, resolve killers, judge, control, and write the results.

reports/evidence.json   what was observed and what it means (equal runs, equal bytes)
reports/partial.json    the same form, for a run with any selection; the gate refuses it
reports/run.json        times, host, worker count, messages: what may differ between equal runs
"""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import controls, decide, evidence, journal, matrix, owed, recheck
from .campaign import Campaign, passed
from .catalogue import Catalogue, Mutant
from .errors import InputRefused, InstrumentBroken, did_you_mean
from .inputs import tree_digests, versions
from .servers import Servers
from .settings import Settings


@dataclass(frozen=True)
class Selection:
    """Which entries to judge; any selection makes the run partial."""

    only: tuple[str, ...] = ()
    themes: tuple[str, ...] = ()
    # An audit judges in another way than the settings say, so its result is no evidence.
    audit: bool = False

    @property
    def partial(self) -> bool:
        """True when not everything is judged."""
        return bool(self.only or self.themes or self.audit)

    def pick(self, catalogue: Catalogue) -> list[Mutant]:
        """The selected entries; raises InputRefused for a name that selects nothing."""
        ids = set(catalogue.by_id())
        themes = {mutant.theme for mutant in catalogue.mutants}
        problems = [
            f"--only {n}: there is no such mutant{did_you_mean(n, ids)}" for n in self.only if n not in ids
        ]
        problems += [
            f"--theme {name}: there is no such theme{did_you_mean(name, themes)}"
            for name in self.themes
            if name not in themes
        ]
        if problems:
            raise InputRefused(problems)
        return [
            m
            for m in catalogue.mutants
            if (not self.only or m.id in self.only) and (not self.themes or m.theme in self.themes)
        ]


@dataclass
class Outcome:
    """What a run produced."""

    statement: dict[str, Any]
    notes: dict[str, Any]
    written: Path
    findings: list[decide.Finding] = field(default_factory=list)
    matrix: matrix.Matrix | None = None

    @property
    def predicate(self) -> dict[str, Any]:
        """The evidence without its envelope."""
        return dict(self.statement["predicate"])


def execute(
    root: Path,
    settings: Settings,
    catalogue: Catalogue,
    selection: Selection,
    jobs: int,
    tell: Callable[[str], None] = lambda text: None,
    resume: bool = False,
    whole_matrix: bool = False,
    shuffle: int | None = None,
) -> Outcome:
    """Run the catalogue and write the results; raises InputRefused or InstrumentBroken."""
    chosen = selection.pick(catalogue)
    begun = time.time()
    with locked(root, settings):
        before = tree_digests(root, settings)
        inputs = journal.inputs_digest(before, versions(), settings.effective())
        log = journal.Journal(root / settings.reports / journal.NAME, inputs, resume)
        finished = False
        try:
            plan = _Plan(chosen, catalogue.mutants, jobs, tell, log, whole_matrix, shuffle)
            predicate, notes, rows = _judge_all(root, settings, catalogue, plan)
            finished = True
        finally:
            log.close(finished)
        predicate["tree_unchanged"] = tree_digests(root, settings) == before
        predicate["complete"] = not selection.partial
        if selection.partial:
            predicate["catalogue"] = [_entry(mutant) for mutant in chosen]
        made = evidence.statement(before, predicate)
        notes |= {
            "host": platform.node(),
            "jobs": jobs,
            "shuffle": shuffle,
            "hash_seed": os.environ.get("PYTHONHASHSEED", "0"),
            "begun": begun,
            "seconds": time.time() - begun,
            "evidence_seal": made["seal"],
        }
        name = evidence.PARTIAL if selection.partial else evidence.EVIDENCE
        written = root / settings.reports / name
        evidence.write_atomically(written, evidence.canonical(made))
        if not selection.partial:
            evidence.write_atomically(root / settings.reports / evidence.RUN, evidence.canonical(notes))
        findings = decide.weigh(made["predicate"])
        if predicate["tree_unchanged"]:
            findings += decide.uncontrolled(root, chosen, made["predicate"])
        if rows is not None:
            findings += matrix.findings(rows.rows, chosen)
            bound = {"evidence_seal": made["seal"], **rows.as_data()}
            evidence.write_atomically(root / settings.reports / matrix.NAME, evidence.canonical(bound))
    return Outcome(made, notes, written, findings, rows)


@dataclass(frozen=True)
class _Plan:
    """What a run is to do, resolved: `chosen` of all the entries that there are."""

    chosen: Sequence[Mutant]
    entries: Sequence[Mutant]
    jobs: int
    tell: Callable[[str], None]
    log: journal.Journal
    matrix: bool
    shuffle: int | None = None

    @property
    def order(self) -> list[Mutant]:
        """The order of judging; it must not matter, and `--shuffle` lets one see that it does not."""
        mutants = list(self.chosen)
        if self.shuffle is not None:
            random.Random(self.shuffle).shuffle(mutants)
        return mutants


@contextmanager
def locked(root: Path, settings: Settings) -> Iterator[None]:
    """One run at a time per project; a second one is told who holds the lock and since when."""
    from filelock import FileLock, Timeout

    folder = root / settings.reports
    folder.mkdir(parents=True, exist_ok=True)
    holder = folder / ".lock.txt"
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        who = holder.read_text().strip() if holder.exists() else "an unknown process"
        raise InstrumentBroken(
            f"another run is going on in this project: {who}; wait for it or end it"
        ) from None
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        evidence.write_atomically(
            holder, f"process {os.getpid()} on {platform.node()} since {since}\n".encode()
        )
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _entry(mutant: Mutant) -> dict[str, Any]:
    return {
        "id": mutant.id,
        "theme": mutant.theme,
        "kind": mutant.kind,
        "expected": mutant.expected,
        "killed_by": list(mutant.killed_by),
        "must_stay_green": list(mutant.must_stay_green),
        "survives_under": list(mutant.survives_under),
        "dies_by": mutant.dies_by,
        "twin_of": mutant.twin_of,
    }


def _judge_all(
    root: Path, settings: Settings, catalogue: Catalogue, plan: _Plan
) -> tuple[dict[str, Any], dict[str, Any], matrix.Matrix | None]:
    """Returns the evidence's predicate, the notes, and the kill matrix if it was asked for."""
    predicate: dict[str, Any] = {
        "versions": versions(),
        "configuration": settings.effective(),
        "catalogue": [_entry(mutant) for mutant in catalogue.mutants],
        "baseline": {"before": {}, "after": {}},
        "mutants": [],
        "controls": [],
        "swap_refused": None,
    }
    if not plan.chosen:
        return (
            predicate,
            {"messages": {}, "seconds_by_test": {}, "spent": {}, "resumed": [], "rolled_back": []},
            None,
        )
    with Servers(root, settings, plan.jobs) as servers:
        campaign = Campaign(root, settings, servers, plan.jobs, plan.tell)
        greens = _get_ready(campaign, plan.chosen, plan.matrix)
        predicate["swap_refused"] = servers.swap_refused
        rows = _campaign(campaign, plan, greens, predicate)
    notes = {
        "messages": campaign.messages,
        "seconds_by_test": campaign.seconds,
        "spent": campaign.spent,
        "resumed": sorted(plan.log.kept),
        "rolled_back": sorted(campaign.rolled_back),
        "fork_refused": servers.fork_refused,
    }
    return predicate, notes, rows


def _campaign(
    campaign: Campaign, plan: _Plan, greens: Mapping[str, list[str]], predicate: dict[str, Any]
) -> matrix.Matrix | None:
    killers = list(dict.fromkeys(test for mutant in plan.chosen for test in mutant.killed_by))
    others = list(dict.fromkeys(test for mutant in plan.chosen for test in greens[mutant.id]))
    campaign.tell(f"baseline: {len(killers)} killers, {len(others)} that must stay green")
    predicate["baseline"]["before"] = campaign.baseline(killers, others, campaign.reference)
    if not all(passed(seen) for seen in predicate["baseline"]["before"].values()):
        return None
    found = owed.places(campaign.root, plan.chosen)
    campaign.tell(f"traps: {len(found.functions)} functions")
    traps = controls.set_traps(campaign, found)
    records = recheck.in_rounds(
        campaign,
        plan.order,
        settled=lambda mutant: _settled(campaign, mutant, greens[mutant.id], plan.log),
        again=lambda mutant: _judged(campaign, mutant, greens[mutant.id], plan.log),
        forget=plan.log.forget,
    )
    predicate["mutants"] = sorted(records, key=lambda record: str(record["id"]))
    rows = matrix.fill(campaign, plan.chosen, predicate["mutants"]) if plan.matrix else None
    campaign.tell("controls")
    predicate["controls"] = traps + controls.run_controls(
        campaign, found, owed.places(campaign.root, plan.entries), predicate["mutants"]
    )
    campaign.tell("baseline again")
    predicate["baseline"]["after"] = _baseline_after(campaign, killers, others)
    return rows


def _baseline_after(campaign: Campaign, killers: Sequence[str], others: Sequence[str]) -> dict[str, Any]:
    """By swap where that works, which is cheaper; reimport is the reference for whatever is not green there."""
    if campaign.servers.swap_refused:
        return campaign.baseline(killers, others, campaign.reference)
    found = campaign.baseline(killers, [], "swap")
    red = [test for test, seen in found.items() if not passed(seen)]
    return found | campaign.baseline(red, others, campaign.reference)


def _settled(
    campaign: Campaign, mutant: Mutant, green: Sequence[str], log: journal.Journal
) -> dict[str, Any]:
    """An entry's record: kept from a killed run with equal inputs, or judged now and journalled."""
    if mutant.id in log.kept:
        kept = log.kept[mutant.id]
        campaign.messages[mutant.id] = kept["messages"]
        return dict(kept["record"])
    return _judged(campaign, mutant, green, log)


def _judged(campaign: Campaign, mutant: Mutant, green: Sequence[str], log: journal.Journal) -> dict[str, Any]:
    record = campaign.judge(mutant, green)
    log.add(record, campaign.messages.get(mutant.id, {}))
    return record


def _get_ready(campaign: Campaign, chosen: Sequence[Mutant], whole: bool) -> dict[str, list[str]]:
    """Resolve every test name, preload what the tests import, fork the slots; returns the greens by mutant."""
    killers = list(dict.fromkeys(test for mutant in chosen for test in mutant.killed_by))
    first_of_file = {test.partition("::")[0]: test for test in reversed(killers)}
    servers = campaign.servers
    learned = servers.list_tests(killers or campaign.settings.tests, sorted(first_of_file.values()))
    if learned["error"] or learned["collect_errors"]:
        told = learned["error"] or "; ".join(
            f"{item['node'] or 'the session'}: {item['message']}" for item in learned["collect_errors"]
        )
        raise InstrumentBroken(f"baseline: the tests cannot be collected without any mutant: {told}")
    lost = [test for test in killers if test not in learned["items"]]
    if lost:
        raise InputRefused(_lost_killers(servers, chosen, lost))
    greens = _resolve_greens(servers, chosen)
    servers.preload(learned)
    wanted = killers or list(campaign.settings.tests)
    if whole:
        given = campaign.settings
        suite = given.matrix or given.suite or given.tests
        wanted = [*suite, *(test for test in wanted if not _below(test, suite))]
    servers.fork(wanted, sorted({file for m in chosen for file in m.files}))
    return greens


def _below(test: str, paths: Sequence[str]) -> bool:
    return any(path == "." or test.startswith((f"{path.rstrip('/')}/", f"{path}::")) for path in paths)


def _lost_killers(servers: Servers, chosen: Sequence[Mutant], lost: Sequence[str]) -> list[str]:
    files = list(dict.fromkeys(test.partition("::")[0] for test in lost))
    known = set(servers.list_tests(files)["items"])
    lost_really = [test for test in lost if test not in known]
    return [
        f"mutant '{mutant.id}': killed_by names '{test}', which is not collected{did_you_mean(test, known)}"
        for mutant in chosen
        for test in mutant.killed_by
        if test in lost_really
    ] or [f"{lost[0]} is collected with its file but not by its own id"]


def _resolve_greens(servers: Servers, chosen: Sequence[Mutant]) -> dict[str, list[str]]:
    files = {glob.partition("::")[0] for mutant in chosen for glob in mutant.must_stay_green}
    known = list(servers.list_tests(sorted(files))["items"]) if files else []
    problems, result = [], {}
    for mutant in chosen:
        matched: dict[str, None] = {}
        for glob in mutant.must_stay_green:
            hits = [test for test in known if matches(test, glob)]
            if not hits:
                near = did_you_mean(glob, known)
                problems.append(f"mutant '{mutant.id}': must_stay_green '{glob}' matches no test{near}")
            matched.update(dict.fromkeys(hits))
        result[mutant.id] = [test for test in matched if test not in mutant.killed_by]
    if problems:
        raise InputRefused(problems)
    return result


def matches(test: str, glob: str) -> bool:
    """Match a node id; only `*` is special, since brackets are part of ids."""
    import re

    return re.fullmatch(".*".join(re.escape(part) for part in glob.split("*")), test, re.DOTALL) is not None
