"""A panel: a fixed list of tests asked of every entry, all of them in one fork. Which turn red?

One judgement each and nothing confirmed, so an answer is no verdict: verdicts come from the named killers alone.
A panel serves questions about tests ("what does this kind of data see?") that need every entry's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import prepare
from .campaign import Campaign, passed
from .catalogue import Mutant
from .decide import ending
from .errors import InputRefused, InstrumentBroken
from .observe import first_message, observations
from .servers import Servers
from .settings import Settings
from .verdict import Reading, read


@dataclass(frozen=True)
class Answer:
    """How one test ended on one entry, and the first line of its message if it was red."""

    reading: Reading
    told: str

    @property
    def red(self) -> bool:
        """Whether an assertion of the test failed after the changed lines ran."""
        return self.reading is Reading.KILLED

    @property
    def silent(self) -> bool:
        """Whether the test came to no answer: a crash, a time-out, a mutant that was not applied."""
        return self.reading not in (Reading.KILLED, Reading.PASSED)


Answers = dict[str, dict[str, Answer]]


def ask(
    root: Path,
    settings: Settings,
    wanted: Mapping[str, Sequence[str]],
    mutants: Sequence[Mutant],
    jobs: int,
    tell: Callable[[str], None] = lambda text: None,
) -> Answers:
    """Ask each entry the tests that `wanted` lists for its id; {id: {test: answer}}.

    Raises InputRefused for a test that is not collected, InstrumentBroken if one is red without any mutant.
    """
    tests = list(dict.fromkeys(test for mutant in mutants for test in wanted[mutant.id]))
    if not tests:
        return {mutant.id: {} for mutant in mutants}
    with Servers(root, settings, jobs, [file for mutant in mutants for file in mutant.files]) as servers:
        campaign = Campaign(root, settings, servers, jobs, tell)
        learned = servers.list_tests(tests, tests[-1:])
        lost = [test for test in tests if test not in learned["items"]]
        if lost:
            raise InputRefused([f"'{test}' is not collected; a panel asks tests that exist" for test in lost])
        servers.preload(learned)
        servers.fork(tests, sorted({file for mutant in mutants for file in mutant.files}))
        tell(f"baseline: {len(tests)} tests without any mutant")
        red = {
            test: ending(seen)
            for test, seen in campaign.baseline([], tests, campaign.reference).items()
            if not passed(seen)
        }
        if red:
            name, how = next(iter(red.items()))
            raise InstrumentBroken(
                f"{len(red)} of {len(tests)} tests are not green without any mutant: {name} {how}"
            )
        found = campaign.each(lambda mutant: _asked(campaign, mutant, list(wanted[mutant.id])), mutants)
    return {mutant.id: answers for mutant, answers in zip(mutants, found, strict=True)}


def _asked(campaign: Campaign, mutant: Mutant, tests: list[str]) -> dict[str, Answer]:
    fault = prepare.of_mutant(campaign.root, mutant)
    mode = campaign.reference if campaign.servers.swap_refused or not fault.swappable else "swap"
    reply: dict[str, Any] = campaign.ask(fault, mode, tests, together=True)
    if reply["end"] == "answered" and reply["answer"]["kind"] == "refused":
        mode = campaign.reference
        reply = campaign.ask(fault, mode, tests, together=True)
    answers = {}
    for test, seen in observations(reply, mode, "panel", tests).items():
        answers[test] = Answer(read(seen, fault.sources).reading, first_message(reply, test))
    campaign.tell(f"{mutant.id}: {sum(a.red for a in answers.values())} of {len(tests)} red")
    return answers
