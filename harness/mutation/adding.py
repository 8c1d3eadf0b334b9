"""`mutate add`: an uncommitted edit of one file becomes a catalogue entry, and the file is put back.

The edit is written to reports/ as a patch before anything else happens, and the entry must rebuild
the edited text exactly before the file is touched: an edit of a person is never lost.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import anchor, prepare
from .anchor import AnchorLost, Edit
from .campaign import Campaign, batches
from .catalogue import KILLERS_MAX
from .codetree import source_lines
from .errors import InputRefused, InstrumentBroken
from .evidence import write_atomically
from .observe import observations
from .prepare import Fault
from .run import locked
from .servers import Servers
from .settings import Settings
from .toml_text import quoted, toml_string
from .verdict import Reading, read

_THEME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Wanted:
    """What the user gave on the command line."""

    file: str
    id: str
    theme: str
    because: str
    origin: str
    tests: tuple[str, ...]


def add(root: Path, settings: Settings, wanted: Wanted, jobs: int) -> Iterator[str]:
    """Do it all; yields what to print. Raises InputRefused before anything is changed."""
    wanted = replace(wanted, file=_inside(root, wanted.file))
    _refuse_words(root, wanted)
    committed = _committed(root, wanted.file)
    original, edited = _text(committed, wanted.file), _text(_read(root / wanted.file), wanted.file)
    if original == edited:
        raise InputRefused([f"{wanted.file} has no uncommitted edit; make the fault in the file first"])
    problems = anchor.check_texts(root, settings.roots, wanted.file, original, edited)
    if problems:
        raise InputRefused(problems)
    edit = smallest_edit(wanted.file, original, edited)
    patch = root / settings.reports / f"{wanted.id}.patch"
    lines = difflib.unified_diff(
        original.splitlines(True), edited.splitlines(True), f"a/{wanted.file}", f"b/{wanted.file}"
    )
    write_atomically(patch, "".join(lines).encode())
    with locked(root, settings):
        (root / wanted.file).write_bytes(committed)
        yield f"{wanted.file} is put back; the edit is kept in {patch.relative_to(root)}"
        yield f"looking for up to {KILLERS_MAX} tests that kill it, in {', '.join(wanted.tests)} (--tests looks elsewhere)"
        killers, red = _killers(root, settings, edit, original, edited, wanted.tests, jobs)
    target = root / settings.catalogue / f"{wanted.theme}.toml"
    before = target.read_text() if target.exists() else ""
    write_atomically(
        target, (before.rstrip("\n") + "\n\n" if before else "").encode() + entry(wanted, edit, killers)
    )
    yield f"{wanted.id} is appended to {target.relative_to(root)}, killed by {len(killers)} tests"
    yield from killers
    yield from (f"{test} is red without the fault too, so it can see nothing" for test in red)
    if not killers:
        yield "no test dies by an assertion: write the check first, then fill in killed_by"


def _inside(root: Path, file: str) -> str:
    """The path as the catalogue writes it, however it was given."""
    return Path(os.path.relpath(os.path.join(root, file), root)).as_posix()


def _refuse_words(root: Path, wanted: Wanted) -> None:
    """What would make an entry that no run accepts, or a file that no run reads."""
    problems = (
        []
        if _THEME.fullmatch(wanted.theme)
        else [f"--theme {wanted.theme}: names a file of the catalogue; use letters, digits, - and _ only"]
    )
    given = {"because": wanted.because, "origin": wanted.origin}
    problems += [f"--{key} is empty; write one sentence" for key, said in given.items() if not said.strip()]
    problems += [
        f"--tests {test}: there is no such file or folder in this project"
        for test in wanted.tests
        if not (root / test.partition("::")[0]).exists()
    ]
    if problems:
        raise InputRefused(problems)


def _committed(root: Path, file: str) -> bytes:
    done = subprocess.run(
        ["git", "-C", str(root), "show", f"HEAD:./{file}"], capture_output=True, check=False
    )
    if done.returncode != 0:
        raise InputRefused(
            [f"git has no committed version of '{file}'; commit it before planting a fault in it"]
        )
    return done.stdout


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputRefused([f"{path}: cannot be read: {error.strerror}"]) from None


def _text(data: bytes, file: str) -> str:
    """As the engine reads sources: line ends as they are, a byte order mark is no part of the text."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputRefused([f"{file}: is not UTF-8 text, so no entry can name a line of it"]) from None


