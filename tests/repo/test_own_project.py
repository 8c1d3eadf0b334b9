"""README's "Your own project", done as it says: a fault is kept, judged and gated in a project that knows no rowproof."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from documents import ROOT, commands, fences

FILES = {
    "cart.py": "def total(prices, discount=0):\n    return sum(prices) - discount\n",
    "tests/test_cart.py": (
        "from cart import total\n\n\ndef test_total():\n    assert total([1, 2], discount=1) == 2\n"
    ),
    # Our command is `harness` inside; a project may have a folder of that name.
    "harness/__init__.py": "raise RuntimeError('nobody asked for this')\n",
}
SHOWN = commands("sh", "project")


def shell(command: str, root: Path) -> subprocess.CompletedProcess[str]:
    """A command line in the project, as after activating the environment that rowproof is installed in."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(ROOT)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = ["bash", "-c", command]
    return subprocess.run(done, cwd=root, env=environment, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which README's commands were typed, one after the other."""
    root = tmp_path_factory.mktemp("shop")
    for name, text in FILES.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    commit(root)
    for command in SHOWN:
        done = shell(command, root)
        assert done.returncode == 0, command + "\n" + done.stdout + done.stderr
    return root


def commit(root: Path) -> None:
    git = "git init -q . && git add . && git -c user.name=n -c user.email=e@x.y commit -qm one"
    assert shell(git, root).returncode == 0


def test_the_shown_commands_keep_a_fault_judge_it_and_gate(project: Path):
    assert (project / "cart.py").read_text() == FILES["cart.py"]
    assert "tests/test_cart.py::test_total" in (project / "mutants" / "prices.toml").read_text()
    assert "killed 1 of 1" in (project / "reports" / "mutation.md").read_text()
    # Whoever runs the tests leaves bytecode and caches behind; the evidence holds all the same.
    assert shell("python -m pytest -q", project).returncode == 0
    assert list(project.rglob("__pycache__"))
    assert shell(SHOWN[-1], project).returncode == 0


def test_the_shown_workflow_is_green_on_a_checkout_and_red_when_a_test_looks_away(
    project: Path, tmp_path: Path
):
    [block] = fences("yaml", "project")
    steps = [step["run"] for step in yaml.safe_load(block.text)["steps"] if "run" in step]
    # By address: a bare name would be looked up on PyPI, where another project has it.
    assert steps[0].startswith('pip install "rowproof @ git+https://')
    commit(project)
    assert shell(f"git clone -q {project} {tmp_path}/checkout", tmp_path).returncode == 0
    checkout = tmp_path / "checkout"
    assert [shell(step, checkout).returncode for step in steps[1:]] == [0, 0]
    test = checkout / "tests" / "test_cart.py"
    test.write_text(test.read_text().replace(", discount=1) == 2", ") == 3"))
    assert shell(steps[1], checkout).returncode == 1
