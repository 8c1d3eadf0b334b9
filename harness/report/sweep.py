"""A sweep for a reader: counts with their denominator, and every candidate that is not dead as a diff."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ..mutation.codetree import source_lines
from ..mutation.sweep.changes import Candidate
from ..mutation.sweep.judging import Bucket
from ..mutation.sweep.run import Source, Swept


def listing(sources: Sequence[Source]) -> Iterator[str]:
    """One line per candidate: id, operator, and what becomes what."""
    for source in sources:
        for made in source.made:
            yield f"{made.id}  line {made.line}  {made.change.operator}: {_short(made)}"
    total = sum(len(source.made) for source in sources)
    yield f"{total} candidates in {len(sources)} files"


def _short(made: Candidate) -> str:
    before, after = (" ".join(text.split()) for text in (made.change.before, made.change.after))
    return f"{before[:60]} -> {after[:60] or '(nothing)'}"


def report(swept: Swept, sources: Sequence[Source]) -> Iterator[str]:
    """The whole report; exit codes and their sentences are printed by the caller."""
    texts = {source.file: source.text for source in sources}
    for made, judged, reaching in swept.results:
        if judged.bucket in (Bucket.KILLED, Bucket.KILLED_BY_ERROR):
            continue
        yield f"{made.id}: {judged.bucket}, line {made.line}, {made.change.operator}, {reaching} tests reach it"
        yield f"  {judged.reason}" + (f" ({judged.test})" if judged.test else "")
        yield from (f"  {line}" for line in _diff(made, texts))
    yield from _scopes(swept)
    yield counts(swept)
    yield f"{len(swept.trace.lines)} tests were tried, {len(swept.trace.left_out)} skipped or xfailed ones were not"
    if swept.unchanged:
        yield f"{swept.unchanged} candidates compile to the same bytecode and were left out"
    found = Counter(judged.bucket for _, judged, _ in swept.results)
    yield from (f"{bucket}: {bucket.meaning}" for bucket in Bucket if found[bucket])


def _diff(made: Candidate, texts: Mapping[str, str]) -> Iterator[str]:
    text = texts[made.file]
    lines = difflib.unified_diff(source_lines(text), source_lines(made.apply(text)), n=0, lineterm="")
    yield from (line for line in lines if not line.startswith(("---", "+++", "@@")))


def _scopes(swept: Swept) -> Iterator[str]:
    """Per function: how many of its candidates are dead, the worst last."""
    dead: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for made, judged, _ in swept.results:
        where = f"{made.file}:{made.scope}"
        total[where] += 1
        dead[where] += judged.bucket in (Bucket.KILLED, Bucket.KILLED_BY_ERROR)
    for where in sorted(total, key=lambda where: (total[where] - dead[where], where)):
        yield f"{where}: {dead[where]} of {total[where]} dead"


def counts(swept: Swept) -> str:
    """All buckets; they always add up to the number of judged candidates."""
    found = Counter(judged.bucket for _, judged, _ in swept.results)
    parts = [f"{bucket} {found[bucket]}" for bucket in Bucket]
    parts[0] += f" of {len(swept.results)}"
    return " · ".join(parts)
