"""A slot's reply as one observation per test: the form that evidence records and verdicts read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NOT_COLLECTED: dict[str, Any] = {
    "collected": False,
    "phases": [],
    "reached": False,
    "stale": False,
    "left": [],
    "joined": False,
}


def observations(
    reply: Mapping[str, Any], mode: str, role: str, nodes: list[str]
) -> dict[str, dict[str, Any]]:
    """Return {test: observation} for the tests of one job."""
    if reply["end"] != "answered":
        keys = ("end", "status", "started", "why")
        seen = {"mode": mode, "role": role, **{key: reply[key] for key in keys if key in reply}}
        return {node: dict(seen) for node in nodes}
    answer = reply["answer"]
    results = {result["node"]: result for result in answer["results"]}
    broken = answer["broken"] or _collection_broke(answer)
    shared = {"mode": mode, "role": role, "end": "answered", "source": answer["applied"]}
    return {
        node: {
            **shared,
            "broken": _strip(broken["leaves"]) if broken else [],
            **_facts(results.get(node, _NOT_COLLECTED)),
        }
        for node in nodes
    }


def _collection_broke(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """A test file that could not be imported is a crash, told apart from an id that is gone."""
    if not answer["collect_errors"]:
        return None
    leaf = {"types": ["collection error"], "frame": None, "at": answer["collect_errors"][0]["node"]}
    return {"leaves": [{**leaf, "timeout_plugin": False}]}


def _facts(result: Mapping[str, Any]) -> dict[str, Any]:
    phases = [{**phase, "leaves": _strip(phase["leaves"])} for phase in result["phases"]]
    return {
        "collected": result["collected"],
        "reached": result["reached"],
        "stale": result["stale"],
        "phases": phases,
        "left": result["left"],
        "joined": result["joined"],
    }


def _strip(leaves: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # Messages hold addresses and temporary paths, which differ between equal runs.
    return [{key: value for key, value in leaf.items() if key != "message"} for leaf in leaves]


def first_message(reply: Mapping[str, Any], node: str) -> str:
    """The first line of the first failure's message, for the report."""
    if reply["end"] != "answered":
        return ""
    answer = reply["answer"]
    if answer["broken"]:
        return str(answer["broken"]["message"])
    if answer["collect_errors"]:
        return str(answer["collect_errors"][0]["message"])
    for file, copy in answer["copies"].items():
        return (
            f"the tests import {copy}, not {file}: install the project in place (pip install -e .), or name "
            "the folder of its source in import_paths"
        )
    for result in answer["results"]:
        if result["node"] == node:
            leaves = [leaf for phase in result["phases"] for leaf in phase["leaves"]]
            return str(leaves[0]["message"]) if leaves else ""
    return ""
