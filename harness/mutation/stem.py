"""The stem: the fork server's first process, run as a script by exec.

It imports third-party modules only. Reimport slots are forked from it before pytest is configured;
the collected process, parent of the swap slots, is forked from it too, so torch is imported once.
Run with `-P` and an absolute path: the project under test may have a `harness` package of its own,
so the engine is loaded here under a private name.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from typing import Any

_ALIAS = "_rowproof_engine"
# Importing and collecting a large project may take a while; a hang takes longer.
LEARN_S = 300.0
_MODULES = (
    "wire",
    "bounds",
    "serving",
    "codetree",
    "live",
    "reach",
    "facts",
    "neutral",
    "sitting",
    "planted",
    "child",
    "slot",
    "memory",
    "elsewhere",
    "diagnosis.recorder",
)


def load_engine(names: tuple[str, ...] = _MODULES) -> dict[str, Any]:
    """Load the engine's own modules under a private package name."""
    folder = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        _ALIAS, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[_ALIAS] = package
    spec.loader.exec_module(package)
    return {name: importlib.import_module(f"{_ALIAS}.{name}") for name in names}


def make_context(engine: dict[str, Any], boot: dict[str, Any]) -> Any:
    """Set up paths and the source patch, and import pytest."""
    os.chdir(boot["root"])
    sys.path[:0] = [os.path.join(boot["root"], p) for p in boot["import_paths"]]
    sys.argv = ["pytest"]
    project = engine["serving"].Project(boot["root"], boot["tests"], boot["helpers"], boot["mutated"])
    sources = engine["serving"].Sources(project)
    sources.install()
    context = engine["child"].Context(boot["root"], boot["pytest_args"], sources, boot)
    importlib.import_module("pytest")
    engine["memory"].leave_plugins_plain()
    return context


