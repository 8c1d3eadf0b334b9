"""A project's own options that must not reach a judgement: workers, coverage, retries, shuffling, debuggers.

They are set back where pytest has parsed them, not on the command line: a project may have switched a plug-in off
(`-p no:xdist`), and then its options are unknown there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Options by the name that pytest gives them, and what they are set to where they exist.
_SET_BACK: dict[str, Any] = {
    # pytest-xdist: tests run here, not in workers.
    "numprocesses": None,
    "distload": False,
    "dist": "no",
    "tx": [],
    # pytest-rerunfailures: a retry hides a flaky test.
    "reruns": 0,
    "force_reruns": 0,
    # pytest-randomly: no order of its own, and a seed that is no clock.
    "randomly_reorganize": False,
    "randomly_seed": 1,
    # pytest itself: nobody sits at a debugger, and every item is really run.
    "usepdb": False,
    "trace": False,
    "setuponly": False,
    "setupplan": False,
    "collectonly": False,
}


class EarlyOptions:
    """A plug-in that is there before any other: coverage starts while the options are still being parsed."""

    def pytest_load_initial_conftests(self, early_config: Any) -> Iterator[None]:
        """Take `--cov` away before pytest-cov looks for it."""
        options = early_config.known_args_namespace
        if hasattr(options, "cov_source"):
            options.cov_source = []
        return (yield)


def early() -> EarlyOptions:
    """The plug-in, marked to run first."""
    import pytest

    pytest.hookimpl(wrapper=True, tryfirst=True)(EarlyOptions.pytest_load_initial_conftests)
    return EarlyOptions()


def set_back(config: Any) -> None:
    """Call between parsing and configuring."""
    for name, value in _SET_BACK.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
