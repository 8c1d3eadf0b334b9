"""One run of the catalogue: baseline, judgements, controls, baseline again.

Control flow lives here; what a result means is decided by the pure functions of `verdict`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import prepare
from .catalogue import Mutant
from .observe import first_message, observations
from .prepare import Fault
from .servers import Servers
from .settings import Settings
from .verdict import Reading, needs_another, read, rule, unserved

BATCH = 25
# What a test is taken to need before it was measured.
UNMEASURED_S = 0.2
LEFT_MAX = 3
# What a test may need more while nothing is known of it: without a fault, or with a fresh interpreter's imports.
FRESH_S = 60.0
NOTHING = Fault(overlay={}, watch={}, swappable=False)
Record = dict[str, Any]


class Turns:
    """Judgements share the machine; a lonely one has it to itself."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._running = 0
        self._lonely = False

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Run beside others."""
        with self._condition:
            self._condition.wait_for(lambda: not self._lonely)
            self._running += 1
        try:
            yield
        finally:
            with self._condition:
                self._running -= 1
                self._condition.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Run when nothing else does; newcomers wait."""
        with self._condition:
            self._condition.wait_for(lambda: not self._lonely)
            self._lonely = True
            self._condition.wait_for(lambda: self._running == 0)
        try:
            yield
        finally:
            with self._condition:
                self._lonely = False
                self._condition.notify_all()


