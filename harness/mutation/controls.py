"""Controls made by the engine: traps before judging, null mutants and canaries after it.

A control is recorded with its observation, and `behaved` re-derives from that whether it did what it
must. If one did not, the run is void, whatever the mutants say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from . import canary, prepare
from .anchor import MODULE, Edit, sources
from .campaign import Campaign, Record
from .catalogue import Mutant
from .observe import observations
from .prepare import Fault
from .serving import read_source
from .verdict import Reading, read

Function = tuple[str, str]


@dataclass(frozen=True)
class Places:
    """Which functions and files the judged mutants change, and the killers that can speak for them."""

    functions: Mapping[Function, tuple[str, ...]]
    files: Mapping[str, tuple[str, ...]]

    def functions_of(self, file: str) -> list[str]:
        """The mutated functions of a file."""
        return [name for found, name in self.functions if found == file]


def places(campaign: Campaign, mutants: Sequence[Mutant]) -> Places:
    """Collect the places of all mutants; each knows the killers listed for it, in catalogue order."""
    functions: dict[Function, dict[str, None]] = {}
    files: dict[str, dict[str, None]] = {}
    for mutant in mutants:
        for function in prepare.of_mutant(campaign.root, mutant).functions:
            functions.setdefault(function, {}).update(dict.fromkeys(mutant.killed_by))
        for file in mutant.files:
            files.setdefault(file, {}).update(dict.fromkeys(mutant.killed_by))
    return Places(
        functions={key: tuple(tests) for key, tests in functions.items()},
        files={key: tuple(tests) for key, tests in files.items()},
    )


def _text(campaign: Campaign, file: str) -> str:
    return read_source(str(campaign.root / file))


def set_traps(campaign: Campaign, found: Places) -> list[Record]:
    """One trap per mutated function: swapped code must run, or the function is judged by reimport."""
    chosen = [(f, tests) for f, tests in found.functions.items() if f[1] != MODULE and tests]
    if campaign.servers.swap_refused:
        return []
    records = campaign.each(lambda item: _set_trap(campaign, *item), chosen)
    for record in records:
        if not record["hit"]:
            where = (record["file"], record["function"])
            campaign.untrapped[where] = f"a swap of {record['function']} was not seen to take effect"
    return [record for record in records if record["swapped"] is not None]


def _set_trap(campaign: Campaign, function: Function, tests: Sequence[str]) -> Record:
    file, name = function
    text = _text(campaign, file)
    record: Record = {"control": "trap", "file": file, "function": name, "hit": False, "swapped": None}
    trapped = canary.trap(text, name)
    if trapped is None:
        return record
    fault = prepare.make_fault({file: (text, trapped)})
    for test in tests:
        reply = campaign.ask(fault, "swap", [test])
        if reply["end"] == "answered" and reply["answer"]["kind"] == "refused":
            return record
        if reply["end"] == "answered":
            record["swapped"] = reply["answer"]["functions"] > 0
            record["test"] = test
            if reply["answer"]["trap"]:
                record["hit"] = True
                return record
    return record


def run_controls(campaign: Campaign, found: Places, records: Sequence[Record]) -> list[Record]:
    """Null mutants, the three null forms, and one canary per mutated file."""
    reached = _reaching(records)
    # A function that only equivalents without killers change has nobody who could speak for it.
    spoken = [(function, tests) for function, tests in found.functions.items() if tests]
    nulls = [null for function, tests in spoken for null in _nulls(campaign, function, tests, reached)]
    nulls += _forms(campaign, found, reached)
    todo: list[Callable[[], Record]] = [partial(_run_null, campaign, *control) for control in nulls]
    files = [(file, tests) for file, tests in found.files.items() if tests]
    todo += [partial(_run_canary, campaign, found, file, tests) for file, tests in files]
    return campaign.each(lambda action: action(), todo)


def _reaching(records: Sequence[Record]) -> set[str]:
    return {
        test
        for record in records
        for test, attempts in record["killers"].items()
        if any(seen.get("reached") for seen in attempts)
    }


_Null = tuple[Record, Fault, str, tuple[str, ...]]


def _nulls(
    campaign: Campaign, function: Function, tests: tuple[str, ...], reached: set[str]
) -> Iterator[_Null]:
    """The function recompiled unchanged, in every mode that judges it."""
    file, name = function
    text = _text(campaign, file)
    ordered = tuple(sorted(tests, key=lambda test: test not in reached))
    modes = [campaign.reference]
    if name != MODULE and not campaign.servers.swap_refused and function not in campaign.untrapped:
        modes.append("swap")
    for mode in modes:
        fault = Fault(
            overlay={file: text},
            watch={file: ((name, 0),)},
            swappable=True,
            trace_import=name == MODULE,
            null={file: name},
        )
        yield {"control": "null", "file": file, "function": name}, fault, mode, ordered


def _run_null(campaign: Campaign, record: Record, fault: Fault, mode: str, tests: Sequence[str]) -> Record:
    """The first killer that reaches the function speaks for it; none reaching is a failure."""
    record = {**record, "mode": mode, "sources": fault.sources, "seen": None, "test": None}
    for test in tests:
        reply = campaign.ask(fault, mode, [test])
        if reply["end"] == "answered" and reply["answer"]["kind"] == "refused":
            record["refused"] = reply["answer"]["why"]
            continue
        record.update(test=test, seen=observations(reply, mode, "null", [test])[test])
        if record["seen"].get("reached"):
            break
    return record


def _forms(campaign: Campaign, found: Places, reached: set[str]) -> list[_Null]:
    """The null forms, once per run: identity and comment on the first place, a renamed local where possible."""
    usable = [(f, t) for f, t in found.functions.items() if any(test in reached for test in t)]
    forms = []
    for (file, name), tests in usable[:1]:
        text = _text(campaign, file)
        forms.append(_form(campaign, "identity", file, name, text, tests))
        forms.append(_form(campaign, "comment", file, name, canary.commented(text), tests))
    for (file, name), tests in usable:
        renamed = canary.renamed_local(_text(campaign, file), name)
        if renamed is not None:
            return [*forms, _form(campaign, "renamed local", file, name, renamed, tests)]
    return forms


def _form(campaign: Campaign, form: str, file: str, name: str, text: str, tests: tuple[str, ...]) -> _Null:
    watch = {file: ((name, 0),)}
    fault = Fault(overlay={file: text}, watch=watch, swappable=False, trace_import=name == MODULE)
    return {"control": f"null form: {form}", "file": file, "function": name}, fault, campaign.reference, tests


def _run_canary(campaign: Campaign, found: Places, file: str, tests: Sequence[str]) -> Record:
    text = _text(campaign, file)
    record: Record = {"control": "canary", "file": file, "function": None, "form": None}
    record.update(mode=campaign.reference, test=None, seen=None, sources={}, tried=0)
    for candidate in _canaries(campaign, found, file, text):
        fault = prepare.make_fault({file: (text, candidate.text)})
        speakers = found.functions.get((file, candidate.function), ())
        for test in list(dict.fromkeys([*speakers, *tests]))[:4]:
            reply = campaign.ask(fault, campaign.reference, [test])
            seen = observations(reply, campaign.reference, "canary", [test])[test]
            record.update(function=candidate.function, form=candidate.name, test=test, seen=seen)
            record.update(sources=fault.sources, tried=record["tried"] + 1)
            if read(seen, fault.sources).reading is Reading.KILLED:
                return record
    return record


def _canaries(campaign: Campaign, found: Places, file: str, text: str) -> Iterator[canary.Candidate]:
    for by_hand in campaign.settings.canary:
        if by_hand.file == file:
            edit = Edit(by_hand.file, by_hand.scope, by_hand.find, by_hand.replace)
            yield canary.Candidate("by hand", by_hand.scope, sources(campaign.root, [edit])[file][1])
    yield from canary.candidates(text, found.functions_of(file))


def behaved(record: Mapping[str, Any]) -> str | None:
    """None when a control did what it must, else the sentence that says what it did instead."""
    what = f"{record['control']} in {record['file']}" + (
        f" {record['function']}" if record["function"] else ""
    )
    if record["control"] == "trap":
        # A trap that was not hit only rules out swapping; one that replaced no code is a broken swap.
        return None if record["swapped"] else f"{what}: the swap replaced no code at all"
    seen = record["seen"]
    if seen is None:
        return f"{what}: could not be run{': ' + record['refused'] if record.get('refused') else ''}"
    result = read(seen, record["sources"])
    if record["control"] == "canary":
        if result.reading is Reading.KILLED:
            return None
        return (
            f"{what}: none of {record['tried']} tries died by an assertion of a listed killer "
            f"(the last one: {result.reading} {result.note}); name a fault by hand in [[tool.rowproof.canary]]"
        )
    if result.reading is not Reading.PASSED:
        return f"{what} by {record['mode']}: should pass, {result.reading} {result.note}".rstrip()
    return None if seen["reached"] else f"{what} by {record['mode']}: no listed killer executed it"
