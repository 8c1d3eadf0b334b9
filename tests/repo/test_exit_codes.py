"""README's table of exit codes and the one enum that the commands answer with."""

import re

from documents import ROOT
from harness.exit_codes import ExitCode


def test_readme_lists_exactly_the_exit_codes_that_exist():
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("## Exit codes")[1].split("\n## ")[0]
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)]
    assert listed == sorted(code.value for code in ExitCode)
