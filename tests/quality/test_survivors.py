"""The table of planted survivors is large and varied enough to say something."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from survivors import LABELS, lay, table

from harness.mutation.anchor import sources


def test_the_table_holds_enough_of_every_kind() -> None:
    rows = table()
    assert len({row.id for row in rows}) == len(rows) >= 40
    assert len({row.target for row in rows}) >= 12
    found = Counter(row.label for row in rows)
    assert set(found) == set(LABELS) and min(found.values()) >= 5, found
    assert sum(row.origin != "own" for row in rows) >= 10
    assert all(row.why for row in rows)


def test_only_what_is_declared_or_changes_no_bytecode_is_labelled_a_no_op(tmp_path: Path) -> None:
    from harness.mutation.prepare import make_fault

    root = lay(tmp_path)
    for row in table():
        differs = make_fault(sources(root, [row.edit])).bytecode_differs
        assert (row.label == "no-op") == (not differs or row.declared is not None), row.id
        assert not (row.label == "no-op" and row.killable), row.id