@dataclass
class Campaign:
    """The state of a run; `tell` is called with short facts for a progress display."""

    root: Path
    settings: Settings
    servers: Servers
    jobs: int
    tell: Callable[[str], None] = lambda text: None
    seconds: dict[str, float] = field(default_factory=dict)
    seconds_by_entry: dict[str, float] = field(default_factory=dict)
    messages: dict[str, dict[str, str]] = field(default_factory=dict)
    untrapped: dict[tuple[str, str], str] = field(default_factory=dict)
    vouched: dict[str, bool] = field(default_factory=dict)
    suite: list[str] | None = None
    rolled_back: list[str] = field(default_factory=list)
    spent: dict[str, dict[str, float]] = field(default_factory=dict)
    # By entry: other tests than its killers that ran the changed lines, and why nobody saw the fault.
    reaching: dict[str, list[str]] = field(default_factory=dict)
    why: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.turns = Turns()

    @property
    def reference(self) -> str:
        """The way of judging that decides: reimport, or spawn where a fork cannot be right."""
        spawn = self.servers.fork_refused or self.settings.isolation == "spawn"
        return "spawn" if spawn else "reimport"

    def each(self, action: Callable[[Any], Any], things: Sequence[Any]) -> list[Any]:
        """Apply an action to all things, `jobs` at a time, in order."""
        if self.jobs == 1 or len(things) < 2:
            return [action(thing) for thing in things]
        pool = ThreadPoolExecutor(self.jobs)
        try:
            return list(pool.map(action, things))
        finally:
            # After an error or an interrupt, what has not begun must not begin; what is under way ends
            # when the servers' sockets are shut.
            pool.shutdown(wait=False, cancel_futures=True)

    def wall(self, tests: Sequence[str]) -> float:
        """The wall limit of a judgement, from what the tests took in the baseline."""
        limits = self.settings.limits
        return limits.wall_s + limits.wall_factor * sum(
            self.seconds.get(test, UNMEASURED_S) for test in tests
        )

    def ask(
        self,
        fault: Fault,
        mode: str,
        tests: list[str],
        alone: bool = False,
        mapped: Mapping[str, list[str]] | None = None,
        together: bool = False,
        probe: Mapping[str, Any] | None = None,
        stop: int = 0,
        patience_s: float | None = None,
    ) -> dict[str, Any]:
        """One fork: the slot's reply. `stop`: end at a kill, or after so many reds; `patience_s`: another wall limit."""
        wall = self.wall(tests) if patience_s is None else patience_s
        if (mode == "spawn" or fault is NOTHING) and not all(test in self.seconds for test in tests):
            wall += FRESH_S
        job = prepare.job(fault, mode, tests, wall, self.settings.limits)
        job["map"], job["together"], job["stop"] = dict(mapped or {}), together, stop
        job["trace_import"] = fault.trace_import or self._ran_early(fault)
        if probe is not None:
            job["probe"] = dict(probe)
        with self.turns.alone() if alone else self.turns.shared():
            reply = self.servers.judge(job)
        spent = self.spent.setdefault(mode, {"forks": 0, "tests": 0, "cpu_s": 0.0})
        spent["forks"] += 1
        spent["tests"] += len(tests)
        spent["cpu_s"] += reply.get("cpu_s", 0.0)
        return reply

    def ask_again(self, fault: Fault, mode: str, tests: list[str]) -> dict[str, Any]:
        """Like `ask`, but what hits its limit beside others is asked again alone: that may be the machine's load."""
        reply = self.ask(fault, mode, tests)
        return self.ask(fault, mode, tests, alone=True) if reply["end"] == "timeout" else reply

    def _ran_early(self, fault: Fault) -> bool:
        """Whether watched code runs at import or collection already; tracing that costs, so only then."""
        early = self.servers.early
        watched = {(file, name) for file, pairs in fault.watch.items() for name, _ in pairs}
        return bool(watched) and (early is None or bool(watched & early))

    def baseline(self, killers: Sequence[str], greens: Sequence[str], mode: str) -> Record:
        """Run tests without any fault: each killer in a fork of its own, the others in batches."""
        single = [test for test in greens if test not in killers]
        groups = [[test] for test in killers] + batches(single)
        found: Record = {}
        for seen in self.each(lambda group: self._plain(group, mode), groups):
            found.update(seen)
        self.vouched.update((test, passed(seen)) for test, seen in found.items())
        return found

    def vouches_for(self, test: str) -> bool:
        """Whether a test passes without any fault, also one that no picked entry names."""
        if test not in self.vouched:
            self.baseline([test], [], self.reference)
        return self.vouched[test]

    def _plain(self, group: list[str], mode: str) -> dict[str, dict[str, Any]]:
        reply = (self.ask if len(group) > 1 else self.ask_again)(NOTHING, mode, group)
        for test in group:
            spent = reply.get("seconds", 0.0) / len(group)
            self.seconds[test] = max(self.seconds.get(test, 0.0), spent)
        found = observations(reply, mode, "baseline", group)
        if len(group) > 1:
            # A red one may owe it to its neighbours; alone, it speaks for itself.
            for test in [test for test, seen in found.items() if not passed(seen)]:
                found.update(self._plain([test], mode))
        return found

    def judge(self, mutant: Mutant, green: Sequence[str]) -> Record:
        """Judge one entry completely and return its record for the evidence."""
        begun = time.monotonic()
        fault = prepare.of_mutant(self.root, mutant)
        mode, why = self.mode(fault)
        record: Record = {
            "id": mutant.id,
            "theme": mutant.theme,
            "kind": mutant.kind,
            "expected": mutant.expected,
            "dies_by": mutant.dies_by,
            "twin_of": mutant.twin_of,
            "sources": fault.sources,
            "bytecode_differs": fault.bytecode_differs,
            "mode": mode,
            "why_reimport": why,
            "killers": {},
            "green": {},
            "widened": None,
            "doubt": {},
        }
        # In the order in which evidence is read back: what is derived from it then must come out the same.
        record["killers"] = {test: [] for test in sorted(mutant.killed_by)}
        if fault.bytecode_differs:
            for test in record["killers"]:
                record["killers"][test] = self._settle(fault, mutant, test, record)
            record["green"] = self._greens(fault, sorted(green))
            if rule(record).needs_suite:
                record["widened"] = self._widen(fault, mutant)
        ruling = rule(record)
        record.update(verdict=ruling.verdict.value, reason=ruling.reason, killed=list(ruling.killed))
        self.seconds_by_entry[mutant.id] = round(time.monotonic() - begun, 3)
        self.tell(f"{mutant.id}: {ruling.verdict}")
        return record

    def mode(self, fault: Fault) -> tuple[str, str | None]:
        """The way of judging a fault, and why it is not by swap."""
        if self.servers.swap_refused:
            return self.reference, self.servers.swap_refused
        if not fault.swappable:
            return self.reference, fault.why_reimport or "no bytecode differs"
        untrapped = [self.untrapped[f] for f in fault.functions if f in self.untrapped]
        return (self.reference, untrapped[0]) if untrapped else ("swap", None)

    def _settle(self, fault: Fault, mutant: Mutant, test: str, record: Record) -> list[dict[str, Any]]:
        """Run one killer until its fate is settled: judge, confirm, and alone after a timeout."""
        attempts: list[dict[str, Any]] = []
        while (role := needs_another(attempts, fault.sources, mutant.dies_by)) is not None:
            mode = "swap" if record["mode"] == "swap" and not attempts else self.reference
            reply = self.ask(fault, mode, [test], alone=role == "alone")
            if reply["end"] == "answered" and reply["answer"]["kind"] == "refused":
                record.update(mode=self.reference, why_reimport=reply["answer"]["why"])
                continue
            attempts.append(observations(reply, mode, role, [test])[test])
            told = first_message(reply, test)
            if told:
                self.messages.setdefault(mutant.id, {}).setdefault(test, told)
        return attempts

    def _greens(self, fault: Fault, green: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """must_stay_green tests share a fork; a red among them is judged again alone."""
        runs: dict[str, list[dict[str, Any]]] = {}
        for batch in batches(green):
            reply = self.ask(fault, self.reference, batch)
            for test, seen in observations(reply, self.reference, "green", batch).items():
                runs[test] = [seen]
                if read(seen, fault.sources).reading is not Reading.PASSED:
                    again = self.ask(fault, self.reference, [test], alone=True)
                    runs[test] += [observations(again, self.reference, "green-alone", [test])[test]]
        return runs

    def _widen(self, fault: Fault, mutant: Mutant) -> Record:
        """Run the mutant against the rest of the suite; a red counts if it is red alone and green without."""
        suite = [test for test in self.whole_suite() if test not in mutant.killed_by]
        runs: dict[str, dict[str, Any]] = {}
        for seen in self.each(lambda batch: self._together(fault, batch), batches(suite)):
            runs.update(seen)
        suspects = [t for t, seen in runs.items() if read(seen, fault.sources).reading is not Reading.PASSED]
        judged = zip(suspects, self.each(lambda test: self._really_red(fault, test), suspects), strict=True)
        red = {test: seen for test, seen in sorted(judged) if seen is not None}
        reaching = {test for test, seen in runs.items() if seen.get("reached")} | set(red)
        self.reaching[mutant.id] = sorted(reaching)
        left = sorted(test for test, seen in runs.items() if unserved(seen))
        return {"suite": len(suite), "reaching": len(reaching), "red": red, "left": left[:LEFT_MAX]}

    def _together(self, fault: Fault, batch: list[str]) -> dict[str, dict[str, Any]]:
        return observations(self.ask(fault, self.reference, batch), self.reference, "widened", batch)

    def _really_red(self, fault: Fault, test: str) -> dict[str, Any] | None:
        # Measures the test too: without that, a slow one would hang in no more than what a quick one may take.
        if not passed(self._plain([test], self.reference)[test]):
            return None
        reply = self.ask_again(fault, self.reference, [test])
        seen = observations(reply, self.reference, "widened", [test])[test]
        quiet = (Reading.PASSED, Reading.NOT_APPLIED, Reading.RED_UNREACHED)
        return None if read(seen, fault.sources).reading in quiet else seen

    def whole_suite(self) -> list[str]:
        """Every test of the project, collected once when it is first needed."""
        if self.suite is None:
            with self.turns.shared():
                self.suite = self.tests_of(self.settings.suite)
        return self.suite

    def tests_of(self, paths: Sequence[str]) -> list[str]:
        """Every test below some paths, or of the whole project when there are none."""
        return sorted(self.servers.list_tests(paths or self.settings.tests)["items"])


def batches(tests: Sequence[str]) -> list[list[str]]:
    """Cut a list into batches that share a fork."""
    return [list(tests[low : low + BATCH]) for low in range(0, len(tests), BATCH)]


def passed(seen: Mapping[str, Any]) -> bool:
    """True when a test without any fault was collected and passed in every phase."""
    return (
        seen["end"] == "answered"
        and not seen["broken"]
        and seen["collected"]
        and all(p["outcome"] == "passed" and not p["xfail"] for p in seen["phases"])
        and any(p["phase"] == "call" for p in seen["phases"])
    )
