"""The table of planted survivors is large and varied enough to say something, and the probe says it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from survivors import LABELS, Survivor, lay, table

from harness.mutation.anchor import sources
from harness.mutation.campaign import Campaign
from harness.mutation.diagnosis.probe import Finding, Probe
from harness.mutation.prepare import Fault, make_fault
from harness.mutation.servers import Servers
from harness.mutation.settings import load_settings


def test_the_table_holds_enough_of_every_kind() -> None:
    rows = table()
    assert len({row.id for row in rows}) == len(rows) >= 40
    assert len({row.target for row in rows}) >= 12
    found = Counter(row.label for row in rows)
    assert set(found) == set(LABELS) and min(found.values()) >= 5, found
    assert sum(row.origin != "own" for row in rows) >= 10
    assert all(row.why for row in rows)


def fault_of(root: Path, row: Survivor) -> Fault:
    return make_fault(sources(root, [row.edit]))


def test_only_what_is_declared_or_changes_no_bytecode_is_labelled_a_no_op(tmp_path: Path) -> None:
    root = lay(tmp_path)
    for row in table():
        differs = fault_of(root, row).bytecode_differs
        assert (row.label == "no-op") == (not differs or row.declared is not None), row.id
        assert not (row.label == "no-op" and row.killable), row.id


def probed(root: Path, rows: list[Survivor]) -> list[Finding]:
    tests = sorted({row.test for row in rows})
    files = sorted({row.edit.file for row in rows})
    with Servers(root, load_settings(root), 2, files) as servers:
        campaign = Campaign(root, servers.settings, servers, 2)
        learned = servers.list_tests(
            tests, sorted({test.partition("::")[0]: test for test in tests}.values())
        )
        assert not learned["error"] and not learned["collect_errors"]
        servers.preload(learned)
        servers.fork(tests, files)

        def find(row: Survivor) -> Finding:
            fault = fault_of(root, row)
            return Probe(campaign, fault, row.test, campaign.mode(fault)[0], row.declared).find()

        return campaign.each(find, rows)


def test_the_probe_finds_the_reason_of_19_in_20_and_calls_no_killable_mutant_a_no_op(tmp_path: Path) -> None:
    rows = table()
    found = probed(lay(tmp_path), rows)
    for row, finding in zip(rows, found, strict=True):
        if finding.cls != row.label:
            print(f"{row.id}: labelled {row.label}, found {finding.cls}: {finding.sentence}")
    right = sum(finding.cls == row.label for row, finding in zip(rows, found, strict=True))
    print(f"{right} of {len(rows)} right")
    assert right >= 0.95 * len(rows)
    assert not [row.id for row, f in zip(rows, found, strict=True) if row.killable and f.cls == "no-op"]
