"""The evidence of a run: a canonical in-toto Statement, sealed, written atomically.

`subject` binds the result to the sha256 of every relevant file; `predicate` holds versions, the
effective configuration, all observations and the verdicts derived from them. Equal runs give equal
bytes: times, hosts, worker counts and messages go to run.json. The seal finds truncation and careless
edits; it is no protection against a forger.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:rowproof:mutation:v1"
EVIDENCE, PARTIAL, RUN, MARKDOWN = "evidence.json", "partial.json", "run.json", "mutation.md"


class EvidenceLost(Exception):
    """Evidence that is missing or unreadable; the sentence says which."""


def canonical(value: Any) -> bytes:
    """Canonical JSON: sorted keys, no spaces to choose, one trailing newline."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1, separators=(",", ": "))
    return text.encode() + b"\n"


def as_json(value: Any) -> Any:
    """The value as it comes back from a file: tuples are lists."""
    return json.loads(canonical(value))


def statement(digests: Mapping[str, str], predicate: Mapping[str, Any]) -> dict[str, Any]:
    """Wrap a predicate and the input digests, and seal them."""
    subject = [{"name": name, "digest": {"sha256": value}} for name, value in sorted(digests.items())]
    body = {"_type": STATEMENT, "subject": subject, "predicateType": PREDICATE, "predicate": dict(predicate)}
    return {**body, "seal": seal(body)}


def seal(body: Mapping[str, Any]) -> str:
    """sha256 of the canonical statement without its seal."""
    return hashlib.sha256(canonical({k: v for k, v in body.items() if k != "seal"})).hexdigest()


def digests_of(evidence: Mapping[str, Any]) -> dict[str, str]:
    """{file: sha256} as recorded."""
    return {item["name"]: item["digest"]["sha256"] for item in evidence["subject"]}


def load(path: Path, shown: str) -> dict[str, Any]:
    """Read evidence and check its form and seal; raises EvidenceLost with a sentence."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise EvidenceLost(f"there is no {shown}; run `rowproof mutate --report` first") from None
    except OSError as error:
        raise EvidenceLost(f"{shown} cannot be read: {error.strerror}") from None
    try:
        data: dict[str, Any] = json.loads(raw)
        whole = isinstance(data, dict) and data["_type"] == STATEMENT and data["predicateType"] == PREDICATE
    except (ValueError, KeyError, RecursionError):
        raise EvidenceLost(f"{shown} is truncated or is not evidence") from None
    if not whole:
        raise EvidenceLost(f"{shown} is not evidence of this program")
    if data.get("seal") != seal(data) or raw != canonical(data):
        raise EvidenceLost(f"{shown} was edited after the run (its seal does not match)")
    if not isinstance(data.get("predicate"), dict) or not isinstance(data.get("subject"), list):
        raise EvidenceLost(f"{shown} holds no results: its predicate or its subject is missing")
    return data


def write_atomically(path: Path, data: bytes) -> None:
    """Write by temporary file, fsync and rename: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.fchmod(handle, 0o644)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
