"""A whole sweep: candidates, a trace of the tests, judgements, and proof that the instrument works.

The trace is one run of every test without a fault; it says which lines each test executes and what it costs.
A candidate meets only the tests that execute its lines, the cheapest first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...exit_codes import ExitCode
from ..anchor import definitions, parse
from ..campaign import NOTHING, Campaign, passed
from ..decide import Finding, ending
from ..errors import InputRefused, InstrumentBroken
from ..inputs import versions
from ..matrix import Place, meets
from ..observe import observations
from ..prepare import Fault, make_fault
from ..servers import Servers
from ..serving import read_source
from ..settings import Settings
from ..verdict import Reading, read
from . import borrowed, tensors
from .changes import Candidate, candidates
from .judging import Bucket, Judged, judge

NAME = "sweep.json"
# Tests that share the fork of a trace.
SHARE = 100


@dataclass(frozen=True)
class Source:
    """One swept file: its text and what operators make of it."""

    file: str
    text: str
    made: tuple[Candidate, ...]


@dataclass
class Trace:
    """Per test without any fault: executed lines of the swept files and seconds; and which tests were left out."""

    lines: dict[str, frozenset[Place]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass
class Swept:
    """The results in file order, the trace, what is wrong with the instrument, and CPU seconds by way of judging."""

    results: list[tuple[Candidate, Judged, int]]
    trace: Trace
    broken: list[str]
    unchanged: int
    spent: Mapping[str, Mapping[str, float]]

    @property
    def findings(self) -> list[Finding]:
        """One finding for each candidate that is not dead, and for each control that failed."""
        found = [Finding(ExitCode.INSTRUMENT, sentence) for sentence in self.broken]
        if not self.results:
            found.append(Finding(ExitCode.ABSENT, "no operator changes anything there: nothing was judged"))
        return found + [
            Finding(judged.bucket.exit_code, f"{made.id}: {judged.bucket}: {judged.reason}")
            for made, judged, _ in self.results
            if judged.bucket.exit_code is not ExitCode.OK
        ]

    def as_data(self, sources: Sequence[Source]) -> dict[str, Any]:
        """The form of sweep.json."""
        return {
            "versions": {**versions(), "mutmut": borrowed.VERSION},
            "files": {source.file: hashlib.sha256(source.text.encode()).hexdigest() for source in sources},
            "left_out": self.trace.left_out,
            "broken": self.broken,
            "candidates": [
                {
                    "id": made.id, "file": made.file, "scope": made.scope, "line": made.line,
                    "operator": made.change.operator, "before": made.change.before, "after": made.change.after,
                    "verdict": judged.bucket.value, "reason": judged.reason, "test": judged.test,
                    "message": judged.message, "tests": reaching,
                }
                for made, judged, reaching in self.results
            ],
        }  # fmt: skip


def read_sources(root: Path, settings: Settings, paths: Sequence[str]) -> list[Source]:
    """The files below some paths with their candidates; raises InputRefused for what cannot be swept."""
    borrowed.demand()
    result = []
    for file in _files(root, settings, paths):
        text = read_source(str(root / file))
        try:
            made = candidates(file, text, [*borrowed.changes(file, text), *tensors.changes(text)])
        except SyntaxError as error:
            raise InputRefused([f"{file}: is not valid Python: line {error.lineno}: {error.msg}"]) from None
        result.append(Source(file, text, tuple(made)))
    return result


def _files(root: Path, settings: Settings, paths: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    problems = []
    for given in paths:
        path = (root / given).resolve()
        if not path.exists() or not path.is_relative_to(root.resolve()):
            problems.append(f"{given}: there is no such file or folder in this project")
            continue
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        if not files or (path.is_file() and path.suffix != ".py"):
            problems.append(f"{given}: holds no Python source")
        names = [file.relative_to(root.resolve()).as_posix() for file in files]
        found.update(dict.fromkeys(name for name in names if not _is_test(settings, name)))
        if names and all(_is_test(settings, name) for name in names):
            problems.append(f"{given}: is a test; sweep the code that it looks at")
    if problems:
        raise InputRefused(problems)
    return list(found)


def _is_test(settings: Settings, file: str) -> bool:
    name = file.rpartition("/")[2]
    below = any(tree != "." and file.startswith(f"{tree.rstrip('/')}/") for tree in settings.tests)
    return below or name == "conftest.py" or name.startswith("test_") or name.endswith("_test.py")


def sweep(
    root: Path,
    settings: Settings,
    sources: Sequence[Source],
    tests: Sequence[str],
    only: Sequence[str],
    jobs: int,
    tell: Callable[[str], None],
) -> Swept:
    """Judge all candidates of these files, or only some; raises InstrumentBroken when tests are red without any."""
    todo = [(source, made) for source in sources for made in source.made if not only or made.id in only]
    with Servers(root, settings, jobs, [source.file for source in sources]) as servers:
        campaign = Campaign(root, settings, servers, jobs, tell)
        trace = _prepare(campaign, sources, tests or settings.suite or settings.tests)
        broken = [told for source in sources if source.made for told in _nulls(campaign, source, trace)]
        faults = [make_fault({source.file: (source.text, made.apply(source.text))}) for source, made in todo]
        work = [
            (made, fault) for (_, made), fault in zip(todo, faults, strict=True) if fault.bytecode_differs
        ]
        order = sorted(trace.lines, key=lambda test: (trace.seconds[test], test))

        def one(item: tuple[Candidate, Fault]) -> tuple[Candidate, Judged, int]:
            made, fault = item
            reaching = [test for test in order if meets(fault, trace.lines[test])]
            judged = judge(campaign, fault, reaching)
            campaign.tell(f"{made.id}: {judged.bucket}")
            return made, judged, len(reaching)

        results = campaign.each(one, work)
        broken += _unheard(results) + _red_again(campaign, list(trace.lines))
    return Swept(results, trace, broken, len(todo) - len(work), campaign.spent)


def _prepare(campaign: Campaign, sources: Sequence[Source], paths: Sequence[str]) -> Trace:
    servers = campaign.servers
    learned = servers.list_tests(paths)
    if learned["error"] or learned["collect_errors"] or not learned["items"]:
        told = learned["error"] or "; ".join(each["message"] for each in learned["collect_errors"])
        told = told or "; ".join(learned["not_found"]) or "there are none"
        raise InstrumentBroken(
            f"the tests in {', '.join(paths)} cannot be collected without any mutant: {told}"
        )
    servers.preload(learned)
    servers.fork(paths, [source.file for source in sources])
    return _traced(campaign, sources, learned["items"])


def _traced(campaign: Campaign, sources: Sequence[Source], tests: Sequence[str]) -> Trace:
    """Run every test without a fault; a red one gets a fork of its own before it counts as red."""
    names = {
        source.file: [name for name, _ in definitions(parse(source.text))]
        for source in sources
        if source.made
    }
    mode = campaign.reference if campaign.servers.swap_refused else "swap"
    parts = [list(tests[low : low + SHARE]) for low in range(0, len(tests), SHARE)]
    trace = Trace()
    red: dict[str, str] = {}

    def note(part: list[str], way: str) -> list[str]:
        reply = campaign.ask(NOTHING, way, part, mapped=names)
        seen = observations(reply, way, "baseline", part)
        answer = reply.get("answer") or {}
        for result in answer.get("results", ()):
            if passed(seen[result["node"]]):
                trace.lines[result["node"]] = frozenset((f, name, line) for f, name, line in result["lines"])
                trace.seconds[result["node"]] = campaign.seconds[result["node"]] = result["seconds"]
        for test in part:
            if test not in trace.lines and _was_skipped(seen[test]):
                trace.left_out[test] = ending(seen[test])
        return [test for test in part if test not in trace.lines and test not in trace.left_out]

    for again in campaign.each(lambda part: note(part, mode), parts):
        for test in again:
            if note([test], campaign.reference):
                red[test] = "is red, or gives no answer, without any mutant"
    if red:
        raise InstrumentBroken(
            f"baseline: {len(red)} of {len(tests)} tests should pass without any mutant: {next(iter(red))} "
            f"{next(iter(red.values()))}; repair it, or choose tests with --tests"
        )
    return trace


def _was_skipped(seen: Mapping[str, Any]) -> bool:
    """Skipped or xfailed: it says nothing with a fault either."""
    phases = seen.get("phases", ())
    return seen["end"] == "answered" and any(p["outcome"] == "skipped" or p["xfail"] for p in phases)


def _nulls(campaign: Campaign, source: Source, trace: Trace) -> list[str]:
    """The file unchanged, in each way of judging: it must be executed, and every test that enters it must pass."""
    entered: dict[str, int] = {}
    for lines in trace.lines.values():
        for name in {name for file, name, _ in lines if file == source.file}:
            entered[name] = entered.get(name, 0) + 1
    known = {name for name, _ in definitions(parse(source.text))}
    function = max((n for n in entered if n in known), key=lambda n: (entered[n], n), default=None)
    if function is None:
        # Nobody enters the file: every candidate in it is not-reached, and nothing is judged.
        return []
    tests = [t for t, lines in trace.lines.items() if any(f == source.file for f, _, _ in lines)]
    fault = Fault(
        {source.file: source.text},
        {source.file: ((function, 0),)},
        swappable=True,
        null={source.file: function},
    )
    ways = [campaign.reference, *([] if campaign.servers.swap_refused else ["swap"])]
    found = []
    for way in ways:
        reply = campaign.ask(fault, way, tests, together=True)
        if reply["end"] == "answered" and reply["answer"]["kind"] == "refused":
            continue
        seen = observations(reply, way, "null", tests)
        bad = {t: r for t in tests if (r := read(seen[t], fault.sources)).reading is not Reading.PASSED}
        if bad:
            test, result = next(iter(bad.items()))
            found.append(
                f"null of {source.file} by {way}: {test} should pass, {result.reading} {result.note}"
            )
        elif not any(seen[test]["reached"] for test in tests):
            found.append(f"null of {source.file} by {way}: no test executed {function}")
    return found


def _unheard(results: Sequence[tuple[Candidate, Judged, int]]) -> list[str]:
    """A file of which nothing at all was killed: nothing shows that these tests could see a fault in it."""
    judged = {made.file for made, _, reaching in results if reaching}
    heard = {made.file for made, verdict, _ in results if verdict.bucket is Bucket.KILLED}
    return [
        f"{file}: no assertion killed anything, so nothing shows that one can"
        for file in sorted(judged - heard)
    ]


def _red_again(campaign: Campaign, tests: list[str]) -> list[str]:
    """The tests once more without any fault: what the sweep left behind must not have made one red."""
    parts = [tests[low : low + SHARE] for low in range(0, len(tests), SHARE)]
    mode = campaign.reference if campaign.servers.swap_refused else "swap"

    def red(part: list[str]) -> list[str]:
        seen = observations(campaign.ask(NOTHING, mode, part), mode, "baseline", part)
        return [test for test in part if not passed(seen[test])]

    suspects = [test for part in campaign.each(red, parts) for test in part]
    found = [test for test in suspects if not campaign.vouches_for(test)]
    return [f"baseline after: {test} is red without any mutant" for test in found]
