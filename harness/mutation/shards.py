"""`--shard k/n`: which entries one machine judges, so that n machines judge all of them once.

The split follows from the tree alone: equal trees give equal splits on every machine, and trees that
are not equal do not merge. Measured costs count only when a file of the tree holds them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from .catalogue import Mutant
from .errors import InputRefused
from .settings import Settings

_FORM = re.compile(r"(\d+)/(\d+)\Z")


@dataclass(frozen=True)
class Shard:
    """Part `index` (from 0) of `of` parts."""

    index: int
    of: int

    def __str__(self) -> str:
        return f"shard {self.index} of {self.of}"

    @property
    def file(self) -> str:
        """Its name in the reports folder."""
        return f"shard-{self.index}-of-{self.of}.json"

    def told(self, everyone: Sequence[Mutant]) -> dict[str, Any]:
        """What its file says of it: which part, and every entry of the catalogue in order."""
        return {"index": self.index, "of": self.of, "catalogue": [mutant.id for mutant in everyone]}


def parse(text: str) -> Shard:
    """Read `k/n`; raises InputRefused unless 0 <= k < n."""
    found = _FORM.match(text)
    if found is None:
        raise InputRefused([f"--shard {text}: should be k/n, as 0/3 for the first of three"])
    index, of = int(found[1]), int(found[2])
    if of < 1 or index >= of:
        last = f"0/{of} to {of - 1}/{of}" if of > 1 else "0/1"
        raise InputRefused([f"--shard {text}: shards count from zero; {of} shards are {last}"])
    return Shard(index, of)


def pick(mutants: Sequence[Mutant], costs: Mapping[str, float], shard: Shard) -> list[Mutant]:
    """The entries of one shard, in catalogue order; raises InputRefused when there are more shards than entries."""
    if shard.of > len(mutants):
        raise InputRefused(
            [f"--shard {shard.index}/{shard.of}: the catalogue has {len(mutants)} entries, so some shards "
             f"would judge nothing; use at most {len(mutants)} shards"]
        )  # fmt: skip
    mine = split({mutant.id: cost(mutant, costs) for mutant in mutants}, shard.of)[shard.index]
    return [mutant for mutant in mutants if mutant.id in mine]


def split(costs: Mapping[str, float], parts: int) -> list[set[str]]:
    """Deal the dearest first, each to the part that has the least; equal costs go by name."""
    found: list[set[str]] = [set() for _ in range(parts)]
    spent = [0.0] * parts
    for name, each in sorted(costs.items(), key=lambda item: (-item[1], item[0])):
        least = min(range(parts), key=lambda part: (spent[part], len(found[part]), part))
        found[least].add(name)
        spent[least] += each
    return found


def cost(mutant: Mutant, measured: Mapping[str, float]) -> float:
    """Seconds as measured; an entry without a measurement is taken to cost what the median does."""
    if mutant.id in measured:
        return measured[mutant.id]
    return median(measured.values()) if measured else 1.0


def read_costs(root: Path, settings: Settings) -> dict[str, float]:
    """The seconds by entry of the file that `costs` of the settings names; none without that setting."""
    if settings.costs is None:
        return {}
    try:
        data: Any = json.loads((root / settings.costs).read_bytes())
        found = {str(name): float(value) for name, value in data["seconds_by_entry"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputRefused(
            [
                f"{settings.costs}: holds no seconds_by_entry ({error}); copy {settings.reports}/run.json of a whole run there"
            ]
        ) from None
    if not all(0 <= value < float("inf") for value in found.values()):
        raise InputRefused([f"{settings.costs}: seconds_by_entry should be seconds, none negative"])
    return found


def demand_tracked(settings: Settings, digests: Mapping[str, str], shard: Shard | None) -> None:
    """Measured costs must be a part of the tree, or two machines could split differently and not know it."""
    if shard is not None and settings.costs is not None and settings.costs not in digests:
        raise InputRefused(
            [
                f"{settings.costs}: git ignores it, so shards could split by different costs; let costs name a tracked file"
            ]
        )