def smallest_edit(file: str, original: str, edited: str) -> Edit:
    """The fewest whole lines that make a unique anchor and rebuild the edited text."""
    old, new = source_lines(original, True), source_lines(edited, True)
    head, tail = _common(old, new)
    for more in range(len(old) + 1):
        low, high = max(head - more, 0), min(len(old) - tail + more, len(old))
        found = "".join(old[low:high])
        replaced = "".join(new[low : len(new) - (len(old) - high)])
        edit = Edit(file, _scope(original, low + 1, high), found, replaced)
        try:
            if found and anchor.apply_edits(original, [edit]) == edited:
                return edit
        except AnchorLost:
            continue
    raise InputRefused([f"{file}: the edit has no unique anchor, even as the whole file"])


def _common(old: list[str], new: list[str]) -> tuple[int, int]:
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return head, tail


def _scope(text: str, first: int, last: int) -> str:
    """The innermost definition that holds the lines, or the module."""
    inside = [
        (anchor.first_line(node), name)
        for name, node in anchor.definitions(anchor.parse(text))
        if anchor.first_line(node) <= first and last <= (node.end_lineno or 0)
    ]
    return max(inside)[1] if inside else anchor.MODULE


def _killers(
    root: Path, settings: Settings, edit: Edit, original: str, edited: str, tests: tuple[str, ...], jobs: int
) -> tuple[list[str], list[str]]:
    """The first tests that really kill it: by an assertion, alone, twice; and those that are red anyway."""
    fault = prepare.make_fault({edit.file: (original, edited)})
    with Servers(root, settings, jobs, [edit.file]) as servers:
        campaign = Campaign(root, settings, servers, jobs)
        learned = servers.list_tests(tests)
        if learned["error"] or learned["collect_errors"]:
            raise InstrumentBroken(
                f"the tests cannot be collected: {learned['error'] or learned['collect_errors']}"
            )
        if not learned["items"]:
            raise InputRefused(
                [f"there is no test in {', '.join(tests)}; --tests looks elsewhere; nothing was added"]
            )
        servers.preload(learned)
        servers.fork(learned["items"], [edit.file])
        killers: list[str] = []
        red: list[str] = []
        for batch in batches(learned["items"]):
            seen = _once(campaign, fault, batch)
            suspects = [
                test for test in batch if read(seen[test], fault.sources).reading is not Reading.PASSED
            ]
            for test in suspects:
                outcomes = _without_the_fault(campaign, test)
                if "failed" in outcomes:
                    red.append(test)
                elif outcomes == {"passed"} and _kills(campaign, fault, test):
                    killers.append(test)
                if len(killers) == KILLERS_MAX:
                    return killers, red
    return killers, red


def _once(campaign: Campaign, fault: Fault, tests: list[str]) -> dict[str, dict[str, Any]]:
    return observations(campaign.ask(fault, campaign.reference, tests), campaign.reference, "judge", tests)


def _without_the_fault(campaign: Campaign, test: str) -> set[str]:
    """How the phases of a test end; an xfailed or skipped test is not red, and no killer either."""
    seen = next(iter(campaign.baseline([test], [], campaign.reference).values()))
    return {phase["outcome"] for phase in seen["phases"]} if seen["end"] == "answered" else {seen["end"]}


def _kills(campaign: Campaign, fault: Fault, test: str) -> bool:
    runs = [_once(campaign, fault, [test])[test] for _ in range(2)]
    return all(read(seen, fault.sources).reading is Reading.KILLED for seen in runs)


def entry(wanted: Wanted, edit: Edit, killers: list[str]) -> bytes:
    """The entry as TOML, code in literal strings where that is possible."""
    lines = [
        "[[mutant]]",
        f"id = {quoted(wanted.id)}",
        f"file = {quoted(edit.file)}",
        f"scope = {quoted(edit.scope)}",
        f"find = {toml_string(edit.find)}",
        f"replace = {toml_string(edit.replace)}",
        f"because = {quoted(wanted.because)}",
        f"origin = {quoted(wanted.origin)}",
        f"killed_by = [{', '.join(quoted(test) for test in killers)}]",
    ]
    return ("\n".join(lines) + "\n").encode()
