"""The gate refuses everything but fresh, whole, unedited evidence, each with a sentence of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toys import Ran, lay, read, run, run_gate, start

from harness.mutation import evidence
from harness.mutation import gate as gate_core

Change = Callable[[Any], None]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy project with a green run's evidence; tests work on copies."""
    root = lay(read("must_stay_green"), tmp_path_factory.mktemp("judged") / "project")
    for name in ("helper.py", "tests/conftest.py", "fixtures/one.toml"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text("")
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert run(root, monkeypatch, "-j", "2").code == 0
        assert run_gate(root, monkeypatch).code == 0
    return root


@pytest.fixture
def project(judged: Path, tmp_path: Path) -> Path:
    """A fresh copy of the judged project."""
    return Path(shutil.copytree(judged, tmp_path / "project"))


def edit(project: Path, change: Change, reseal: bool = True) -> None:
    """Change the evidence by hand; with `reseal` as a careful forger would."""
    path = project / "reports" / "evidence.json"
    data = json.loads(path.read_text())
    change(data)
    if reseal:
        data["seal"] = evidence.seal(data)
    path.write_bytes(evidence.canonical(data))


def refused(project: Path, monkeypatch: pytest.MonkeyPatch, code: int, sentence: str) -> Ran:
    """The gate must end with this code and say this."""
    ran = run_gate(project, monkeypatch)
    assert ran.code == code, ran.text
    assert sentence in ran.text
    return ran


def test_no_report_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "reports" / "evidence.json").unlink()
    refused(project, monkeypatch, 5, "there is no reports/evidence.json; run `rowproof mutate --report`")


def test_a_truncated_report_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project / "reports" / "evidence.json"
    path.write_bytes(path.read_bytes()[:-200])
    refused(project, monkeypatch, 5, "reports/evidence.json is truncated or is not evidence")


def test_a_filtered_run_leaves_no_evidence(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "reports" / "evidence.json").unlink()
    assert run(project, monkeypatch, "--only", "the-fault", "-j", "2").code == 0
    refused(project, monkeypatch, 5, "reports/partial.json is of a filtered run and does not count")


def test_a_partial_report_renamed_to_evidence_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(project, lambda data: data["predicate"].update(complete=False))
    refused(project, monkeypatch, 5, "the evidence is of a filtered run")