class Stem:
    """Boot, learn, preload, fork the slots, and keep watch until the engine is gone."""

    def __init__(self, ends: dict[str, Any]) -> None:
        self.engine = load_engine()
        self.parent: int = ends["parent"]
        self.control = socket.socket(fileno=ends["control"])
        self.ends: dict[str, list[int]] = {mode: ends[mode] for mode in ("reimport", "swap")}
        self.children: set[int] = set()
        # Known before the first message, so that it is removed whatever happens to the engine.
        self.work: str = ends["work"]

    def main(self) -> None:
        """Serve the engine's three requests: boot, list, and fork."""
        self.engine["bounds"].mourn(self.parent)
        self.engine["bounds"].until_bereaved(self._serve, self._clean_up)

    def _serve(self) -> None:
        os.mkdir(self.work, mode=0o700)
        # Held by this process and its children: whoever gets this lock knows that all of them are gone.
        self.alive = open(os.path.join(self.work, "alive"), "wb")  # noqa: SIM115 - for life
        fcntl.flock(self.alive, fcntl.LOCK_EX)
        while (message := self.engine["wire"].receive(self.control)) is not None:
            reply = getattr(self, f"do_{message['do']}")(message)
            self.engine["wire"].send(self.control, reply)

    def _clean_up(self) -> None:
        self.engine["bounds"].sweep()
        shutil.rmtree(self.work, ignore_errors=True)

    def do_boot(self, boot: dict[str, Any]) -> dict[str, Any]:
        """Get ready to judge: paths, the source patch, pytest."""
        self.boot = {**boot, "work": self.work}
        self.context = make_context(self.engine, self.boot)
        return {"ok": True}

    def do_list(self, message: dict[str, Any]) -> dict[str, Any]:
        """Collect in a child; also tell what it imported, so that the stem can preload it."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._apart(writer, lambda: self._learn(message))
        os.close(writer)
        return self._only_answer(reader, pid, LEARN_S)

    def do_preload(self, message: dict[str, Any]) -> dict[str, Any]:
        """Import third-party modules that a child turned out to need; some cannot be, and that is fine."""
        self.engine["memory"].import_all(message["modules"])
        self.engine["memory"].remember_tests(self.context.sources, message["rewritten"])
        self.engine["memory"].remember_distributions()
        for path in message["sources"]:
            self.context.sources.original(path, path)
        return {"threads": self.engine["bounds"].threads(), "project_modules": self._project_modules()}

    def do_fork(self, message: dict[str, Any]) -> dict[str, Any]:
        """Fork the reimport slots and the collected process with its swap slots."""
        gc.freeze()
        me = os.getpid()
        self._fork_slots("reimport", self.context, me)
        if message["why_not"] is not None:
            for fd in self.ends["swap"]:
                os.close(fd)
            return {"swap": False, "why": message["why_not"]}
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._apart(None, lambda: self._collected(message, writer, me))
        self.children.add(pid)
        os.close(writer)
        for fd in self.ends["swap"]:
            os.close(fd)
        return self._only_answer(reader, None, LEARN_S)

    def _fork_slots(self, mode: str, context: Any, parent: int) -> None:
        for index, fd in enumerate(self.ends[mode]):
            pid = os.fork()
            if pid == 0:
                self._apart(None, lambda fd=fd, index=index: self._slot(mode, fd, index, context, parent))
            self.children.add(pid)
        for fd in self.ends[mode]:
            os.close(fd)

    def _slot(self, mode: str, fd: int, index: int, context: Any, parent: int) -> None:
        # A copy left open here would hide another slot's death from the engine.
        inherited = self.ends[mode] + (self.ends["swap"] if mode == "reimport" else [])
        for other in inherited:
            if other != fd:
                os.close(other)
        judge = self.engine["child"].judge
        sock = socket.socket(fileno=fd)
        self.engine["slot"].serve(
            sock, lambda job, end, tmp: judge(context, job, end, tmp), self.work, parent
        )

    def _apart(self, writer: int | None, action: Any) -> None:
        """In a forked process: leave the control socket alone, do the action, and never return."""
        status = 1
        try:
            self.control.close()
            self.children = set()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            reply = action()
            if writer is not None:
                self.engine["wire"].write_all(writer, self.engine["wire"].pack(reply))
            status = 0
        except BaseException:  # noqa: BLE001 - a forked process must never return into the parent's code
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)

    def _only_answer(self, reader: int, pid: int | None, patience_s: float) -> dict[str, Any]:
        """Wait for one message; a child that takes too long or dies without one is said to."""
        inbox, reply, late = self.engine["wire"].Inbox(), None, False
        deadline = time.monotonic() + patience_s
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while reply is None and not late:
                ready, _, _ = select.select([pipe], [], [], max(deadline - time.monotonic(), 0))
                late = not ready
                chunk = pipe.read(1 << 16) if ready else b""
                reply = next(iter(inbox.feed(chunk)), None)
                if ready and not chunk:
                    break
        if pid is not None:
            if reply is None:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        return reply if reply is not None else {"late": patience_s} if late else {"died": True}

    def _learn(self, message: dict[str, Any]) -> dict[str, Any]:
        self.engine["bounds"].die_with_parent(os.getppid(), signal.SIGKILL)
        self.engine["sitting"].quiet()
        before = set(sys.modules)
        sources, project = self.context.sources, self.context.sources.project
        sitting = self.engine["sitting"].Sitting(project, message["args"], os.path.join(self.work, "learn"))
        error = None
        try:
            sitting.configure(self.boot["root"], self.boot["pytest_args"])
            sitting.collect()
            for node in message["run"]:
                if node in sitting.items:
                    sitting.run(node)
        except BaseException as caught:  # noqa: BLE001 - whatever importing the project raises is told
            error = self.engine["sitting"].first_line(caught)
        return {
            "items": list(sitting.items),
            "not_found": sitting.not_found,
            "collect_errors": sitting.recorder.collect_errors,
            "error": error,
            "modules": self.engine["child"].third_party(project, before),
            "sources": sources.loaded,
            "rewritten": [
                module.__file__
                for name, module in list(sys.modules.items())
                if name not in before and _is_rewritten(module) and project.relative(module.__file__)
            ],
        }

    def _project_modules(self) -> list[str]:
        project = self.context.sources.project
        return [
            name
            for name, module in list(sys.modules.items())
            if isinstance(file := getattr(module, "__file__", None), str)
            and project.relative(file) is not None
            and not name.startswith((_ALIAS, "__main__", "__mp_main__"))
        ]

    def _collected(self, message: dict[str, Any], writer: int, parent: int) -> dict[str, Any]:
        """Collect once, index the live functions, and fork the swap slots."""
        self.engine["bounds"].mourn(parent)
        targets = {self.context.real(file): file for file in message["targets"]}
        report: dict[str, Any] = {"swap": True, "why": None, "early": None}
        try:
            ran = self._collect_once(message, targets)
            report["early"] = sorted({(targets[path], name) for path, name, _ in ran})
        except BaseException as error:  # noqa: BLE001 - without a collected session everything is reimported
            report.update(swap=False, why=self.engine["sitting"].first_line(error))
        threads = self.engine["bounds"].threads()
        if threads != 1:
            report.update(swap=False, why=f"collection left {threads} threads running, and a fork copies one")
        me = os.getpid()
        if report["swap"]:
            self._fork_slots("swap", self.context, me)
        self.engine["wire"].write_all(writer, self.engine["wire"].pack(report))
        os.close(writer)
        self._keep_watch()
        return {}

    def _collect_once(self, message: dict[str, Any], targets: dict[str, str]) -> set[tuple[str, str, int]]:
        """Returns what of the targets already ran, as (path, qualified name, first line)."""
        sitting = self.engine["sitting"].Sitting(
            self.context.sources.project, message["args"], os.path.join(self.work, "collected")
        )
        ran: set[tuple[str, str, int]] = set()
        sys.setprofile(_early(ran, set(targets)))
        try:
            sitting.configure(self.boot["root"], self.boot["pytest_args"])
            sitting.collect()
            for path in targets:
                self._import_target(path)
        finally:
            sys.setprofile(None)
        if "hypothesis" in sys.modules:
            # The first entry walks the whole heap; done here once instead of in every child.
            from hypothesis.internal.entropy import deterministic_PRNG

            with deterministic_PRNG():
                pass
        self.context.sitting = sitting
        self.context.index = self.engine["live"].Live(set(targets), ran)
        gc.collect()
        gc.freeze()
        return ran

    def _import_target(self, path: str) -> None:
        """Import a mutated file that collection did not; the tests may load it late, by name."""
        if path in self.context.sources.loaded:
            return
        name = module_name(path, [os.path.realpath(p) for p in sys.path if p])
        if name is not None:
            try:
                importlib.import_module(name)
            except Exception:  # noqa: BLE001 - then nothing is alive to swap, and the mutant is reimported
                return

    def _keep_watch(self) -> None:
        """Wait for the slots; sweep what their children left behind when one of them is killed."""
        bounds = self.engine["bounds"]

        def loop() -> None:
            while self.children:
                pid, _ = os.wait()
                self.children.discard(pid)
                bounds.sweep(self.children)

        bounds.until_bereaved(loop, bounds.sweep)


def _early(ran: set[tuple[str, str, int]], paths: set[str]) -> Any:
    real: dict[str, str] = {}

    def profile(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            code = frame.f_code
            name = code.co_filename
            if name not in real:
                real[name] = os.path.realpath(name)
            if real[name] in paths:
                ran.add((real[name], code.co_qualname, code.co_firstlineno))

    return profile


def _is_rewritten(module: Any) -> bool:
    loader = getattr(getattr(module, "__spec__", None), "loader", None)
    return type(loader).__name__ == "AssertionRewritingHook"


def module_name(path: str, search: list[str]) -> str | None:
    """The dotted name under which a file would be imported from the search path."""
    for folder in search:
        if path.startswith(folder.rstrip(os.sep) + os.sep):
            parts = os.path.splitext(os.path.relpath(path, folder))[0].split(os.sep)
            if parts[-1] == "__init__":
                parts.pop()
            if parts and all(part.isidentifier() for part in parts):
                return ".".join(parts)
    return None


if __name__ == "__main__":
    Stem(json.loads(sys.argv[1])).main()
