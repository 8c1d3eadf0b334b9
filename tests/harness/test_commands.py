"""list, show, add, check and report-only do what their help says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from toys import command, lay, read, run

from harness import mutate
from harness.mutation import audit

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The toy of the killed verdict."""
    return lay(read("killed"), tmp_path / "project")


def commit(root: Path) -> None:
    for line in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "start"],
    ):
        subprocess.run(["git", "-C", str(root), *line], check=True)


def test_list_names_every_entry_and_counts_them(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = run(project, monkeypatch, "list").text
    assert "the-fault  sums  should be killed, 1 killers; last: not judged" in text
    assert "1 entries" in text


def test_show_prints_the_diff_and_the_killers(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = run(project, monkeypatch, "show", "the-fault").text
    assert "-    return x + 1\n+    return x + 2\n" in text
    assert "killed by: tests/test_calc.py::test_f" in text


def test_show_of_an_unknown_id_names_the_nearest(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run(project, monkeypatch, "show", "the-faul")
    assert (ran.code, ran.text) == (2, "there is no mutant 'the-faul'; did you mean 'the-fault'?")


def test_an_audit_judges_in_one_way_only_and_compares_with_the_evidence(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(project, monkeypatch).code == 0
    evidence = (project / "reports" / "evidence.json").read_bytes()
    ran = run(project, monkeypatch, "--isolation", "reimport")
    assert ran.code == 0, ran.text
    assert "audit: 1 of 1 entries were judged by reimport alone" in ran.text
    assert "audit: every verdict and every killer that killed is the evidence's" in ran.text
    assert (project / "reports" / "evidence.json").read_bytes() == evidence


def test_an_audit_tells_every_difference() -> None:
    one = {"id": "a", "sources": {"calc.py": "1"}, "verdict": "killed", "killed": ["t"], "mode": "swap"}
    other = {**one, "verdict": "survived", "killed": [], "mode": "spawn"}
    assert audit.differences({"a": one}, [one]) == []
    told = audit.differences({"a": one}, [other])
    assert [(f.code, f.sentence) for f in told] == [
        (4, "audit: a: verdict killed in the evidence (by swap), survived by spawn")
    ]
    for before in ({}, {"a": {**one, "sources": {"calc.py": "2"}}}):
        assert "the evidence holds no result of this text" in audit.differences(before, [one])[0].sentence


def test_explain_tells_each_killer_and_its_stage(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(project, monkeypatch).code == 0
    text = run(project, monkeypatch, "explain", "the-fault").text
    for line in (
        "the-fault: killed, should be killed: 1 of 1 listed killers",
        "judged by swap\n",
        "  judged by swap: mutated source executed, collected, changed lines ran: killed (AssertionError at tests/test_calc.py:6)",
        "  confirmed by reimport: mutated source executed, collected, changed lines ran: killed",
        "  stage: seen; its assertion failed in both runs",
        "the rest of the suite was not run",
    ):
        assert line in text, text
    assert "changed since that run" not in text


@pytest.mark.parametrize(
    ("toy", "stage", "why"),
    [
        (
            "not_reached",
            "stage: not reached; the test executed the file and none of the changed lines",
            "the-fault: not-reached; 0 of 1 tests that were asked reach it, 0 infected",
        ),
        (
            "survived",
            "stage: reached and not seen; the changed lines ran and every assertion held",
            "f (call 1) leaves another result: 2, mutant 3; tests/test_calc.py:5 depends on it",
        ),
        ("crashed", "stage: reached, and no verdict of a test; crashed: died by ", "the-fault: seen; 1 of 1"),
        (
            "not_applied_exec",
            "stage: not applied; the test never executed the mutated file",
            "the-fault: not-reached; 0 of 1",
        ),
    ],
)
def test_explain_names_the_stage_in_which_a_fault_is_lost(
    toy: str, stage: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = lay(read(toy), tmp_path / "project")
    assert run(root, monkeypatch, "--only", "the-fault", "--no-explain").code in (1, 3, 4)
    text = run(root, monkeypatch, "explain", "the-fault").text
    assert stage in text and why in text, text


def test_a_run_says_why_a_fault_is_not_seen_beside_evidence_that_stays_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = lay(read("survived"), tmp_path / "project")
    plain = run(root, monkeypatch, "--no-explain")
    evidence = (root / "reports" / "evidence.json").read_bytes()
    assert "the-fault: weak-assertion" not in plain.text
    ran = run(root, monkeypatch)
    assert "the-fault: weak-assertion; 2 of 2 tests that were asked reach it, 2 infected" in ran.text
    assert (root / "reports" / "evidence.json").read_bytes() == evidence
    found = ran.evidence("run.json")["why"]["the-fault"]["findings"][0]
    assert (found["path"], found["before"], found["after"]) == ("result", "2", "3")
    assert run(root, monkeypatch, "--report-only").text == ran.text


def test_explain_asks_the_tests_that_it_is_told_and_else_those_that_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = lay(read("survived"), tmp_path / "project")
    asked = run(root, monkeypatch, "explain", "the-fault", "--test", "tests/test_calc.py::test_more")
    assert asked.code == 5 and "tests/test_calc.py::test_more: weak-assertion" in asked.text, asked.text
    lost = run(root, monkeypatch, "explain", "the-fault", "--test", "tests/test_calc.py::test_mor")
    assert lost.code == 2 and "did you mean 'tests/test_calc.py::test_more'" in lost.text
    catalogue = root / "mutants" / "sums.toml"
    text = catalogue.read_text().replace("test_f", "test_g", 1)
    catalogue.write_text(text)
    found = run(root, monkeypatch, "explain", "the-fault").text
    assert "the-fault: weak-assertion; 2 of 2 tests that were asked reach it" in found, found


def test_explain_says_when_the_entry_changed_since(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(project, monkeypatch).code == 0
    catalogue = project / "mutants" / "sums.toml"
    catalogue.write_text(catalogue.read_text().replace("x + 2", "x + 3"))
    assert "changed since that run" in run(project, monkeypatch, "explain", "the-fault").text


def test_explain_of_what_was_never_judged_says_how_to_judge_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run(project, monkeypatch, "explain", "the-fault")
    assert ran.code == 5
    assert "run `rowproof mutate --only the-fault`" in ran.text


def test_the_report_shows_killers_whole_and_their_common_test_once(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "tests" / "test_calc.py").write_text(
        "import pytest\n\nimport calc\n\n\n"
        "@pytest.mark.parametrize('x', ['a' * 90, 'b' * 90])\ndef test_f(x):\n    assert calc.f(1) == 2\n"
    )
    names = [f"tests/test_calc.py::test_f[{letter * 90}]" for letter in "ab"]
    catalogue = project / "mutants" / "sums.toml"
    catalogue.write_text(
        catalogue.read_text().replace('"tests/test_calc.py::test_f"', ", ".join(f'"{n}"' for n in names))
        + 'survives_under = ["zeros"]\n'
    )
    first = run(project, monkeypatch)
    assert first.code == 0, first.text
    text = command(mutate.app, project, monkeypatch, "--report-only", columns="120").text
    assert "[...] is tests/test_calc.py::test_f[...]" in text
    assert all(f"[{letter * 90}]" in text.replace("\n", "").replace(" ", "") for letter in "ab")
    assert "claimed, not verified here: survives_under of 1 entries: the-fault" in text


def test_add_makes_an_entry_with_real_killers_and_puts_the_file_back(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(project)
    before = (project / "calc.py").read_bytes()
    (project / "calc.py").write_bytes(before.replace(b"x + 1", b"x - 1"))
    ran = run(
        project,
        monkeypatch,
        "add",
        "calc.py",
        "--id",
        "goes-down",
        "--theme",
        "sums",
        "--because",
        "It sinks.",
    )
    assert ran.code == 0, ran.text
    assert (project / "calc.py").read_bytes() == before
    assert "goes-down is appended to mutants/sums.toml, killed by 1 tests" in ran.text
    assert "x - 1" in (project / "reports" / "goes-down.patch").read_text()
    judged = run(project, monkeypatch, "--only", "goes-down")
    assert judged.code == 0, judged.text


def test_add_without_an_edit_changes_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(project)
    ran = run(
        project, monkeypatch, "add", "calc.py", "--id", "no-edit", "--theme", "sums", "--because", "It sinks."
    )
    assert ran.code == 2
    assert "calc.py has no uncommitted edit" in ran.text


def test_add_refuses_what_no_run_would_accept_before_it_touches_anything(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "notes.txt").write_text("one\n")
    commit(project)
    good = {"--id": "sinks", "--theme": "sums", "--because": "It sinks."}
    source, edited = (project / "calc.py").read_bytes(), b"x - 1"
    plain = source.replace(b"x + 1", edited)
    refusals = [
        ("calc.py", plain, {"--theme": "../sums"}, "--theme ../sums: names a file of the catalogue"),
        ("calc.py", plain, {"--because": " "}, "--because is empty"),
        ("calc.py", plain, {"--tests": "nowhere"}, "--tests nowhere: there is no such file"),
        ("calc.py", plain + b"def (\n", {}, "calc.py: the mutated text has a syntax error"),
        ("calc.py", source + b"# only words\n", {}, "calc.py: the syntax tree is unchanged"),
        ("calc.py", plain + b"# \xff\n", {}, "calc.py: is not UTF-8 text"),
        ("notes.txt", b"two\n", {}, "file 'notes.txt' is not Python source"),
        ("../outside.py", None, {}, "git has no committed version of '../outside.py'"),
    ]
    catalogue = (project / "mutants" / "sums.toml").read_bytes()
    for file, text, changed, sentence in refusals:
        if text is not None:
            (project / file).write_bytes(text)
        options = [word for pair in (good | changed).items() for word in pair]
        ran = run(project, monkeypatch, "add", file, *options)
        assert (ran.code, sentence in ran.text) == (2, True), ran.text
        assert text is None or (project / file).read_bytes() == text
        assert (project / "mutants" / "sums.toml").read_bytes() == catalogue
        (project / "calc.py").write_bytes(source)


def test_add_keeps_the_bytes_and_the_mode_of_a_file_however_it_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A byte order mark, Windows line ends, an executable file; a test that is red anyway, and a skipped one.
    source = b"\xef\xbb\xbf" + (project / "calc.py").read_bytes().replace(b"\n", b"\r\n")
    (project / "calc.py").write_bytes(source)
    (project / "calc.py").chmod(0o755)
    (project / "tests" / "test_red.py").write_text(
        "import calc\nimport pytest\n\n\ndef test_red():\n    assert calc.f(1) == 7\n\n\n"
        "@pytest.mark.skip\ndef test_skipped():\n    assert calc.f(1) == 2\n"
    )
    commit(project)
    (project / "calc.py").write_bytes(source.replace(b"x + 1", b"x - 1"))
    options = ("--id", "sinks", "--theme", "sums", "--because", "It sinks.")
    ran = run(project, monkeypatch, "add", str(project / "calc.py"), *options)
    assert ran.code == 0, ran.text
    assert (project / "calc.py").read_bytes() == source
    assert (project / "calc.py").stat().st_mode & 0o777 == 0o755
    assert "tests/test_red.py::test_red is red without the fault too" in ran.text
    assert "test_skipped" not in ran.text
    assert "killed by 1 tests" in ran.text
    assert 'file = "calc.py"' in (project / "mutants" / "sums.toml").read_text().split('id = "sinks"')[1]
    judged = run(project, monkeypatch, "--only", "sinks")
    assert judged.code == 0, judged.text


def test_check_imports_no_torch_and_no_project_code(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "harness.mutate", "--check"],
        cwd=project,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.stdout == "1 valid entries in 1 files: no problems\n"
    assert not imported & {"torch", "numpy", "pytest", "calc"}


def test_the_report_can_be_printed_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(project, monkeypatch)
    assert run(project, monkeypatch, "--report-only").text == first.text


def test_flags_that_exclude_each_other_are_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run(project, monkeypatch, "--check", "--report")
    assert ran.code == 2
    assert "exclude each other" in ran.text


def test_only_of_an_unknown_id_names_the_nearest(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = run(project, monkeypatch, "--only", "the-fall")
    assert (ran.code, ran.text) == (2, "--only the-fall: there is no such mutant; did you mean 'the-fault'?")


def test_a_file_is_heard_whichever_of_its_entries_is_picked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The killer of `picked` sees this one fault and crashes on all others; another entry's killer hears canaries.
    root = lay(read("deaf_killer"), tmp_path / "project")
    ran = run(root, monkeypatch, "--only", "picked", "-j", "2")
    assert ran.code == 0 and "canary: 1 of 1 behaved" in ran.text, ran.text


def test_rowproof_names_its_commands_and_refuses_others() -> None:
    for arguments, code in ((["--help"], 0), ([], 2), (["mutat"], 2)):
        done = subprocess.run(
            [sys.executable, "-m", "harness", *arguments], cwd=REPOSITORY, capture_output=True, text=True
        )
        assert done.returncode == code
        assert "rowproof mutate    does every listed fault die by its named checks?" in done.stderr
        assert "Traceback" not in done.stderr


def test_rowproof_mutate_is_the_same_command(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "harness", "mutate", "--check"],
        cwd=project,
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "1 valid entries in 1 files: no problems\n"