@pytest.mark.parametrize(
    "file",
    [
        "calc.py",
        "helper.py",
        "tests/test_calc.py",
        "tests/conftest.py",
        "fixtures/one.toml",
        "mutants/sums.toml",
        "pyproject.toml",
    ],
)
def test_one_byte_changed_since_the_run_is_stale(
    project: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    with (project / file).open("a") as handle:
        handle.write("\n")
    refused(project, monkeypatch, 5, f"stale: 1 files changed since the run: {file}")


def test_a_new_file_is_stale(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "new.py").write_text("")
    refused(project, monkeypatch, 5, "stale: 1 files are new since the run: new.py")


def test_a_missing_file_is_stale(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "extra").mkdir()
    edit(project, lambda data: data["subject"].append({"name": "gone.py", "digest": {"sha256": "0"}}))
    refused(project, monkeypatch, 5, "stale: 1 files are gone since the run: gone.py")


def test_markdown_cannot_change_a_verdict_and_is_not_stale(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "README.md").write_text("words\n")
    assert run_gate(project, monkeypatch).code == 0


def test_a_deleted_result_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(project, lambda data: data["predicate"]["mutants"].clear())
    refused(project, monkeypatch, 5, "the-fault: expected killed, but the evidence holds no such result")


def test_a_careless_edit_breaks_the_seal(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(project, lambda data: data["predicate"]["mutants"][0].update(verdict="survived"), reseal=False)
    refused(project, monkeypatch, 5, "was edited after the run (its seal does not match)")


def test_an_edited_verdict_is_refused_even_when_sealed(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(project, lambda data: data["predicate"]["mutants"][0].update(verdict="survived"))
    refused(project, monkeypatch, 5, "the-fault: recorded as survived, but its observations say killed")


def test_an_unknown_verdict_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(project, lambda data: data["predicate"]["mutants"][0].update(verdict="suspicious"))
    refused(project, monkeypatch, 5, "the-fault: 'suspicious' is no verdict of this program")


def test_a_verdict_without_observations_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(data: Any) -> None:
        data["predicate"]["mutants"][0]["killers"]["tests/test_calc.py::test_f"] = []

    edit(project, forget)
    refused(project, monkeypatch, 5, "the-fault: recorded as killed, but its observations say unknown")


def test_observations_of_another_source_are_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(project, lambda data: data["predicate"]["mutants"][0].update(sources={"calc.py": "0" * 64}))
    refused(project, monkeypatch, 5, "the-fault: the judged source is not what the catalogue describes")


def test_unreadable_observations_are_refused_without_a_traceback(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(data: Any) -> None:
        data["predicate"]["mutants"][0]["killers"]["tests/test_calc.py::test_f"] = [{"end": "answered"}]

    edit(project, spoil)
    refused(project, monkeypatch, 5, "has observations that cannot be read")


def test_a_red_baseline_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def redden(data: Any) -> None:
        seen = data["predicate"]["baseline"]["after"]["tests/test_calc.py::test_f"]
        seen["phases"][1]["outcome"] = "failed"

    edit(project, redden)
    refused(project, monkeypatch, 4, "baseline after: tests/test_calc.py::test_f failed in its call phase")


def test_a_skipped_killer_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def skip(data: Any) -> None:
        seen = data["predicate"]["baseline"]["before"]["tests/test_calc.py::test_f"]
        seen["phases"][1]["outcome"] = "skipped"

    edit(project, skip)
    refused(project, monkeypatch, 4, "baseline before: tests/test_calc.py::test_f skipped in its call phase")


def test_a_killer_that_was_never_run_without_the_mutant_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(project, lambda data: data["predicate"]["baseline"]["after"].clear())
    refused(
        project, monkeypatch, 4, "tests/test_calc.py::test_f was not run without the mutant after judging"
    )


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("trap", "there is no trap in calc.py f"),
        ("null", "there is no null in calc.py f by swap"),
        ("null", "there is no null in calc.py f by reimport"),
        ("null form: identity", "there is no null form: identity in calc.py f"),
        ("null form: comment", "there is no null form: comment in calc.py f"),
        ("null form: renamed local", "there is no null form: renamed local in calc.py f"),
        ("canary", "there is no canary in calc.py"),
    ],
)
def test_a_missing_control_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, kind: str, sentence: str
) -> None:
    def drop(data: Any) -> None:
        controls = data["predicate"]["controls"]
        kept = [
            c
            for c in controls
            if c["control"] != kind or (c["control"] == "null" and not sentence.endswith(c["mode"]))
        ]
        assert len(kept) < len(controls)
        data["predicate"]["controls"] = kept

    edit(project, drop)
    refused(project, monkeypatch, 4, f"control: {sentence}")


def test_a_trap_that_was_not_hit_covers_no_swap(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def miss(data: Any) -> None:
        next(c for c in data["predicate"]["controls"] if c["control"] == "trap")["hit"] = False

    edit(project, miss)
    refused(project, monkeypatch, 4, "control: there is no trap in calc.py f")


def test_a_failed_control_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(data: Any) -> None:
        null = next(c for c in data["predicate"]["controls"] if c["control"] == "null")
        null["seen"]["reached"] = False

    edit(project, fail)
    refused(project, monkeypatch, 4, "no listed killer executed it")


def test_an_empty_catalogue_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "mutants" / "sums.toml").write_text("")
    edit(project, lambda data: data["predicate"].update(catalogue=[], mutants=[]))
    refused(project, monkeypatch, 5, "the catalogue is empty: nothing was judged")


def test_an_entry_added_after_the_run_is_missed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project / "mutants" / "sums.toml"
    path.write_text(path.read_text() + path.read_text().replace("the-fault", "another"))
    refused(project, monkeypatch, 5, "another: expected killed, but the evidence holds no such result")


def test_a_killer_added_after_the_run_is_missed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project / "mutants" / "sums.toml"
    path.write_text(path.read_text().replace('test_f"]', 'test_f", "tests/test_calc.py::test_extra"]'))
    refused(project, monkeypatch, 5, "the-fault: the judged killers are not the listed ones")


def test_a_fix_that_takes_an_anchor_away_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "calc.py").write_text((project / "calc.py").read_text().replace("x + 1", "1 + x"))
    refused(
        project,
        monkeypatch,
        5,
        "exit 2: mutants/sums.toml: mutant 'the-fault': calc.py: the anchor occurs 0 times",
    )


