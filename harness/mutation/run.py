"""A whole run: read, resolve killers, judge, control, and write the results.

reports/evidence.json   what was observed and what it means (equal runs, equal bytes)
reports/partial.json    the same form, for a run with any selection; the gate refuses it
reports/shard-K-of-N.json  the same form, with the notes inside, for `gate merge`
reports/run.json        times, host, worker count, messages: what may differ between equal runs
"""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..exit_codes import ExitCode
from . import controls, decide, evidence, journal, matrix, owed, recheck, shards
from .campaign import Campaign, passed
from .catalogue import Catalogue, Mutant
from .diagnosis import explain
from .errors import InputRefused, InstrumentBroken
from .inputs import tree_digests, versions
from .ready import get_ready, killers_of
from .selection import Selection
from .servers import Servers
from .settings import Settings


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
    why: bool = True,
) -> Outcome:
    """Run the catalogue and write the results; raises InputRefused or InstrumentBroken.

    With `why`, entries that a test failed to see are explained. Entries that are broken are told and left out; what could be judged is judged, and is no evidence.
    """
    chosen = selection.pick(catalogue)
    if catalogue.problems and (not chosen or selection.shard is not None):
        raise InputRefused(catalogue.problems)
    begun = time.time()
    with locked(root, settings):
        before = tree_digests(root, settings)
        shards.demand_tracked(settings, before, selection.shard)
        inputs = journal.inputs_digest(before, versions(), settings.effective())
        log = journal.Journal(root / settings.reports / journal.NAME, inputs, resume)
        finished = False
        try:
            everyone = chosen if selection.shard is None else catalogue.mutants
            plan = _Plan(chosen, everyone, catalogue.mutants, jobs, tell, log, whole_matrix, why, shuffle)
            judged = _judge_all(root, settings, plan)
            finished = True
        finally:
            log.close(finished)
        predicate, notes, problems = judged.predicate, judged.notes, [*catalogue.problems, *judged.problems]
        predicate["tree_unchanged"] = tree_digests(root, settings) == before
        predicate["complete"] = not selection.partial and not problems
        notes |= {
            "host": platform.node(),
            "jobs": jobs,
            "shuffle": shuffle,
            "hash_seed": os.environ.get("PYTHONHASHSEED", "0"),
            "begun": begun,
            "seconds": time.time() - begun,
        }
        if selection.shard is not None:
            predicate["shard"] = selection.shard.told(catalogue.mutants)
            predicate["notes"] = notes
        made = evidence.statement(before, predicate)
        notes = {**notes, "evidence_seal": made["seal"]}
        written = root / settings.reports / _name(predicate, selection)
        evidence.write_atomically(written, evidence.canonical(made))
        if predicate["complete"]:
            evidence.write_atomically(root / settings.reports / evidence.RUN, evidence.canonical(notes))
        findings = [decide.Finding(ExitCode.USAGE, problem) for problem in problems]
        findings += decide.weigh(made["predicate"])
        if predicate["tree_unchanged"]:
            findings += decide.uncontrolled(root, plan.everyone, made["predicate"])
        if judged.matrix is not None:
            findings += matrix.findings(judged.matrix.rows, plan.chosen)
            bound = {"evidence_seal": made["seal"], **judged.matrix.as_data()}
            evidence.write_atomically(root / settings.reports / matrix.NAME, evidence.canonical(bound))
    return Outcome(made, notes, written, findings, judged.matrix)


def _name(predicate: Mapping[str, Any], selection: Selection) -> str:
    if selection.shard is not None:
        return selection.shard.file
    return evidence.EVIDENCE if predicate["complete"] else evidence.PARTIAL


@dataclass
class _Plan:
    """What a run is to do, resolved: `chosen` are judged, of all the `entries` that there are.

    A shard prepares for `everyone`, as one run of all would, so that it judges and controls in the same way.
    """

    chosen: Sequence[Mutant]
    everyone: Sequence[Mutant]
    entries: Sequence[Mutant]
    jobs: int
    tell: Callable[[str], None]
    log: journal.Journal
    matrix: bool
    why: bool
    shuffle: int | None = None

    @property
    def order(self) -> list[Mutant]:
        """The order of judging; it must not matter, and `--shuffle` lets one see that it does not."""
        mutants = list(self.chosen)
        if self.shuffle is not None:
            random.Random(self.shuffle).shuffle(mutants)
        return mutants

    def leave_out(self, names: Collection[str]) -> None:
        """Go on without entries that turned out to be broken."""
        self.chosen = [mutant for mutant in self.chosen if mutant.id not in names]
        self.everyone = [mutant for mutant in self.everyone if mutant.id not in names]
        self.entries = [mutant for mutant in self.entries if mutant.id not in names]


