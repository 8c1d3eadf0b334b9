"""Each verdict and each trap has a toy project whose run ends exactly as its file says."""

from __future__ import annotations

from pathlib import Path

import pytest
from toys import Toy, lay, run, run_gate, toys

ALL = toys()


@pytest.mark.parametrize("toy", ALL, ids=[toy.name for toy in ALL])
def test_a_toy_ends_as_its_file_says(toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = lay(toy, tmp_path / "project")
    before = {p: p.read_bytes() for p in root.rglob("*") if p.is_file()}
    ran = run(root, monkeypatch, "-j", "2")
    assert ran.code == toy.expect["exit"], ran.text
    for line in toy.expect.get("lines", []):
        assert line in ran.text
    if "verdicts" in toy.expect:
        assert ran.verdicts() == toy.expect["verdicts"], ran.text
        assert f"of {len(toy.expect['verdicts'])}" in ran.text
        assert run_gate(root, monkeypatch).code == toy.expect["exit"]
    after = {p: p.read_bytes() for p in root.rglob("*") if p.is_file() and "reports" not in p.parts}
    assert after == before


def test_there_is_a_toy_for_every_verdict() -> None:
    from harness.mutation.verdict import Verdict

    shown = {verdict for toy in ALL for verdict in toy.expect.get("verdicts", {}).values()}
    assert shown == {verdict.value for verdict in Verdict}
