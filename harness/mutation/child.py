"""One judgement in a fork of its own: apply the mutant, run the tests, answer with facts.

The answer goes over a pipe with a nonce; the exit status proves nothing. A `started` message comes
before the tests run, so that a silent death can be told from one that never began.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

from . import bounds, elsewhere, live, planted, serving, wire
from .codetree import Pair, Plan, compile_source, is_function, make_plan, nested
from .diagnosis.recorder import Recorder
from .facts import leaves
from .reach import Mapper, Reach, as_watch
from .sitting import Sitting, first_line, quiet

CANNOT_ANSWER = 97


@dataclass
class Context:
    """What a server hands to its children: the project, its sources, and (swap) the collected session."""

    root: str
    extra: list[str]
    sources: serving.Sources
    boot: dict[str, Any]
    sitting: Sitting | None = None
    index: live.Live | None = None

    def real(self, file: str) -> str:
        """The real path of a file named relative to the root."""
        return os.path.realpath(os.path.join(self.root, file))


@dataclass
class Tools:
    """What looks on while tests run: executed lines noted, and the probe of a diagnosis."""

    mapper: Mapper
    probe: Recorder | None


class Line:
    """The child's end of the pipe."""

    def __init__(self, fd: int, nonce: str) -> None:
        self._fd, self._nonce = fd, nonce

    def say(self, kind: str, **facts: Any) -> None:
        """Send one message; a closed pipe ends the child with a status of its own."""
        try:
            wire.write_all(self._fd, wire.pack({"nonce": self._nonce, "kind": kind, **facts}))
        except OSError:
            os._exit(CANNOT_ANSWER)


def judge(context: Context, job: dict[str, Any], fd: int, basetemp: str) -> None:
    """Do the job and answer; every way of failing is an answer too."""
    quiet()
    limits = job["limits"]
    bounds.limit_self(limits["memory_mib"], limits["output_mib"], int(limits["wall_s"]) + 2)
    if job["mode"] == "spawn":
        _become_another(context, job, fd, basetemp)
    answer(context, job, Line(fd, job["nonce"]), basetemp)


def answer(context: Context, job: dict[str, Any], line: Line, basetemp: str) -> None:
    """Apply the mutant, run the tests, and say what happened."""
    files = {context.real(file): file for file in job["overlay"]}
    overlay = {path: job["overlay"][file] for path, file in files.items()}
    watch = {path: job["watch"].get(file, []) for path, file in files.items()}
    guests = elsewhere.Guests(f"{basetemp}-guests", context.boot, overlay, watch)
    _note_leaving()
    bounds.spare_everyone()
    trap = planted.plant()
    known = set(sys.modules)
    mapper = Mapper({context.real(file): set(names) for file, names in job.get("map", {}).items()})
    mapper.start()
    tools = Tools(mapper, _probe(context, job, basetemp))
    try:
        done = (_swap if job["mode"] == "swap" else _reimport)(context, job, line, basetemp, guests, tools)
    except live.SwapRefused as refusal:
        line.say("refused", why=str(refusal))
        return
    mapper.stop()
    named = {context.real(file): file for file in job.get("map", {})}
    for result in done["results"]:
        result["lines"] = sorted((named[path], name, line) for path, name, line in result["lines"])
    lines = sorted((named[path], name, line) for path, name, line in mapper.lines)
    late = third_party(context.sources.project, known)
    for path, value in guests.served().items():
        if job["mode"] != "swap" and done["applied"].get(files.get(path, "")) is None and path in files:
            done["applied"][files[path]] = value
    recording = tools.probe.told() if tools.probe is not None else None
    unserved = [file for file, value in done["applied"].items() if value is None]
    copies = context.sources.project.copies(unserved) if job["mode"] != "swap" else {}
    line.say("done", trap=trap.hit, late=late, lines=lines, probe=recording, copies=copies, **done)


def _probe(context: Context, job: dict[str, Any], basetemp: str) -> Recorder | None:
    """What the job asks to be recorded beside the outcome, if anything."""
    if job.get("probe") is None:
        return None
    watch = as_watch({context.real(f): lines for f, lines in job["watch"].items()})
    return Recorder(job["probe"], context.sources.project, watch, basetemp)


def _become_another(context: Context, job: dict[str, Any], fd: int, basetemp: str) -> None:
    """Spawn: this process becomes a fresh interpreter; limits, group and death with the parent stay."""
    note = f"{basetemp}-job"
    with open(note, "w", encoding="utf-8") as handle:
        json.dump({"boot": context.boot, "job": job, "fd": fd, "basetemp": basetemp}, handle)
    os.set_inheritable(fd, True)
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": os.path.join(context.boot["work"], "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "spawn.py")
    os.execve(sys.executable, [sys.executable, "-P", script, note], environment)


def third_party(project: serving.Project, known: set[str]) -> list[str]:
    """Names of the modules outside the project that were imported since `known`, oldest first."""
    new = [(name, module) for name, module in list(sys.modules.items()) if name not in known]
    files = [(name, getattr(module, "__file__", None)) for name, module in new]
    return [name for name, file in files if isinstance(file, str) and project.relative(file) is None]


