"""A slot: a process that takes one job at a time, forks a child for it, and reports how it ended.

One slot has at most one child, so every other child it finds afterwards is an orphan of that job.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from . import bounds, memory, wire

Work = Callable[[dict[str, Any], int, str], None]
_GRACE_S = 2.0
_HIGH_FD = 300


def serve(sock: socket.socket, work: Work, folder: str, parent: int) -> None:
    """Answer jobs until the engine closes the socket or the parent dies."""
    child: list[int] = []

    def loop() -> None:
        bounds.mourn(parent)
        number = 0
        while (job := wire.receive(sock)) is not None:
            number += 1
            basetemp = os.path.join(folder, f"{os.getpid()}-{number}")
            answer = _one(job, work, basetemp, child, sock)
            _remove(basetemp)
            wire.send(sock, answer)
            if answer["end"] == "answered":
                # A first failure may import hundreds of modules; the next child finds them here.
                memory.import_late(answer["answer"].get("late", []))

    def clean_up() -> None:
        if child:
            bounds.kill_group(child[0])
        bounds.sweep()

    bounds.until_bereaved(loop, clean_up)


def _remove(basetemp: str) -> None:
    """Remove what a judgement wrote beside its folder for temporary files, and that folder."""
    for left in (basetemp, f"{basetemp}-cache"):
        shutil.rmtree(left, ignore_errors=True)
    for kind in ("guests", "guests.told", "job"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{basetemp}-{kind}")


def _one(
    job: dict[str, Any], work: Work, basetemp: str, child: list[int], sock: socket.socket
) -> dict[str, Any]:
    if bounds.threads() != 1:
        return {"end": "threads", "threads": bounds.threads()}
    reader, writer = os.pipe()
    begun = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _in_child(job, work, basetemp, reader, writer, sock)
    child[:] = [pid]
    os.close(writer)
    _lead(pid)
    try:
        answer = _wait(pid, reader, begun + job["limits"]["wall_s"], job["nonce"])
    finally:
        os.close(reader)
    child.clear()
    answer["orphans"] = bounds.sweep()
    answer["seconds"] = time.monotonic() - begun
    return answer


def _lead(pid: int) -> None:
    # Both sides set the group, so that neither has to wait for the other.
    try:
        os.setpgid(pid, pid)
    except (PermissionError, ProcessLookupError):
        pass


def _in_child(
    job: dict[str, Any], work: Work, basetemp: str, reader: int, writer: int, sock: socket.socket
) -> None:
    status = 1
    try:
        parent = os.getppid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setpgid(0, 0)
        bounds.die_with_parent(parent, signal.SIGKILL)
        # A high number, so that code under test that closes or writes to small ones does not meet it.
        answer = _high(writer)
        os.close(reader)
        os.close(writer)
        sock.close()
        work(job, answer, basetemp)
        status = 0
    finally:
        os._exit(status)


def _high(fd: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)


class _Answer:
    def __init__(self, nonce: str) -> None:
        self.nonce = nonce
        self.inbox = wire.Inbox()
        self.started = False
        self.final: dict[str, Any] | None = None
        self.garbled: str | None = None

    def feed(self, chunk: bytes) -> None:
        try:
            messages = self.inbox.feed(chunk)
        except wire.Garbled as error:
            self.garbled = str(error)
            return
        for message in messages:
            if message.get("nonce") != self.nonce or self.final is not None:
                self.garbled = "a message without this judgement's nonce, or after the last one"
            elif message.get("kind") == "started":
                self.started = True
            else:
                self.final = message


def _wait(pid: int, reader: int, deadline: float, nonce: str) -> dict[str, Any]:
    answer = _Answer(nonce)
    os.set_blocking(reader, False)
    pidfd = os.pidfd_open(pid)
    watch = select.poll()
    watch.register(reader, select.POLLIN)
    watch.register(pidfd, select.POLLIN)
    exited = False
    try:
        while not exited:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            for fd, _ in watch.poll(left * 1000):
                if fd == pidfd:
                    exited = True
                elif not _drain(reader, answer):
                    # The end of the stream is not the end of the process: the child may live on.
                    watch.unregister(reader)
            if answer.final is not None:
                deadline = min(deadline, time.monotonic() + _GRACE_S)
    finally:
        os.close(pidfd)
        bounds.kill_group(pid)
        _, status, used = os.wait4(pid, 0)
    _drain(reader, answer)
    return {**_ending(answer, status, exited), "cpu_s": used.ru_utime + used.ru_stime}


def _drain(reader: int, answer: _Answer) -> bool:
    """Read what is there; False at the end of the stream."""
    while True:
        try:
            chunk = os.read(reader, 1 << 16)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        answer.feed(chunk)


def _ending(answer: _Answer, status: int, exited: bool) -> dict[str, Any]:
    code = os.waitstatus_to_exitcode(status)
    if answer.garbled is not None:
        return {"end": "garbled", "why": answer.garbled}
    if answer.final is not None:
        return {"end": "answered", "answer": answer.final}
    if not exited or code == -signal.SIGXCPU:
        return {"end": "timeout"}
    return {"end": "silent", "status": code, "started": answer.started}
