"""Random schedules against production. A failure is shrunk and becomes a fixture; its path is in the message."""

from __future__ import annotations

from pathlib import Path

import hypothesis.configuration
import pytest
from hypothesis import Phase, settings

from harness.rows.defaults import ORACLE, SUBJECT
from harness.rows.search import require_nothing, search
from harness.rows.subject import load
from torch_impl.refusals import RollbackRefused
from torch_impl.xs_rolling import XsRolling


def test_no_random_history_breaks_a_row_of_production(tmp_path: Path) -> None:
    require_nothing(search(load(SUBJECT), load(ORACLE), tmp_path, examples=250, seed=20))
    assert not list(tmp_path.iterdir())


def test_a_search_leaves_no_folder_behind(tmp_path: Path) -> None:
    home = tmp_path / "home"
    hypothesis.configuration.set_hypothesis_home_dir(home)
    try:
        search(load(SUBJECT), load(ORACLE), tmp_path, examples=3)
    finally:
        hypothesis.configuration.set_hypothesis_home_dir(None)
    assert not home.exists()


def test_a_profile_without_shrinking_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutation engine loads such a profile: one failure is enough there, and shrinking it costs seconds."""
    subject = load(SUBJECT)
    opened, open_ = [], subject.open
    monkeypatch.setattr(XsRolling, "rollback_refusal", lambda self, row, n: RollbackRefused("no", "never"))
    monkeypatch.setattr(subject, "open", lambda *setup: opened.append(setup) or open_(*setup), raising=False)
    before = settings.get_current_profile_name()
    settings.register_profile("no-shrinking", settings(), phases=[Phase.explicit, Phase.generate])
    settings.load_profile("no-shrinking")
    try:
        found = search(subject, load(ORACLE), tmp_path, examples=100)
    finally:
        settings.load_profile(before)
    assert found is not None
    assert found.examples == 1
    assert 0 < len(opened) < 20