def _reimport(
    context: Context,
    job: dict[str, Any],
    line: Line,
    basetemp: str,
    guests: elsewhere.Guests,
    tools: Tools,
) -> dict[str, Any]:
    sources = context.sources
    sources.put({context.real(file): text for file, text in job["overlay"].items()})
    watch = as_watch({context.real(f): lines for f, lines in job["watch"].items()})
    early: Reach | Recorder = Reach(watch if job["trace_import"] else {}, set())
    if tools.probe is not None and (job["trace_import"] or job["probe"]["from_import"]):
        early = tools.probe
    sitting = Sitting(sources.project, job["nodes"], basetemp)
    line.say("started")
    broken = None
    early.start()
    try:
        sitting.configure(context.root, context.extra)
        sitting.collect()
    except BaseException as error:  # noqa: BLE001 - a mutant may raise anything while it is imported
        broken = {"message": first_line(error), "leaves": leaves(error, sources.project)}
    early.stop()
    results = [] if broken else _run(sitting, job, watch, set(), early.hit, guests, tools)
    return {
        "applied": {f: sources.served.get(context.real(f)) for f in job["overlay"]},
        "functions": 0,
        "broken": broken,
        "collect_errors": sitting.recorder.collect_errors,
        "not_found": sitting.not_found,
        "results": results,
    }


def _swap(
    context: Context,
    job: dict[str, Any],
    line: Line,
    basetemp: str,
    guests: elsewhere.Guests,
    tools: Tools,
) -> dict[str, Any]:
    sitting, index = context.sitting, context.index
    if sitting is None or index is None:
        raise live.SwapRefused("this process has not collected")
    sitting.restart_capture()
    sitting.use_basetemp(basetemp)
    done = live.Swapped()
    plans = {f: _plan(context, job, f, text) for f, text in job["overlay"].items()}
    for file, plan in plans.items():
        live.check(index, context.real(file), plan)
    context.sources.put({context.real(f): text for f, text in job["overlay"].items()})
    for file, plan in plans.items():
        live.swap(index, context.real(file), plan, done)
    watch = as_watch({context.real(f): lines for f, lines in job["watch"].items()})
    line.say("started")
    results = _run(sitting, job, watch, done.old, False, guests, tools)
    return {
        "applied": {f: serving.digest(t) if done.functions else None for f, t in job["overlay"].items()},
        "functions": done.functions,
        "broken": None,
        "collect_errors": [],
        "not_found": [],
        "results": results,
    }


def _plan(context: Context, job: dict[str, Any], file: str, text: str) -> Plan:
    path = context.real(file)
    old = context.sources.compiled.get(path)
    if old is None:
        raise live.SwapRefused(f"{file} was not imported by the collected session")
    new = compile_source(text, old.co_filename)
    if file in job.get("null", {}):
        return null_plan(old, new, job["null"][file])
    return make_plan(old, new)


def null_plan(old: Any, new: Any, name: str) -> Plan:
    """A plan that swaps the function `name`, what holds it and what it holds, though nothing differs."""
    pairs: list[Pair] = []

    def visit(before: Any, after: Any, inside: bool, outermost: bool) -> bool:
        mine = is_function(before)
        chosen = inside or before.co_qualname == name
        below = [
            visit(one, two, chosen and mine, outermost and not mine)
            for one, two in zip(nested(before), nested(after), strict=True)
        ]
        if mine and (chosen or any(below)):
            pairs.append(Pair(before, after, chosen, outermost))
        return mine and (chosen or any(below))

    visit(old, new, False, True)
    return Plan(tuple(pairs), (), None)


def _run(
    sitting: Sitting,
    job: dict[str, Any],
    watch: dict[str, set[tuple[str, int]]],
    old: set[int],
    hit: bool,
    guests: elsewhere.Guests,
    tools: Tools,
) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    here = os.getpid()

    def found() -> None:
        if os.getpid() != here:
            guests.note_reach()

    # What configuring and importing did, every test of this fork has done; what a test did, it alone, so that
    # its observation is the same in any company.
    early, ever, reds, probe = set(_left), bool(_left), 0, tools.probe
    for node in job["nodes"]:
        if node not in sitting.items:
            results.append({"node": node, "collected": False, "phases": [], "reached": hit, "stale": False,
                            "left": sorted(early), "joined": False, "seconds": 0.0, "lines": []})  # fmt: skip
            continue
        _left.clear()
        reach: Reach | Recorder = Reach({} if hit else watch, old) if probe is None else probe
        reach.when_found = found
        if isinstance(reach, Recorder):
            reach.pin()
            reach.attach(sitting.config)
        else:
            reach.start()
        begun = time.perf_counter()
        phases = sitting.run(node)
        seconds = time.perf_counter() - begun
        reach.stop()
        ever |= bool(_left)
        reached = hit or reach.hit or (ever and guests.reached())
        # In a matrix one test may read what an earlier one of its fork has prepared, so reach is the fork's.
        hit = reached if job["together"] else hit
        left = early | _left
        results.append(
            {"node": node, "collected": True, "phases": phases, "reached": reached, "stale": reach.stale,
             "left": sorted(left), "joined": bool(left) and bool(guests.told()),
             "seconds": seconds, "lines": tools.mapper.take()}
        )  # fmt: skip
        reds += any(each["outcome"] == "failed" for each in phases)
        if job["stop"] and (_asserted(phases) or reds == job["stop"]):
            break
    return results


def _asserted(phases: list[dict[str, Any]]) -> bool:
    """Whether a test looks killed. Only what it looks like: `verdict` reads the facts, and says if it was."""
    leaves = [leaf for each in phases if each["phase"] == "call" for leaf in each["leaves"]]
    return bool(leaves) and all(
        leaf["frame"] in ("test", "helper") and not _DEATHS.isdisjoint(leaf["types"]) for leaf in leaves
    )


_DEATHS = {"builtins.AssertionError", "pytest.Failed"}


_left: set[str] = set()
_LEAVING = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"}


def _note_leaving() -> None:
    # Another process sees the original file and is not traced; a survivor's report must be able to say so.
    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in _LEAVING:
            _left.add(event)

    sys.addaudithook(hook)
