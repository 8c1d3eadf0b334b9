"""README's table of exit codes and the one enum that every command answers with."""

import re

from documents import ROOT

from harness.exit_codes import ExitCode, worst


def section() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8").split("## Exit codes")[1].split("\n## ")[0]


def test_readme_lists_every_exit_code_with_its_meaning():
    listed = re.findall(r"^\| (\d+) \| (.+) \|$", section(), re.MULTILINE)
    assert listed == [(str(code.value), code.meaning) for code in sorted(ExitCode)]


def test_readme_names_the_order_in_which_codes_win():
    [said] = re.findall(r"wins: ([\d, ]+)\.", section())
    order = [ExitCode(int(code)) for code in said.split(", ")]
    assert sorted([*order, ExitCode.OK]) == sorted(ExitCode)
    for position, code in enumerate(order):
        assert worst([ExitCode.OK, *order[position:]]) is code
