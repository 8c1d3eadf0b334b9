"""`--since REV` judges what a change can have touched, `--audit N` judges again what the evidence says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from toys import lay, read, run

from harness.mutation import audit, evidence, since
from harness.mutation.catalogue import load
from harness.mutation.errors import InputRefused
from harness.mutation.settings import load_settings

ENTRY = """[[mutant]]
id = "{0}"
file = "{0}.py"
scope = "f"
find = "x + 1"
replace = "x + 2"
because = "wrong"
origin = "own"
{1}

"""


def git(root: Path, *line: str) -> None:
    subprocess.run(["git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=e", *line], check=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Three mutated files, each with its test; `two`'s test is also a helper of `three`'s."""
    root = lay(read("killed"), tmp_path / "project")
    (root / "calc.py").unlink()
    (root / "tests" / "test_calc.py").unlink()
    for name in ("one", "two", "three"):
        (root / f"{name}.py").write_text("def f(x):\n    return x + 1\n")
        text = f"import {name}\n\n\ndef test_f():\n    assert {name}.f(1) == 2\n"
        (root / "tests" / f"test_{name}.py").write_text(text)
    with (root / "tests" / "test_three.py").open("a") as handle:
        handle.write("\n\nfrom test_two import two\n")
    killers = [f'killed_by = ["tests/test_{name}.py::test_f"]' for name in ("one", "two")]
    equivalent = 'kind = "equivalent"\nwhy = "nobody looks"'
    (root / "mutants" / "sums.toml").write_text(
        "".join(
            ENTRY.format(*each) for each in zip(("one", "two", "three"), [*killers, equivalent], strict=True)
        )
    )
    (root / "tests" / "conftest.py").write_text("")
    (root / "README.md").write_text("words\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "start")
    return root


@pytest.mark.parametrize(
    ("file", "append", "chosen"),
    [
        ("one.py", "\n# more\n", {"one"}),
        ("mutants/sums.toml", ENTRY.format("one", "").replace('id = "one"', 'id = "new"') + "killed_by = ['tests/test_one.py::test_f']\n", {"new"}),
        ("mutants/more.toml", "", set()),
        # Its test is named by one; the equivalent is judged by the whole suite.
        ("tests/test_one.py", "\n# more\n", {"one", "three"}),
        # Another test imports this one, so it may be a helper of any.
        ("tests/test_two.py", "\n# more\n", {"one", "two", "three"}),
        ("tests/test_new.py", "", {"three"}),
        ("tests/conftest.py", "\n# more\n", {"one", "two", "three"}),
        ("pyproject.toml", "\n# more\n", {"one", "two", "three"}),
        ("fixture.json", "{}", {"one", "two", "three"}),
        ("README.md", "more\n", set()),
        ("reports/anything.json", "{}", set()),
    ],
)  # fmt: skip
def test_a_change_asks_for_the_entries_that_it_can_touch(
    project: Path, file: str, append: str, chosen: set[str]
) -> None:
    (project / file).parent.mkdir(exist_ok=True)
    with (project / file).open("a") as handle:
        handle.write(append)
    settings = load_settings(project)
    found = load(project, settings)
    assert found.problems == []
    assert set(since.choose(project, settings, found, "HEAD").why) == chosen


def test_a_revision_that_git_does_not_know_is_refused(project: Path, tmp_path: Path) -> None:
    settings = load_settings(project)
    with pytest.raises(InputRefused, match="git knows no revision 'nowhere'"):
        since.choose(project, settings, load(project, settings), "nowhere")
    bare = lay(read("killed"), tmp_path / "bare")
    with pytest.raises(InputRefused, match="this is no git checkout"):
        since.choose(bare, load_settings(bare), load(bare, load_settings(bare)), "HEAD")


def test_since_judges_what_changed_and_writes_no_evidence(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = run(project, monkeypatch, "--since", "HEAD")
    assert (nothing.code, "0 of 3 entries are judged" in nothing.text) == (5, True)
    catalogue = project / "mutants" / "sums.toml"
    catalogue.write_text(catalogue.read_text().replace("x + 2", "x + 3", 1))
    ran = run(project, monkeypatch, "--since", "HEAD")
    assert ran.code == 0, ran.text
    assert "mutants/sums.toml: 1 entries" in ran.text
    assert "killed 1 of 1" in ran.text
    records = ran.evidence("partial.json")["predicate"]["mutants"]
    assert [record["id"] for record in records] == ["one"]
    assert not (project / "reports" / "evidence.json").exists()


def test_an_audit_judges_a_sample_in_fresh_interpreters_and_finds_evidence_that_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = lay(read("killed"), tmp_path / "project")
    # A toy's second is short for a whole interpreter on a busy machine.
    (root / "pyproject.toml").unlink()
    catalogue = root / "mutants" / "sums.toml"
    catalogue.write_text(
        "\n".join(
            [catalogue.read_text(), catalogue.read_text().replace("the-fault", "b").replace("+ 2", "+ 3")]
        )
    )
    assert run(root, monkeypatch, "--audit", "1").code == 5
    assert run(root, monkeypatch).code == 0
    ran = run(root, monkeypatch, "--audit", "1")
    assert ran.code == 0, ran.text
    assert "audit: 1 of 1 entries were judged by spawn alone" in ran.text
    (record,) = ran.evidence("partial.json")["predicate"]["mutants"]
    assert {seen["mode"] for runs in record["killers"].values() for seen in runs} == {"spawn"}
    path = root / "reports" / "evidence.json"
    data = json.loads(path.read_text())
    for each in data["predicate"]["mutants"]:
        each["verdict"] = "survived"
    data["seal"] = evidence.seal(data)
    path.write_bytes(evidence.canonical(data))
    ran = run(root, monkeypatch, "--audit", "5")
    assert ran.code == 4, ran.text
    assert "audit: b: verdict survived in the evidence (by swap), killed by spawn" in ran.text


def test_a_sample_depends_on_the_evidence_and_on_nothing_else() -> None:
    names = [f"entry-{number}" for number in range(30)]
    one, order = audit.sample("a" * 64, names, 5)
    assert (one, order) == audit.sample("a" * 64, list(reversed(names)), 5)
    assert len(one) == 5
    assert audit.sample("b" * 64, names, 5) != (one, order)
    assert audit.sample("a" * 64, names, 99)[0] == frozenset(names)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--since", "HEAD", "--audit", "1"), "--since and --audit exclude each other"),
        (("--audit", "1", "--shuffle", "2"), "drop --shuffle"),
        (("--audit", "0"), "--audit"),
    ],
)
def test_flags_that_make_no_sense_together_are_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], sentence: str
) -> None:
    ran = run(project, monkeypatch, *arguments)
    assert ran.code == 2
    assert sentence in ran.text, ran.text
