"""`mutate list` and `mutate show`: the catalogue for a reader, as lines of text."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..mutation.anchor import sources
from ..mutation.catalogue import Mutant


def listing(mutants: Sequence[Mutant], records: Mapping[str, Any]) -> Iterator[str]:
    """One line per entry: id, theme, what should come out, what came out last."""
    wide = max((len(mutant.id) for mutant in mutants), default=0)
    themes = max((len(mutant.theme) for mutant in mutants), default=0)
    for mutant in mutants:
        last = records[mutant.id]["verdict"] if mutant.id in records else "not judged"
        killers = f"{len(mutant.killed_by)} killers"
        yield f"{mutant.id:<{wide}}  {mutant.theme:<{themes}}  should be {mutant.expected}, {killers}; last: {last}"
    yield f"{len(mutants)} entries"


def shown(root: Path, mutant: Mutant, record: Mapping[str, Any] | None) -> Iterator[str]:
    """One entry: its sentences, its diff, and its last outcome."""
    yield f"{mutant.id} ({mutant.theme}, {mutant.kind})"
    yield f"because: {mutant.because}"
    yield f"origin:  {mutant.origin}"
    if mutant.why:
        yield f"why:     {mutant.why}"
    for file, (original, mutated) in sources(root, mutant.edits).items():
        yield ""
        yield from difflib.unified_diff(
            original.splitlines(), mutated.splitlines(), f"{file} (original)", f"{file} (mutant)", lineterm=""
        )
    yield ""
    yield from (f"killed by: {test}" for test in mutant.killed_by)
    yield from (f"must stay green: {test}" for test in mutant.must_stay_green)
    if record is None:
        yield "last: not judged"
    else:
        yield f"last: {record['verdict']}, judged by {record['mode']}: {record['reason']}"
