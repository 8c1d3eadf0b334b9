"""The workflow's one required check stands for every other job and takes nothing but success for success."""

import json
import os
import subprocess

import pytest
import yaml
from documents import ROOT

WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
JOBS = WORKFLOW["jobs"]
PARTS = [name for name in JOBS if name != "required"]
GREEN = {part: {"result": "success", "outputs": {}} for part in PARTS}


def judge(needs: dict) -> int:
    """Runs the very script of the required job on results as GitHub would hand them over."""
    [step] = JOBS["required"]["steps"]
    environment = os.environ | {"PARTS": JOBS["required"]["env"]["PARTS"], "NEEDS": json.dumps(needs)}
    return subprocess.run(["bash", "-e", "-c", step["run"]], env=environment, capture_output=True).returncode


def test_the_required_job_comes_last_needs_every_other_job_and_always_runs():
    required = JOBS["required"]
    assert list(JOBS)[-1] == "required"
    assert required["if"] == "always()"
    assert sorted(required["needs"]) == sorted(PARTS) == sorted(required["env"]["PARTS"].split())
    assert required["env"]["NEEDS"] == "${{ toJSON(needs) }}"


def test_all_parts_green_is_green():
    assert judge(GREEN) == 0


@pytest.mark.parametrize("result", ["failure", "cancelled", "skipped", "", "SUCCESS"])
@pytest.mark.parametrize("part", PARTS)
def test_one_part_that_is_not_a_success_is_red(part: str, result: str):
    assert judge(GREEN | {part: {"result": result}}) != 0


@pytest.mark.parametrize("part", PARTS)
def test_an_absent_part_is_red(part: str):
    assert judge({name: value for name, value in GREEN.items() if name != part}) != 0


def test_nothing_at_all_is_red():
    assert judge({}) != 0


def test_no_job_hides_its_failure():
    for name, job in JOBS.items():
        assert "continue-on-error" not in job, name
        assert not any(
            "continue-on-error" in step or "|| true" in step.get("run", "") for step in job["steps"]
        )
        assert name == "required" or "if" not in job


def test_the_jobs_run_every_tox_environment():
    ran = {
        step["run"].removeprefix("tox -e ")
        for job in JOBS.values()
        for step in job["steps"]
        if "tox -e" in step.get("run", "")
    }
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    assert ran == {line[len("[testenv:") : -1] for line in tox.splitlines() if line.startswith("[testenv:")}


def test_the_workflow_takes_the_cpu_build_of_torch():
    assert WORKFLOW["env"]["PIP_EXTRA_INDEX_URL"].endswith("/whl/cpu")
    assert WORKFLOW["env"]["PIP_CONSTRAINT"] == "constraints.txt"
