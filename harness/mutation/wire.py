"""Length-prefixed JSON messages between the engine, its servers and their children.

A length prefix, and not the end of the stream, ends a message: a grandchild that inherited the
pipe can hold it open for ever.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

Message = dict[str, Any]
_PREFIX = 4
LONGEST = 64 * 1024 * 1024


class Garbled(Exception):
    """The bytes are not one of our messages."""


def pack(message: Message) -> bytes:
    """Encode one message."""
    body = json.dumps(message).encode()
    return len(body).to_bytes(_PREFIX, "big") + body


class Inbox:
    """Collects bytes and hands out complete messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, chunk: bytes) -> list[Message]:
        """Add bytes; return the messages that are now complete. Raises Garbled."""
        self._bytes += chunk
        messages = []
        while len(self._bytes) >= _PREFIX:
            length = int.from_bytes(self._bytes[:_PREFIX], "big")
            if length > LONGEST:
                raise Garbled(f"a message of {length} bytes was announced")
            if len(self._bytes) < _PREFIX + length:
                break
            body = bytes(self._bytes[_PREFIX : _PREFIX + length])
            del self._bytes[: _PREFIX + length]
            messages.append(_decode(body))
        return messages


def _decode(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except ValueError as error:
        raise Garbled(str(error)) from error
    if not isinstance(message, dict):
        raise Garbled("a message should be a table")
    return message


def send(sock: socket.socket, message: Message) -> None:
    """Send one message over a socket."""
    sock.sendall(pack(message))


def receive(sock: socket.socket) -> Message | None:
    """Receive one message; None when the other side is gone."""
    head = _exactly(sock, _PREFIX)
    body = None if head is None else _exactly(sock, int.from_bytes(head, "big"))
    return None if body is None else _decode(body)


def _exactly(sock: socket.socket, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        try:
            chunk = sock.recv(min(count - len(parts), 1 << 20))
        except ConnectionError:
            return None
        if not chunk:
            return None
        parts += chunk
    return bytes(parts)


def write_all(fd: int, data: bytes) -> None:
    """Write everything to a pipe."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
