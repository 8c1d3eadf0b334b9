"""Controls made by the engine: traps before judging, null mutants and canaries after it.

A control is recorded with its observation, and `behaved` re-derives from that whether it did what it
must. If one did not, the run is void, whatever the mutants say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from . import canary, owed, prepare
from .anchor import MODULE, Edit, sources
from .campaign import Campaign, Record
from .observe import observations
from .owed import Function, Owed, Places
from .prepare import Fault
from .settings import Settings
from .verdict import Reading, read


def set_traps(campaign: Campaign, found: Places, names: Collection[str]) -> list[Record]:
    """One trap per function that these entries change: swapped code must run, or reimport judges it."""
    if campaign.servers.swap_refused:
        return []
    records = campaign.each(lambda item: _set_trap(campaign, *item), owed.trappable(found, names))
    for record in records:
        if not record["hit"]:
            where = (record["file"], record["function"])
            campaign.untrapped[where] = f"a swap of {record['function']} was not seen to take effect"
    return [record for record in records if record["swapped"] is not None]


def _set_trap(campaign: Campaign, function: Function, tests: Sequence[str]) -> Record:
    file, name = function
    text = owed.source(campaign.root, file)
    record: Record = {"control": owed.TRAP, "file": file, "function": name, "hit": False, "swapped": None}
    trapped = canary.trap(text, name)
    if trapped is None:
        return record
    fault = prepare.make_fault({file: (text, trapped)})
    for test in tests:
        reply = campaign.ask_again(fault, "swap", [test])
        if reply["end"] == "answered" and reply["answer"]["kind"] == "refused":
            return record
        if reply["end"] == "answered":
            record["swapped"] = reply["answer"]["functions"] > 0
            record["test"] = test
            if reply["answer"]["trap"]:
                record["hit"] = True
                return record
    return record


def run_controls(campaign: Campaign, found: Places, whole: Places, records: Sequence[Record]) -> list[Record]:
    """Null mutants, the null forms, and one canary per mutated file: all that the records make a run owe.

    `found` are the places of the entries that the run is about, `whole` those of the whole catalogue: whether a
    file is heard must not hang on which of its entries somebody picked.
    """
    nulls = [_null(campaign, found, each) for each in owed.nulls(found, records)]
    forms = owed.forms(campaign.root, found, records)
    nulls += [_form(campaign, found, each, text) for each, text in forms.items()]
    todo: list[Callable[[], Record]] = [partial(_run_null, campaign, *control) for control in nulls]
    todo += [partial(_run_canary, campaign, whole, each.file) for each in owed.canaries(found, records)]
    return campaign.each(lambda action: action(), todo)


_Null = tuple[Record, Fault, str, tuple[str, ...]]


def _null(campaign: Campaign, found: Places, null: Owed) -> _Null:
    """The function recompiled unchanged."""
    fault = Fault(
        overlay={null.file: owed.source(campaign.root, null.file)},
        watch={null.file: ((null.function, 0),)},
        swappable=True,
        trace_import=null.function == MODULE,
        null={null.file: null.function},
    )
    return _record(null), fault, null.mode, found.functions[null.file, null.function]


def _form(campaign: Campaign, found: Places, form: Owed, text: str) -> _Null:
    watch = {form.file: ((form.function, 0),)}
    early = form.function == MODULE
    fault = Fault(overlay={form.file: text}, watch=watch, swappable=False, trace_import=early)
    return _record(form), fault, campaign.reference, found.functions[form.file, form.function]


def _record(control: Owed) -> Record:
    return {"control": control.control, "file": control.file, "function": control.function or None}


def _run_null(campaign: Campaign, record: Record, fault: Fault, mode: str, tests: Sequence[str]) -> Record:
    """The first killer that reaches the function speaks for it; none reaching is a failure."""
    record = {**record, "mode": mode, "sources": fault.sources, "seen": None, "test": None}
    for test in tests:
        reply = campaign.ask_again(fault, mode, [test])
        if reply["end"] == "answered" and reply["answer"]["kind"] == "refused":
            record["refused"] = reply["answer"]["why"]
            continue
        record.update(test=test, seen=observations(reply, mode, "null", [test])[test])
        if record["seen"].get("reached"):
            break
    return record


def _run_canary(campaign: Campaign, found: Places, file: str) -> Record:
    text, tests = owed.source(campaign.root, file), found.files[file]
    record: Record = {"control": owed.CANARY, "file": file, "function": None, "form": None}
    record.update(mode=campaign.reference, test=None, seen=None, sources={}, tried=0)
    for candidate in canaries(campaign.root, campaign.settings, found, file):
        fault = prepare.make_fault({file: (text, candidate.text)})
        speakers = found.functions.get((file, candidate.function), ())
        for test in list(dict.fromkeys([*speakers, *tests]))[:4]:
            if not campaign.vouches_for(test):
                continue
            reply = campaign.ask(fault, campaign.reference, [test])
            seen = observations(reply, campaign.reference, "canary", [test])[test]
            record.update(function=candidate.function, form=candidate.name, test=test, seen=seen)
            record.update(sources=fault.sources, tried=record["tried"] + 1)
            if read(seen, fault.sources).reading is Reading.KILLED:
                return record
    return record


def canaries(root: Path, settings: Settings, found: Places, file: str) -> Iterator[canary.Candidate]:
    """What may be planted in a file to be seen, in order: by hand as the settings say, then the engine's own."""
    for by_hand in settings.canary:
        if by_hand.file == file:
            edit = Edit(by_hand.file, by_hand.scope, by_hand.find, by_hand.replace)
            yield canary.Candidate("by hand", by_hand.scope, sources(root, [edit])[file][1])
    yield from canary.candidates(owed.source(root, file), found.functions_of(file))


def behaved(record: Mapping[str, Any]) -> str | None:
    """None when a control did what it must, else the sentence that says what it did instead."""
    what = f"{record['control']} in {record['file']}" + (
        f" {record['function']}" if record["function"] else ""
    )
    if record["control"] == owed.TRAP:
        # A trap that was not hit only rules out swapping; one that replaced no code is a broken swap.
        return None if record["swapped"] else f"{what}: the swap replaced no code at all"
    seen = record["seen"]
    if seen is None:
        return f"{what}: could not be run{': ' + record['refused'] if record.get('refused') else ''}"
    result = read(seen, record["sources"])
    if record["control"] == owed.CANARY:
        if result.reading is Reading.KILLED:
            return None
        return (
            f"{what}: none of {record['tried']} tries died by an assertion of a listed killer "
            f"(the last one: {result.reading} {result.note}); name a fault by hand in [[tool.rowproof.canary]]"
        )
    if result.reading is not Reading.PASSED:
        return f"{what} by {record['mode']}: should pass, {result.reading} {result.note}".rstrip()
    return None if seen["reached"] else f"{what} by {record['mode']}: no listed killer executed it"
