"""Lets every environment of tox.ini live in one virtual environment.

tox 4 records the name of an environment in its folder and rebuilds the folder when the next name differs, so
a shared `env_dir` alone would install torch again at every change from `identity` to `tests`. All our
environments install the same things; this runner leaves the name out of what is recorded.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from tox.plugin import impl
from tox.tox_env.info import Info
from tox.tox_env.python.virtual_env.runner import VirtualEnvRunner
from tox.tox_env.register import ToxEnvRegister


class NamelessInfo(Info):
    @contextmanager
    def compare(
        self, value: Any, section: str, sub_section: str | None = None
    ) -> Generator[tuple[bool, Any]]:
        if section == "ToxEnv":
            value = value | {"name": "any"}
        with super().compare(value, section, sub_section) as answer:
            yield answer


class SharedEnvironment(VirtualEnvRunner):
    @staticmethod
    def id() -> str:
        return "shared"

    @property
    def cache(self) -> Info:
        return NamelessInfo(self.env_dir)


@impl
def tox_register_tox_env(register: ToxEnvRegister) -> None:
    register.add_run_env(SharedEnvironment)
