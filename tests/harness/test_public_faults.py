"""Each way in which a mutation gate was fooled in public is refused here, by tests that exist."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from toys import toys

HERE = Path(__file__).parent
TABLE = tomllib.loads((HERE / "public.toml").read_text())["fault"]
PROMISES = tomllib.loads((HERE / "sabotage.toml").read_text())
KNOWN = {f"toy: {toy.name}" for toy in toys()}
KNOWN |= {f"sabotage: {case['promise']}" for kind in PROMISES.values() for case in kind}
KNOWN |= {
    f"{path.name}::{line.removeprefix('def ').partition('(')[0]}"
    for path in HERE.glob("test_*.py")
    for line in path.read_text().splitlines()
    if line.startswith("def test_")
}


@pytest.mark.parametrize("fault", TABLE, ids=[f"refused, {fault['what']}" for fault in TABLE])
def test_what_fooled_others_is_refused_by_a_test(fault: dict[str, list[str]]) -> None:
    assert fault["seen"]
    assert fault["by"]
    assert set(fault["by"]) <= KNOWN
