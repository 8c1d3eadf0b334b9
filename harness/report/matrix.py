"""The kill matrix for a reader: what its checks see, and which of them are needed. Nothing here decides anything."""

from __future__ import annotations

from collections.abc import Sequence

from ..mutation.cover import Cover
from ..mutation.matrix import Matrix, Study

_SHOWN = 12


def sentences(matrix: Matrix, study: Study) -> list[str]:
    """How many tests see each entry, and what the matrix says about the tests."""
    total = len(matrix.tests)
    lines = [f"{name}: killed by {len(row)} of {total} tests" for name, row in matrix.rows.items()]
    lines += [f"{name}: {count} tests gave no answer" for name, count in matrix.unsettled.items()]
    lines += [f"{test} is red without any mutant and tells nothing" for test in matrix.red]
    lines += [f"only {test} kills {name}" for name, test in study.sole.items()]
    lines += [f"no check tells apart: {', '.join(group)}" for group in study.twins]
    lines += [f"{test} kills nothing" for test in study.idle]
    lines += [f"check {name}: {told}" for name, told in by_check(matrix)]
    lines += [
        f"tests that kill nothing: {len(study.silent)} of {total}",
        f"smallest set that still kills all {len(matrix.rows)} entries: {study.killing.told} of {total} tests",
        f"smallest set that still tells all entries apart: {study.distinguishing.told} of {total} tests",
        f"matrix of {len(matrix.rows)} entries: {len(study.twins)} groups that no check tells apart, "
        f"{len(study.sole)} entries with a single killer, {len(study.idle)} listed checks that kill nothing",
    ]
    return lines


def by_check(matrix: Matrix) -> list[tuple[str, str]]:
    """Tests with one last word between their brackets are one check on many fixtures: what it sees, in words."""
    tests: dict[str, set[str]] = {}
    for test in matrix.tests:
        if test.endswith("]") and "-" in test:
            tests.setdefault(test.rpartition("-")[2].removesuffix("]"), set()).add(test)
    found = []
    for name, members in sorted(tests.items()):
        if len(members) == 1:
            continue
        seen = [entry for entry, row in matrix.rows.items() if members & set(row)]
        alone = [entry for entry in seen if set(matrix.rows[entry]) <= members]
        told = f"kills {len(seen)} of {len(matrix.rows)} entries with {len(members)} tests"
        if alone:
            told += f", alone {len(alone)}: {', '.join(alone)}"
        found.append((name, told if seen else f"kills nothing with {len(members)} tests"))
    return found


def markdown(matrix: Matrix, study: Study) -> str:
    """reports/matrix.md: the same, with the smallest sets written out."""
    lines = ["# Kill matrix", "", f"{len(matrix.rows)} entries, {len(matrix.tests)} tests.", ""]
    lines += _section("Checks", [f"`{name}` {told}" for name, told in by_check(matrix)])
    lines += _section("Entries with a single killer", [f"`{n}`: {test}" for n, test in study.sole.items()])
    lines += _section("Entries that no check tells apart", [", ".join(group) for group in study.twins])
    lines += _section("Listed killers that kill nothing", list(study.idle))
    lines += _set("Smallest set that still kills everything", study.killing)
    lines += _set("Smallest set that still tells all entries apart", study.distinguishing)
    lines += _section(
        "Entries by the number of tests that kill them",
        [f"{len(row)}: {name}" for name, row in sorted(matrix.rows.items(), key=lambda item: len(item[1]))],
    )
    silent = study.silent[:_SHOWN]
    more = [f"and {len(study.silent) - _SHOWN} more"] if len(study.silent) > _SHOWN else []
    lines += _section(
        f"Tests that kill nothing: {len(study.silent)} of {len(matrix.tests)}", [*silent, *more]
    )
    return "\n".join(lines)


def _set(title: str, cover: Cover) -> list[str]:
    return _section(f"{title}: {cover.told}", list(cover.tests))


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "", *(f"- {line}" for line in lines or ["none"]), ""]
