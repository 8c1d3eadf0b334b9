"""The engine's side of the fork server: start it, talk to it, end it.

The stem is started by exec with one thread for every numeric library. Each slot has a socket of its
own; `judge` takes a free slot, so any number of threads may call it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from . import wire
from .errors import InstrumentBroken
from .settings import Settings

_SCRATCH, ALIVE = "rowproof-", "alive"
_STEM = Path(__file__).with_name("stem.py")
# What would change how a test ends without standing in the project: -O strips assertions, -W makes errors.
_DROPPED = (
    "PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_DEBUG", "PYTEST_DISABLE_PLUGIN_AUTOLOAD", "PYTEST_PLUGINS",
    "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG", "PYTHONOPTIMIZE", "PYTHONWARNINGS", "PYTHONDEVMODE", "PYTHONDEBUG", "PYTHONINSPECT",
    "PYTHONSTARTUP", "PYTHONASYNCIODEBUG", "PYTHONTRACEMALLOC", "PYTHONINTMAXSTRDIGITS", "PYTHONVERBOSE",
    "PYTHONPROFILEIMPORTTIME", "PYTHONBREAKPOINT", "PYTHONMALLOC", "PYTHONPYCACHEPREFIX",
)  # fmt: skip
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Servers:
    """A context manager around one stem and its slots."""

    def __init__(self, root: Path, settings: Settings, slots: int, mutated: Sequence[str]) -> None:
        self.root, self.settings, self.slots = root.resolve(), settings, slots
        # Every file that any entry mutates, picked or not: whose assertions count must not hang on the pick.
        self.mutated = sorted(set(mutated))
        self.swap_refused: str | None = None
        self.fork_refused: str | None = None
        self.early: set[tuple[str, str]] | None = None
        self._asking = threading.Lock()

    def __enter__(self) -> Servers:
        if not sys.platform.startswith("linux"):
            raise InstrumentBroken(
                f"judging needs Linux (parent-death signals, pidfd, /proc), this is {sys.platform}; "
                "use a container or a virtual machine"
            )
        _remove_scratch_of_the_dead()
        # The stem makes this folder, once it is sure to remove it again; the log has no name at all.
        self._work = os.path.join(tempfile.gettempdir(), f"{_SCRATCH}{os.getpid()}-{secrets.token_hex(4)}")
        self._log = tempfile.TemporaryFile()
        self._control, control = socket.socketpair()
        ours: dict[str, list[socket.socket]] = {"reimport": [], "swap": []}
        theirs: dict[str, list[socket.socket]] = {"reimport": [], "swap": []}
        for mode in ours:
            for _ in range(self.slots):
                here, there = socket.socketpair()
                ours[mode].append(here)
                theirs[mode].append(there)
        ends = {mode: [s.fileno() for s in sockets] for mode, sockets in theirs.items()}
        boot = {"parent": os.getpid(), "work": self._work, "control": control.fileno(), **ends}
        passed = [control.fileno(), *ends["reimport"], *ends["swap"]]
        self._stem = subprocess.Popen(
            [sys.executable, "-P", str(_STEM), json.dumps(boot)],
            stdin=subprocess.DEVNULL,
            # Dots of the collected session go nowhere; the log keeps what a dying server has to say.
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            cwd=self.root,
            env=_environment(self._work),
            pass_fds=passed,
            start_new_session=True,
        )
        for sock in [control, *theirs["reimport"], *theirs["swap"]]:
            sock.close()
        self._sockets = [self._control, *ours["reimport"], *ours["swap"]]
        self._free: dict[str, queue.Queue[socket.socket]] = {mode: queue.Queue() for mode in ours}
        for mode, sockets in ours.items():
            for sock in sockets:
                self._free[mode].put(sock)
        self._boot()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        for sock in self._sockets:
            # Closing alone would not wake a thread that waits for an answer.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        try:
            self._stem.wait(timeout=5)
        except subprocess.TimeoutExpired:
            # The stem's session is its own group; this is the one id that we stored for it.
            os.killpg(self._stem.pid, signal.SIGKILL)
            self._stem.wait()
        self._log.close()
        _remove(self._work)

    def _boot(self) -> None:
        settings = self.settings
        self._ask(
            do="boot",
            root=str(self.root),
            tests=list(settings.tests),
            helpers=list(settings.helpers),
            mutated=self.mutated,
            import_paths=list(settings.import_paths),
            pytest_args=list(settings.pytest_args),
        )

    def list_tests(self, args: Sequence[str], run: Sequence[str] = ()) -> dict[str, Any]:
        """Collect `args` in a child, run the items of `run`, and report items, errors and imports."""
        return self._ask(do="list", args=list(args), run=list(run))

    def preload(self, learned: Mapping[str, Any]) -> None:
        """Import in the stem what a child learned; a stem that cannot be forked then makes way for spawn."""
        keys = ("modules", "rewritten", "sources")
        reply = self._ask(do="preload", **{key: learned[key] for key in keys})
        if reply["project_modules"]:
            names = ", ".join(reply["project_modules"][:3])
            self._only_spawn(f"the fork server imported modules of the project itself ({names})")
        elif reply["threads"] != 1:
            self._only_spawn(
                f"importing third-party modules leaves {reply['threads']} threads, and a fork copies only one"
            )

    def _only_spawn(self, why: str) -> None:
        """Start again with a stem that has imported nothing; every judgement gets an interpreter of its own."""
        self.__exit__(None, None, None)
        self.__enter__()
        self.fork_refused = self.swap_refused = why

    def fork(self, args: Sequence[str], targets: Sequence[str]) -> None:
        """Fork all slots; the swap slots come from a process that collected `args`."""
        why = (
            self.swap_refused
            or {
                "auto": None,
                "reimport": "the settings ask for reimport",
                "spawn": "the settings ask for spawn",
            }[self.settings.isolation]
        )
        reply = self._ask(do="fork", args=list(args), targets=list(targets), why_not=why)
        if reply.get("early") is not None:
            self.early = {(file, name) for file, name in reply["early"]}
        if not reply.get("swap"):
            self.swap_refused = str(reply.get("why") or "the collecting process died")

    def judge(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Run one job in a fork of a free slot of its mode, and return how it ended."""
        free = self._free["swap" if job["mode"] == "swap" else "reimport"]
        slot = free.get()
        try:
            wire.send(slot, {**job, "nonce": secrets.token_hex(16)})
            reply = wire.receive(slot)
        except ConnectionError:
            reply = None
        finally:
            free.put(slot)
        if reply is None:
            raise InstrumentBroken(f"a judging process is gone{self._last_words()}")
        if reply["end"] == "threads":
            raise InstrumentBroken(f"a fork server has {reply['threads']} threads, should have 1")
        return reply

    def _ask(self, **message: Any) -> dict[str, Any]:
        try:
            with self._asking:
                wire.send(self._control, message)
                reply = wire.receive(self._control)
        except ConnectionError:
            reply = None
        if reply is not None and reply.get("late"):
            raise InstrumentBroken(
                f"collecting and running a first test of each file took more than {reply['late']} s; "
                "a test hangs without any mutant"
            )
        if reply is None or reply.get("died"):
            raise InstrumentBroken(
                f"the fork server died while it was asked to {message['do']}{self._last_words()}"
            )
        return reply

    def _last_words(self) -> str:
        lines = os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace").strip().splitlines()
        return f"; its last words: {lines[-1]}" if lines else ""


def _remove_scratch_of_the_dead() -> None:
    """Remove folders of engines that were killed together with their stem: nobody else is left to do it."""
    for alive in Path(tempfile.gettempdir()).glob(f"{_SCRATCH}*/{ALIVE}"):
        with contextlib.suppress(OSError), alive.open("rb") as handle:
            # The stem and its children hold this lock for as long as one of them lives.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(alive.parent, ignore_errors=True)


def _remove(folder: str) -> None:
    """Remove the scratch folder; slots that outlived a killed stem may still be writing into it."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.02)


def _environment(work: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    kept.update(dict.fromkeys(_ONE_THREAD, "1"))
    kept["PYTHONDONTWRITEBYTECODE"] = "1"
    kept["HYPOTHESIS_STORAGE_DIRECTORY"] = os.path.join(work, "hypothesis")
    kept.setdefault("PYTHONHASHSEED", "0")
    return kept