@dataclass
class _Judged:
    """The evidence's predicate, the notes, what is wrong with entries, and the kill matrix if it was asked for."""

    predicate: dict[str, Any]
    notes: dict[str, Any]
    problems: list[str] = field(default_factory=list)
    matrix: matrix.Matrix | None = None


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


def _judge_all(root: Path, settings: Settings, plan: _Plan) -> _Judged:
    predicate: dict[str, Any] = {
        "versions": versions(),
        "configuration": settings.effective(),
        "catalogue": [mutant.told for mutant in plan.chosen],
        "baseline": {"before": {}, "after": {}},
        "mutants": [],
        "controls": [],
        "swap_refused": None,
    }
    if not plan.chosen:
        empty: dict[str, Any] = {
            name: {} for name in ("messages", "seconds_by_test", "seconds_by_entry", "spent", "why")
        }
        return _Judged(predicate, {**empty, "resumed": [], "rolled_back": []})
    with Servers(root, settings, plan.jobs, [f for m in plan.entries for f in m.files]) as servers:
        campaign = Campaign(root, settings, servers, plan.jobs, plan.tell)
        ready = get_ready(campaign, plan.everyone, plan.matrix)
        problems = [problem for found in ready.problems.values() for problem in found]
        if problems and plan.everyone is not plan.chosen:
            raise InputRefused(problems)
        plan.leave_out(ready.problems)
        predicate["catalogue"] = [mutant.told for mutant in plan.chosen]
        predicate["swap_refused"] = servers.swap_refused
        rows = _campaign(campaign, plan, ready.greens, predicate)
    notes = {
        "messages": campaign.messages,
        "seconds_by_test": campaign.seconds,
        "seconds_by_entry": campaign.seconds_by_entry,
        "spent": campaign.spent,
        "why": campaign.why,
        "resumed": sorted(plan.log.kept),
        "rolled_back": sorted(campaign.rolled_back),
        "fork_refused": servers.fork_refused,
    }
    return _Judged(predicate, notes, problems, rows)


def _campaign(
    campaign: Campaign, plan: _Plan, greens: Mapping[str, list[str]], predicate: dict[str, Any]
) -> matrix.Matrix | None:
    killers, others = _roles(plan, greens)
    campaign.tell(f"baseline: {len(killers)} killers, {len(others)} that must stay green")
    predicate["baseline"]["before"] = campaign.baseline(killers, others, campaign.reference)
    if not all(passed(seen) for seen in predicate["baseline"]["before"].values()):
        return None
    found = owed.places(campaign.root, plan.everyone)
    campaign.tell(f"traps: {len(found.functions)} functions")
    traps = controls.set_traps(campaign, found, {mutant.id for mutant in plan.chosen})
    records = recheck.in_rounds(
        campaign,
        plan.order,
        settled=lambda mutant: _settled(campaign, mutant, greens[mutant.id], plan.log),
        again=lambda mutant: _judged(campaign, mutant, greens[mutant.id], plan.log),
        forget=plan.log.forget,
    )
    predicate["mutants"] = sorted(records, key=lambda record: str(record["id"]))
    if plan.why:
        collected = killers_of(plan.everyone)
        campaign.why = explain.after_a_run(campaign, plan.chosen, predicate["mutants"], collected)
    rows = matrix.fill(campaign, plan.chosen, predicate["mutants"]) if plan.matrix else None
    campaign.tell("controls")
    whole = owed.places(campaign.root, plan.entries)
    made = controls.run_controls(campaign, found, whole, predicate["mutants"])
    predicate["controls"] = owed.in_order(traps + made)
    campaign.tell("baseline again")
    predicate["baseline"]["after"] = _baseline_after(campaign, killers, others)
    return rows


def _roles(plan: _Plan, greens: Mapping[str, list[str]]) -> tuple[list[str], list[str]]:
    """The tests of these entries; one that anybody lists as a killer is run as a killer, in every shard."""
    needed = dict.fromkeys(killers_of(plan.chosen))
    needed.update(dict.fromkeys(test for mutant in plan.chosen for test in greens[mutant.id]))
    listed = set(killers_of(plan.everyone))
    return [t for t in needed if t in listed], [t for t in needed if t not in listed]


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
