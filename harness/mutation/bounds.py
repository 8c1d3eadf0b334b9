"""What keeps a judgement in its place: parent-death signals, limits, and the orphan sweep.

Linux only (prctl, /proc); a process is only ever killed by an id of a child that this process
started or inherited.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SWEEP_ROUNDS = 200


class Bereaved(BaseException):
    """The parent of a server died; raised by the signal handler so that `finally` clauses clean up."""


def die_with_parent(parent: int, sig: signal.Signals) -> None:
    """Ask the kernel for `sig` when the parent dies; leave at once if it already has."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def mourn(parent: int) -> None:
    """In a server: the parent's death raises Bereaved, and orphans of our children come to us."""

    def handler(signum: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Bereaved

    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    die_with_parent(parent, signal.SIGTERM)


def until_bereaved(loop: Callable[[], None], clean_up: Callable[[], None]) -> None:
    """Run a server's loop until its end or the parent's death, and then always clean up.

    Bereaved comes at most once, and also when the loop is just ending; it must not cut the clean-up short.
    """
    try:
        try:
            loop()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except (Bereaved, ConnectionError, ChildProcessError):
        pass
    finally:
        clean_up()


def limit_self(memory_mib: int, output_mib: int, cpu_s: int) -> None:
    """Set the limits of a judgement; memory is counted on top of what the process maps now."""
    ceiling = _address_space() + memory_mib * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))
    size = output_mib * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def spare_everyone() -> None:
    """From now on refuse, with PermissionError, a signal to every process that this user may signal.

    A mutant can turn one process id into -1. Only what goes through Python is refused: a shell is not.
    """

    def hook(event: str, args: tuple[Any, ...]) -> None:
        # kill(-1) is everyone, and a process group 1 becomes -1 on its way to the kernel.
        if (event == "os.kill" and args[0] == -1) or (event == "os.killpg" and args[0] == 1):
            raise PermissionError(errno.EPERM, f"{event}({args[0]}) would signal every process of this user")

    sys.addaudithook(hook)


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def threads() -> int:
    """Operating-system threads of this process; a server must have one before it forks."""
    return len(os.listdir("/proc/self/task"))


def children() -> set[int]:
    """Direct children of this process, zombies included."""
    found: set[int] = set()
    try:
        for task in Path("/proc/self/task").iterdir():
            found.update(int(pid) for pid in (task / "children").read_text().split())
    except FileNotFoundError:
        # A kernel without this file: ask every process for its parent.
        return {pid for pid in _processes() if _parent(pid) == os.getpid()}
    return found


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _parent(pid: int) -> int | None:
    try:
        # The name in parentheses may hold spaces; the parent is the second field after it.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def kill_group(leader: int) -> None:
    """Kill the process group of a child that we started as its leader."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def sweep(keep: Iterable[int] = ()) -> int:
    """Kill and reap every child that is not in `keep`; returns how many there were.

    Killing an orphan can hand us its own children, so the sweep goes on until none is left.
    """
    kept: set[int] = set(keep)
    swept: set[int] = set()
    for _ in range(_SWEEP_ROUNDS):
        strangers = children() - kept
        if not strangers:
            break
        for pid in strangers:
            _kill_and_reap(pid)
        swept |= strangers
    return len(swept)


def _kill_and_reap(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    for _ in range(100):
        try:
            done, _status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            return
        if done:
            return
        time.sleep(0.001)
