"""Bad catalogues and settings are refused with all problems at once, each with what to do."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from harness.mutation.anchor import sources
from harness.mutation.catalogue import load
from harness.mutation.errors import InputRefused
from harness.mutation.settings import load_settings

CODE = """def f(x):
    y = x + 1
    return y


class Box:
    def get(self):
        return self.n

    def put(self, n):
        def check(value):
            return value > 0

        self.n = n if check(n) else 0
"""
GOOD = """id = "good"
file = "calc.py"
scope = "f"
find = "x + 1"
replace = "x + 2"
because = "It would be wrong."
origin = "own"
killed_by = ["tests/test_calc.py::test_f"]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with one code file, one test file and an empty catalogue."""
    for name, text in {"calc.py": CODE, "tests/test_calc.py": "", "mutants/.keep": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def problems(root: Path, *entries: str) -> list[str]:
    """Check a catalogue of these entries."""
    (root / "mutants" / "a.toml").write_text("".join(f"[[mutant]]\n{entry}\n" for entry in entries))
    return load(root, load_settings(root)).problems


def changed(**values: str) -> str:
    """The good entry with some lines replaced."""
    lines = [values.get(line.partition(" = ")[0], line) for line in GOOD.splitlines()]
    return "\n".join(line for line in lines if line)


def test_a_good_entry_has_no_problem(root: Path) -> None:
    assert problems(root, GOOD) == []


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (GOOD + 'becase = "typo"', "unknown key 'becase'; did you mean 'because'?"),
        (changed(origin=""), "key 'origin' is missing"),
        (changed(because='because = " "'), "key 'because' is empty"),
        (changed(id='id = "Not Kebab"'), "the id should be kebab-case"),
        (changed(file='file = "calk.py"'), "there is no file 'calk.py'; did you mean 'calc.py'?"),
        (changed(file='file = "../outside.py"'), "lies outside the allowed roots (.)"),
        (changed(scope='scope = "ff"'), "there is no definition 'ff'; did you mean 'f'?"),
        (
            changed(find='find = "x + 7"'),
            "the anchor occurs 0 times inside 'f', should be once; it is nowhere",
        ),
        (changed(find='find = "self.n"'), "it occurs 2 times elsewhere in the file"),
        (changed(find='find = "y"'), "the anchor occurs 2 times inside 'f' (lines 2, 3), should be once"),
        (changed(find='find = ""'), "find is empty"),
        (changed(replace='replace = "x + 1"'), "replace equals find"),
        (changed(replace='replace = "x +"'), "the mutated text has a syntax error in line"),
        (changed(replace='replace = "(yield from x"'), "the mutated text has a syntax error in line"),
        (changed(replace='replace = "x + 1  # more"'), "the syntax tree is unchanged"),
        (changed(replace=""), "key 'find' or 'replace' is missing"),
        (changed(killed_by="killed_by = []"), "killed_by has 0 ids, should have 1 to 3"),
        (changed(killed_by='killed_by = ["test_f"]'), "should be a pytest id such as path/test_x.py::test_y"),
        (changed(killed_by='killed_by = ["tests/test_no.py::t"]'), "there is no file 'tests/test_no.py'"),
        (changed(killed_by='killed_by = ["tests/test_calc.py::test_*"]'), "a killer is an exact id"),
        (
            GOOD + 'must_stay_green = ["tests/test_calc.py::test_f"]',
            "is both in killed_by and in must_stay_green",
        ),
        (GOOD + 'kind = "equivalent"', "kind is 'equivalent' without why"),
        (GOOD + 'kind = "equal"', "key 'kind' is 'equal'"),
        (GOOD + 'dies_by = "error"', "dies_by is 'error', should be 'assertion' or the dotted name"),
        (GOOD + 'dies_by = "builtins.Exception"', "dies_by is 'builtins.Exception', which every crash is"),
        (
            GOOD + 'twin_of = "goood"',
            "twin_of names 'goood', which is not in the catalogue; did you mean 'good'?",
        ),
    ],
)
def test_each_mistake_has_its_sentence(root: Path, entry: str, sentence: str) -> None:
    found = problems(root, entry)
    assert any(sentence in problem for problem in found), found


@pytest.mark.parametrize(
    ("scope", "find", "replace", "told", "mutated"),
    [
        # A part of a line has changed; what to paste is a part of a line.
        ("f", "x + 7", "x + 2", "the nearest text there (line 2, 80% alike)", "y = x + 2\n"),
        # Lines have changed.
        (
            "Box.put",
            "        def check(number):\n            return number > 0\n",
            "        check = bool\n",
            "the nearest text there (line 11,",
            "        check = bool\n\n        self.n",
        ),
        # The text has moved to another definition, or its definition has another name.
        ("f", "return self.n", "return 0", "it now stands in line 8", "def get(self):\n        return 0\n"),
        ("Bag.get", "return self.n", "return 0", "it now stands in line 8", "get(self):\n        return 0\n"),
        # It occurs twice; each place has lines of its own to paste, of which the first are tried here.
        ("f", "y", "z", "lengthen find; for line 2", "    z = x + 1\n    return y\n"),
    ],
)
def test_a_stale_anchor_is_answered_with_lines_to_paste(
    root: Path, scope: str, find: str, replace: str, told: str, mutated: str
) -> None:
    stale = changed(
        scope=f'scope = "{scope}"', find=f"find = '''{find}'''", replace=f"replace = '''{replace}'''"
    )
    (problem,) = problems(root, stale)
    assert told in problem, problem
    pasted = tomllib.loads(problem.partition(":\n")[2].partition("; for line")[0])
    assert pasted
    table = tomllib.loads(stale) | pasted
    fixed = "\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items())
    assert problems(root, fixed) == []
    edits = load(root, load_settings(root)).mutants[0].edits
    assert mutated in sources(root, edits)["calc.py"][1]


def test_an_anchor_that_is_like_nothing_is_not_answered_with_a_guess(root: Path) -> None:
    (problem,) = problems(root, changed(find='find = "while not torch.isfinite(loss):"'))
    assert problem.endswith("it is nowhere in the file")


def test_all_problems_are_told_at_once(root: Path) -> None:
    found = problems(
        root, changed(id='id = "one"', find='find = "x + 7"'), changed(id='id = "two"', origin=""), GOOD, GOOD
    )
    assert len(found) == 3
    assert "mutant 'good': the id is already used in mutants/a.toml" in "\n".join(found)


def test_one_entry_tells_all_its_problems_at_once(root: Path) -> None:
    bad = changed(
        id='id = "Bad Id"',
        origin="",
        find='find = "x + 7"',
        killed_by='killed_by = ["tests/gone.py::test_f"]',
    )
    found = problems(root, bad + '\nbecase = "typo"\ndies_by = "error"\ntwin_of = "goood"', GOOD)
    wanted = ("unknown key 'becase'", "'origin' is missing", "kebab-case", "the anchor occurs 0 times", "gone.py",
              "dies_by is 'error'", "twin_of names 'goood'")  # fmt: skip
    assert [part for part in wanted if part not in "\n".join(found)] == []
    assert len(found) == len(wanted), found


def test_a_bad_key_hides_no_bad_anchor_and_adds_no_false_complaint(root: Path) -> None:
    entry = changed(killed_by="killed_by = 3", find='find = "x + 7"')
    assert len(problems(root, entry)) == 2
    assert len(problems(root, changed(scope="scope = 3"))) == 1


def test_a_twin_may_be_an_entry_that_has_problems_of_its_own(root: Path) -> None:
    found = problems(
        root, changed(id='id = "one"', find='find = "x + 7"'), changed(id='id = "two"') + '\ntwin_of = "one"'
    )
    assert len(found) == 1 and "anchor" in found[0]


def test_a_file_that_is_not_toml_is_named_with_its_line(root: Path) -> None:
    (root / "mutants" / "b.toml").write_text("[[mutant]\n")
    assert "mutants/b.toml: is not valid TOML" in load(root, load_settings(root)).problems[0]


def test_scopes_reach_methods_nested_functions_and_the_module(root: Path) -> None:
    for scope, find, replace in (
        ("Box.get", "self.n", "self.n + 1"),
        ("Box.put.<locals>.check", "value > 0", "value > 1"),
        ("Box", "def get(self)", "def get(self, more=0)"),
        ("<module>", "x + 1", "x + 2"),
    ):
        entry = changed(scope=f'scope = "{scope}"', find=f'find = "{find}"', replace=f'replace = "{replace}"')
        assert problems(root, entry) == [], scope


def test_an_edit_above_an_anchor_moves_nothing(root: Path) -> None:
    entry = changed(scope='scope = "Box.get"', find='find = "self.n"', replace='replace = "self.n + 1"')
    assert problems(root, entry) == []
    (root / "calc.py").write_text("import os\n\n\ndef g(self):\n    return self.n\n\n\n" + CODE)
    assert problems(root, entry) == []
    edits = load(root, load_settings(root)).mutants[0].edits
    assert "def get(self):\n        return self.n + 1\n" in sources(root, edits)["calc.py"][1]


def test_a_link_out_of_the_roots_is_refused(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "real.py"
    outside.write_text(CODE)
    (root / "linked.py").symlink_to(outside)
    assert "lies outside the allowed roots" in problems(root, changed(file='file = "linked.py"'))[0]


def test_a_missing_catalogue_folder_says_what_to_create(tmp_path: Path) -> None:
    assert "there is no catalogue folder; create it" in load(tmp_path, load_settings(tmp_path)).problems[0]


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("helper = []", "unknown key 'helper'; did you mean 'helpers'?"),
        ("[tool.rowproof.limits]\nwal_s = 1", "unknown key 'limits.wal_s'; did you mean 'wall_s'?"),
        ("[tool.rowproof.limits]\nwall_s = 'long'", "key 'limits.wall_s' is 'long'"),
        ('roots = ["nowhere"]', "roots names 'nowhere', which does not exist"),
        ('import_paths = ["src"]', "import_paths names 'src', which does not exist"),
        ('catalogue = "../mutants"', "catalogue names '../mutants', which is not inside the project"),
        ('tests = ["/tmp"]', "tests names '/tmp', which is not inside the project"),
        ('reports = "."', "reports is '.', the project itself; give it a folder of its own"),
    ],
)
def test_unknown_settings_are_refused(root: Path, table: str, sentence: str) -> None:
    (root / "pyproject.toml").write_text(f"[tool.rowproof]\n{table}\n")
    with pytest.raises(InputRefused) as refused:
        load_settings(root)
    assert sentence in "\n".join(refused.value.problems)


def test_settings_of_other_commands_are_left_alone(root: Path) -> None:
    (root / "pyproject.toml").write_text('[tool.rowproof.identity]\nanything = "goes"\n')
    assert load_settings(root).catalogue == "mutants"


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("tool = 3", "[tool.rowproof] should be a table"),
        ("[tool]\nrowproof = 3", "[tool.rowproof] should be a table"),
        ("[tool.rowproof.limits]\nwall_s = nan", "wall_s is nan, should be a number of at least 0.0"),
        ("[tool.rowproof.limits]\nwall_factor = inf", "wall_factor is inf, should be a number"),
        ("[tool.rowproof.limits]\nmemory_mib = -9", "memory_mib is -9, should be a number of at least 1"),
        ("[tool.rowproof.limits]\nwall_s = 0\nwall_factor = 0", "wall_s and wall_factor are both 0"),
    ],
)
def test_settings_that_are_no_table_and_limits_that_are_no_number_are_refused(
    tmp_path: Path, table: str, sentence: str
) -> None:
    (tmp_path / "pyproject.toml").write_text(table + "\n")
    with pytest.raises(InputRefused) as refusal:
        load_settings(tmp_path)
    assert sentence in refusal.value.problems[0]


@pytest.mark.parametrize("table", ["[tool]\npytest = 'x'", "[tool.pytest.ini_options]\ntestpaths = 3"])
def test_a_pytest_table_of_another_shape_is_left_to_pytest(tmp_path: Path, table: str) -> None:
    (tmp_path / "pyproject.toml").write_text(table + "\n")
    assert load_settings(tmp_path).tests == (".",)


@pytest.mark.parametrize(
    ("files", "tests"),
    [
        ({}, (".",)),
        ({"tests/test_a.py": ""}, ("tests",)),
        ({"pyproject.toml": '[tool.pytest.ini_options]\ntestpaths = ["checks"]', "checks/a.py": ""}, ("checks",)),
        ({"pyproject.toml": '[tool.pytest]\ntestpaths = ["a/*"]', "a/b/x.py": "", "a/c/x.py": ""}, ("a/b", "a/c")),
        ({"pytest.ini": "[pytest]\ntestpaths = tests/ src", "tests/x": "", "src/x": ""}, ("tests", "src")),
        ({"tox.ini": "[pytest]\ntestpaths = a", "setup.cfg": "[tool:pytest]\ntestpaths = b", "a/x": "", "b/x": ""}, ("a",)),
        ({"pytest.ini": "", "tox.ini": "[pytest]\ntestpaths = a", "a/x": ""}, (".",)),
        ({"setup.cfg": "[tool:pytest]\ntestpaths =\n    b\n    gone", "b/x": ""}, ("b",)),
    ],
    ids=range(8),
)  # fmt: skip
def test_tests_are_where_the_projects_own_pytest_looks(
    tmp_path: Path, files: dict[str, str], tests: tuple[str, ...]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert load_settings(tmp_path).tests == tests
