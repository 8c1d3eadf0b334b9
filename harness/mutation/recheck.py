"""Judging in rounds: after each, the killers must still be green without any mutant.

A killer that has gone red takes the verdicts since the last clean check with it: they are judged again,
and if it stays red they are unknown. What a machine did meanwhile (a full disk, a stale file outside the
tree) must not pass for kills.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .campaign import Campaign, Record, passed
from .catalogue import Mutant
from .verdict import rule

Judge = Callable[[Mutant], Record]
Forget = Callable[[Sequence[str]], None]


def in_rounds(
    campaign: Campaign, mutants: Sequence[Mutant], settled: Judge, again: Judge, forget: Forget
) -> list[Record]:
    """Judge all; `settled` may answer from a journal, `again` may not, `forget` takes settled ids back."""
    every = campaign.settings.recheck_every
    rounds = [mutants[low : low + every] for low in range(0, len(mutants), every)]
    records: list[Record] = []
    for number, part in enumerate(rounds, start=1):
        found = campaign.each(settled, part)
        # The last round is followed by the whole baseline, but that comes too late to judge again.
        red = clean_check(campaign, part)
        if red:
            names = [mutant.id for mutant in part]
            campaign.rolled_back += names
            campaign.tell(f"round {number}: {next(iter(red))} is red without any mutant; judging again")
            forget(names)
            found = campaign.each(again, part)
            red = clean_check(campaign, part)
            if red:
                forget(names)
            found = [_doubted(record, red) for record in found] if red else found
        records += found
    return records


def clean_check(campaign: Campaign, part: Sequence[Mutant]) -> Record:
    """The killers of these entries without any mutant; returns those that are red, also alone."""
    killers = list(dict.fromkeys(test for mutant in part for test in mutant.killed_by))
    quick = campaign.reference if campaign.servers.swap_refused else "swap"
    seen = campaign.baseline([], killers, quick)
    suspects = [test for test, run in seen.items() if not passed(run)]
    alone = campaign.baseline(suspects, [], campaign.reference)
    return {test: run for test, run in sorted(alone.items()) if not passed(run)}


def _doubted(record: Record, red: Record) -> Record:
    doubted = {**record, "doubt": red}
    ruling = rule(doubted)
    return {**doubted, "verdict": ruling.verdict.value, "reason": ruling.reason, "killed": []}