def test_another_torch_version_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = gate_core.versions()
    monkeypatch.setattr(gate_core, "versions", lambda: {**here, "torch": "9.9.9"})
    refused(project, monkeypatch, 5, f"stale: judged with torch {here['torch']}, here is torch 9.9.9")


def test_another_configuration_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(project, lambda data: data["predicate"]["configuration"]["limits"].update(wall_s=99.0))
    refused(project, monkeypatch, 5, "stale: the effective configuration differs from the run's")


def _mutant(data: Any) -> Any:
    return data["predicate"]["mutants"][0]


def _runs(data: Any) -> Any:
    return _mutant(data)["killers"]["tests/test_calc.py::test_f"]


def _control(data: Any, kind: str) -> Any:
    return next(c for c in data["predicate"]["controls"] if c["control"] == kind)


def _copied_canary(data: Any) -> None:
    _control(data, "canary").update(
        seen={**_runs(data)[-1], "role": "canary"}, sources=_mutant(data)["sources"]
    )


def _no_greens(data: Any) -> None:
    _mutant(data)["green"].clear()


def _one_green_less(data: Any) -> None:
    del _mutant(data)["green"]["tests/test_calc.py::test_weak"]


def _greens_unproved(data: Any) -> None:
    for when in ("before", "after"):
        del data["predicate"]["baseline"][when]["tests/test_calc.py::test_weak"]


