"""What every report shows, as plain rows. Nothing here decides anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..mutation.campaign import passed
from ..mutation.controls import behaved
from ..mutation.verdict import Verdict

HEADINGS = ("mutant", "theme", "verdict", "killers that killed", "first message of the failing check")


@dataclass(frozen=True)
class Row:
    """One entry of the table; `promised` says whether the verdict is the expected one."""

    id: str
    theme: str
    verdict: str
    killers: tuple[str, ...]
    message: str
    promised: bool


def rows(predicate: Mapping[str, Any], notes: Mapping[str, Any]) -> list[Row]:
    """The table's rows, in the order of themes and ids."""
    messages = notes.get("messages", {})
    return [
        _row(record, messages.get(record["id"], {}))
        for record in sorted(predicate["mutants"], key=lambda r: (r["theme"], r["id"]))
    ]


def _row(record: Mapping[str, Any], messages: Mapping[str, str]) -> Row:
    promised = record["verdict"] == record["expected"]
    unapplied = record["verdict"] == Verdict.NOT_APPLIED
    speakers = record["killers"] if unapplied else record["killed"]
    told = next((messages[test] for test in speakers if test in messages), "")
    if not promised:
        told = record["reason"] + (f" | {told}" if told else "")
    killers = tuple(record["killed"]) or tuple(f"(listed) {test}" for test in record["killers"])
    return Row(record["id"], record["theme"], record["verdict"], killers, told, promised)


def common_test(shown: Sequence[Row]) -> str:
    """The `file::test` that more than half of all killers share before their brackets, or nothing."""
    found = Counter(test.partition("[")[0] for row in shown for test in row.killers if "[" in test)
    name, count = next(iter(found.most_common(1)), ("", 0))
    return name if 2 * count > sum(len(row.killers) for row in shown) and count > 1 else ""


def claims(predicate: Mapping[str, Any]) -> list[str]:
    """What entries claim of data, which a run of the catalogue does not verify; it must not pass for verified."""
    names = [entry["id"] for entry in predicate["catalogue"] if entry.get("survives_under")]
    return (
        [
            f"claimed, not verified here: survives_under of {len(names)} entries: {', '.join(names)}; the lens verifies it"
        ]
        if names
        else []
    )


def control_lines(predicate: Mapping[str, Any]) -> list[str]:
    """One line per kind of control: how many behaved, of how many."""
    kinds: dict[str, list[bool]] = {}
    for record in predicate["controls"]:
        kinds.setdefault(record["control"], []).append(behaved(record) is None)
    before, after = predicate["baseline"]["before"], predicate["baseline"]["after"]
    lines = [f"{kind}: {sum(good)} of {len(good)} behaved" for kind, good in kinds.items()]
    for when, runs in (("before", before), ("after", after)):
        lines.append(f"baseline {when}: {sum(passed(seen) for seen in runs.values())} of {len(runs)} passed")
    return lines


def scope_line(predicate: Mapping[str, Any]) -> str:
    """What was run for this report, and what was not."""
    if "shard" in predicate:
        part = predicate["shard"]
        return f"part {part['index']} of {part['of']}; `gate merge` makes evidence of all {part['of']} parts"
    if not predicate["complete"]:
        return "a filtered run, in partial.json: it says nothing about the rest, and the gate refuses it"
    return (
        "each entry was judged by its named killers and must_stay_green; others only where none of them fired"
    )


def legend(predicate: Mapping[str, Any]) -> list[str]:
    """The meaning of every verdict that occurs."""
    found = {record["verdict"] for record in predicate["mutants"]}
    return [f"{verdict}: {verdict.meaning}" for verdict in Verdict if verdict.value in found]
