"""The journal: every settled entry at once on disk, so that a killed run can be resumed.

One JSON line per entry, after a first line with the digest of all inputs. Only kills are reused, and
only when the inputs are byte for byte the same; a line that the kill cut short is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .evidence import as_json, canonical
from .verdict import Verdict, rule

NAME = "journal.jsonl"


def inputs_digest(
    digests: Mapping[str, str], versions: Mapping[str, Any], configuration: Mapping[str, Any]
) -> str:
    """One digest of everything that a verdict depends on."""
    return hashlib.sha256(canonical([digests, versions, configuration])).hexdigest()


class Journal:
    """Appends settled entries; `kept` holds what an earlier, killed run had settled."""

    def __init__(self, path: Path, inputs: str, resume: bool) -> None:
        self._path, self._lock = path, threading.Lock()
        self.kept: dict[str, dict[str, Any]] = _read(path, inputs) if resume else {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")
        self._line({"inputs": inputs})
        for entry in self.kept.values():
            self._line(entry)

    def add(self, record: Mapping[str, Any], messages: Mapping[str, str]) -> None:
        """Write one settled entry through to the disk."""
        with self._lock:
            self._line({"record": as_json(record), "messages": dict(messages)})

    def forget(self, names: Sequence[str]) -> None:
        """Take settled entries back: a clean check found their killers red without any mutant."""
        with self._lock:
            self._line({"forget": list(names)})

    def _line(self, value: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(value, sort_keys=True) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self, finished: bool) -> None:
        """A finished run needs no journal; an unfinished one leaves it for --resume."""
        self._file.close()
        if finished:
            self._path.unlink(missing_ok=True)


def _read(path: Path, inputs: str) -> dict[str, dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    entries = [entry for line in lines if (entry := _parse(line)) is not None]
    if not entries or entries[0].get("inputs") != inputs:
        return {}
    kept: dict[str, dict[str, Any]] = {}
    for entry in entries[1:]:
        for name in entry.get("forget", ()):
            kept.pop(name, None)
        if _is_kill(entry):
            kept[entry["record"]["id"]] = entry
    return kept


def _parse(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _is_kill(entry: Mapping[str, Any]) -> bool:
    try:
        record = entry["record"]
        return record["verdict"] == Verdict.KILLED and rule(record).verdict is Verdict.KILLED
    except (KeyError, TypeError, IndexError, AttributeError):
        return False