def _baseline_of_a_mutant(data: Any) -> None:
    data["predicate"]["baseline"]["before"]["tests/test_calc.py::test_f"]["source"] = {"calc.py": "0" * 64}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (_no_greens, "the-fault: no test of must_stay_green 'tests/test_calc.py::test_w*' was run"),
        (_one_green_less, "the-fault: no test of must_stay_green 'tests/test_calc.py::test_w*' was run"),
        (_greens_unproved, "the-fault: tests/test_calc.py::test_weak was not run without the mutant before"),
        (_baseline_of_a_mutant, "tests/test_calc.py::test_f was run as 'baseline' of a mutated source"),
        (_copied_canary, "control: canary in calc.py: it served a text that the engine does not make"),
        (lambda d: _runs(d).__setitem__(0, _runs(d)[1]), "test_f run 1 is 'confirm', should be 'judge'"),
        (lambda d: _runs(d).append(_runs(d)[1]), "test_f run 3 is 'confirm', should be 'no run at all'"),
        (lambda d: _runs(d)[0].update(reached="no"), "reached is 'no', should be true or false"),
        (
            lambda d: _mutant(d)["green"]["tests/test_calc.py::test_g"][0].update(mode="guess"),
            "'guess' is no way of judging",
        ),
        (lambda d: _mutant(d).update(mode="spawn"), "recorded as judged by spawn, and no killer was"),
        (lambda d: _mutant(d).update(theme="other"), "recorded with theme other, the entry says sums"),
        (lambda d: _mutant(d).update(killed=[]), "the killers that killed do not follow"),
        (lambda d: _mutant(d).update(widened={"red": {}}), "the rest of the suite was searched without need"),
        (lambda d: _mutant(d).pop("doubt"), "the-fault: the record lacks doubt"),
        (
            lambda d: _control(d, "canary").update(test="elsewhere"),
            "elsewhere as 'canary' cannot speak for it",
        ),
        (lambda d: _control(d, "null").update(test="elsewhere"), "elsewhere as 'null' cannot speak for it"),
        (lambda d: d["predicate"].update(versions={}), "stale: judged with python of unknown version"),
        (lambda d: d["predicate"].update(note=1), "the evidence holds what no run writes: note"),
        (lambda d: d["predicate"].update(complete="no"), "the evidence says complete: 'no'"),
        (lambda d: d["predicate"].update(swap_refused="x"), "was judged by swap, which this run cannot have"),
        (lambda d: d["predicate"]["catalogue"][0].update(must_stay_green=[]), "copy of the catalogue is not"),
        (lambda d: d["subject"].append(d["subject"][0]), "the evidence names a file twice"),
    ],
)
def test_evidence_that_no_run_would_have_written_is_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, change: Change, sentence: str
) -> None:
    edit(project, change)
    refused(project, monkeypatch, 5, sentence)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("predicate"),
        lambda d: d.update(predicate=[]),
        lambda d: d.pop("subject"),
        lambda d: d.update(subject=[1]),
        lambda d: d["predicate"].update(mutants=None),
        lambda d: d["predicate"].update(mutants=[1]),
        lambda d: d["predicate"].update(catalogue=None),
        lambda d: d["predicate"].update(baseline=[]),
        lambda d: d["predicate"].update(versions=None),
        lambda d: d["predicate"].update(controls=None),
        lambda d: _mutant(d).update(id=[1]),
        lambda d: _mutant(d).update(verdict=[1]),
        lambda d: _mutant(d).pop("killers"),
    ],
)
def test_evidence_of_another_shape_is_refused_without_a_traceback(
    project: Path, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    edit(project, change)
    assert run_gate(project, monkeypatch).code == 5


@pytest.mark.parametrize("content", [b"[" * 200_000, b"[]\n", b"\xff\xfe", b"", b"NaN\n", b'{"_type": 3}\n'])
def test_what_is_no_evidence_at_all_is_refused_without_a_traceback(
    project: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    (project / "reports" / "evidence.json").write_bytes(content)
    refused(project, monkeypatch, 5, "reports/evidence.json is")


def test_a_folder_in_the_place_of_evidence_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "reports" / "evidence.json").unlink()
    (project / "reports" / "evidence.json").mkdir()
    refused(project, monkeypatch, 5, "reports/evidence.json cannot be read: Is a directory")


def test_a_file_counts_behind_a_link_in_an_inner_checkout_and_under_any_name(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One run covers all ways in which a file of the project is not a plain tracked one.
    shared, inner = tmp_path / "shared", project / "inner"
    shared.mkdir()
    inner.mkdir()
    for path in (shared / "data.txt", shared / "other.txt", inner / "part.txt"):
        path.write_text("1")
    (project / "link.txt").symlink_to(shared / "data.txt")
    (project / "folder").symlink_to(shared)
    (project / "up").symlink_to("..")
    Path(os.fsdecode(os.fsencode(project) + b"/\xff.txt")).write_text("")
    os.mkfifo(project / "pipe")
    (project / ".gitignore").write_text("reports\ntests/\n")
    for folder in (inner, project):
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
    assert run(project, monkeypatch, "-j", "2").code == 0
    assert run_gate(project, monkeypatch).code == 0
    for path, told in (
        (shared / "data.txt", "link.txt"),
        (shared / "other.txt", "folder/other.txt"),
        (inner / "part.txt", "inner/part.txt"),
        # Ignored, but a killer's file and what stands above it.
        (project / "tests" / "test_calc.py", "tests/test_calc.py"),
        (project / "tests" / "conftest.py", "tests/conftest.py"),
    ):
        before = path.read_text()
        path.write_text(before + "\n")
        assert told in refused(project, monkeypatch, 5, "changed since the run").text
        path.write_text(before)
    (project / "link.txt").unlink()
    (project / "link.txt").symlink_to(inner / "part.txt")
    refused(project, monkeypatch, 5, "stale: 1 files changed since the run: link.txt")


def test_the_report_does_without_notes_that_cannot_be_read_and_says_when_nothing_can(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in (b"{", b"[1]", b"\xff"):
        (project / "reports" / "run.json").write_bytes(content)
        assert run(project, monkeypatch, "--report-only").code == 0
    edit(project, lambda d: d["predicate"].update(mutants=[1]))
    told = run(project, monkeypatch, "--report-only")
    assert told.code == 5
    assert "has observations that cannot be read" in told.text


def test_a_reader_that_leaves_does_not_change_the_exit_code(project: Path) -> None:
    for module, args in (("harness.mutate", ("--report-only",)), ("harness.gate", ())):
        reader, writer = os.pipe()
        os.close(reader)
        gone = start(project, module=module, args=args, stdout=writer)
        os.close(writer)
        assert gone.wait() == 0
