"""Which tests are asked why, and what their answers add up to for one entry.

Asked are the listed killers that did not kill, then other tests that reach the change, the cheapest
first. The answer of an entry is that of the test where the mutant got furthest. No verdict hangs on it:
it goes to reports/explain.json, beside the evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import prepare
from ..campaign import Campaign, batches
from ..catalogue import Mutant
from ..errors import InputRefused, did_you_mean
from ..observe import observations
from ..prepare import Fault
from ..servers import Servers
from ..settings import Settings
from ..verdict import Reading, Verdict, fate
from .classes import Class
from .probe import Finding, Probe

TESTS_MAX = 3
# So many tests are tried at most when no listed killer reaches the change.
SEARCH_MAX = 500
_UNSEEN = (Verdict.SURVIVED, Verdict.NOT_REACHED, Verdict.OVERCLAIMED, Verdict.KILLED_ELSEWHERE)


def after_a_run(
    campaign: Campaign,
    mutants: Sequence[Mutant],
    records: Sequence[Mapping[str, Any]],
    collected: Sequence[str],
) -> dict[str, Any]:
    """{id: explanation} of every entry that a test failed to see; `collected` are those that swap can run."""
    by_id = {mutant.id: mutant for mutant in mutants}
    todo = [record for record in records if record["verdict"] in _UNSEEN and record["id"] in by_id]
    tests = {record["id"]: _silent(record, campaign) for record in todo}

    def why(record: Mapping[str, Any]) -> dict[str, Any]:
        campaign.tell(f"why: {record['id']}")
        return ask(campaign, by_id[record["id"]], tests[record["id"]], collected)

    return {record["id"]: found for record, found in zip(todo, campaign.each(why, todo), strict=True)}


def _silent(record: Mapping[str, Any], campaign: Campaign) -> list[str]:
    """The listed killers that did not fire, those that reach it first; then others that reach it."""
    sources, dies_by = record["sources"], record["dies_by"]
    passed = [
        (not any(run.get("reached") for run in runs), campaign.seconds.get(test, 0.0), test)
        for test, runs in record["killers"].items()
        if runs and fate(runs, sources, dies_by).reading is Reading.PASSED
    ]
    reaching = sorted(
        campaign.reaching.get(str(record["id"]), []), key=lambda t: campaign.seconds.get(t, 0.0)
    )
    red = (record["widened"] or {}).get("red", {})
    others = [test for test in reaching if test not in red]
    named = [test for blind, _, test in sorted(passed) if not (blind and others)]
    return [*named, *others][:TESTS_MAX] or list(record["killers"])[:1]


def ask(campaign: Campaign, mutant: Mutant, tests: Sequence[str], collected: Sequence[str]) -> dict[str, Any]:
    """The explanation of one entry by some tests, as plain data."""
    fault = prepare.of_mutant(campaign.root, mutant)
    declared = mutant.why if mutant.kind == "equivalent" else None
    mode = campaign.mode(fault)[0]
    findings = []
    for test in tests:
        chosen = mode if mode != "swap" or test in collected else campaign.reference
        findings.append(Probe(campaign, fault, test, chosen, declared).find())
        if not fault.bytecode_differs:
            break
    if not tests:
        findings.append(_without_tests(fault, declared))
    return summed_up(findings, declared)


def _without_tests(fault: Fault, declared: str | None) -> Finding:
    if not fault.bytecode_differs:
        return Finding("", Class.NO_OP, "The compiler sees no difference between original and mutant.")
    if declared is not None:
        return Finding(
            "", Class.UNKNOWN, f"Declared equivalent ({declared}); no test is named that could contradict."
        )
    return Finding("", Class.NOT_REACHED, "No test was found that executes a changed line.")


def summed_up(findings: Sequence[Finding], declared: str | None) -> dict[str, Any]:
    """What the answers of several tests add up to: the one where the mutant got furthest."""
    order = list(Class)
    cls = min((finding.cls for finding in findings), key=order.index)
    return {
        "class": cls.value,
        "reached": sum(finding.reached for finding in findings),
        "infected": sum(finding.infected for finding in findings),
        "declared": declared,
        "findings": [f.as_data() for f in sorted(findings, key=lambda finding: order.index(finding.cls))],
    }


def one(
    root: Path,
    settings: Settings,
    mutant: Mutant,
    tests: Sequence[str],
    jobs: int,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The explanation of one entry in a session of its own; raises InputRefused for a test that is not there."""
    wanted = list(tests or mutant.killed_by)
    with Servers(root, settings, jobs, list(mutant.files)) as servers:
        campaign = Campaign(root, settings, servers, jobs, tell)
        learned = servers.list_tests(wanted or settings.tests, wanted[:1])
        lost = [test for test in wanted if test not in learned["items"]]
        if lost:
            known = servers.list_tests(sorted({test.partition("::")[0] for test in lost}))["items"]
            raise InputRefused([f"'{t}' is not collected{did_you_mean(t, known)}" for t in lost])
        servers.preload(learned)
        servers.fork(wanted or settings.tests, sorted(mutant.files))
        found = ask(campaign, mutant, wanted[:TESTS_MAX] if not tests else wanted, wanted)
        if tests or found["reached"] or found["class"] == Class.NO_OP:
            return found
        tell("no listed killer reaches it; looking for tests that do")
        others = reaching(campaign, prepare.of_mutant(root, mutant), exclude=wanted)
        return ask(campaign, mutant, others, wanted) if others else found


def reaching(campaign: Campaign, fault: Fault, exclude: Sequence[str]) -> list[str]:
    """Tests that execute a changed line, as they come in the suite; it is searched until there are enough."""
    found: list[str] = []
    suite = [test for test in campaign.whole_suite() if test not in exclude][:SEARCH_MAX]
    for batch in batches(suite):
        reply = campaign.ask(fault, campaign.reference, batch)
        seen = observations(reply, campaign.reference, "widened", batch)
        found += [test for test in batch if seen[test].get("reached")]
        if len(found) >= TESTS_MAX:
            break
    return found[:TESTS_MAX]
