"""Which entries a run judges, and whether its result may be evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from . import shards
from .catalogue import Catalogue, Mutant
from .errors import InputRefused, did_you_mean


@dataclass(frozen=True)
class Selection:
    """Which entries to judge; any selection makes the run partial."""

    only: tuple[str, ...] = ()
    themes: tuple[str, ...] = ()
    # Ids that something else has chosen, a revision or a sample; None when nothing has.
    ids: frozenset[str] | None = None
    # An audit judges in another way than the settings say, so its result is no evidence.
    audit: bool = False
    shard: shards.Shard | None = None
    costs: Mapping[str, float] = field(default_factory=dict)

    @property
    def partial(self) -> bool:
        """True when not everything is judged."""
        chosen = self.only or self.themes or self.ids is not None
        return bool(chosen or self.audit or self.shard is not None)

    def pick(self, catalogue: Catalogue) -> list[Mutant]:
        """The selected entries; raises InputRefused for a name that selects nothing."""
        if self.shard is not None:
            return shards.pick(catalogue.mutants, self.costs, self.shard)
        themes = {mutant.theme for mutant in catalogue.mutants} | catalogue.themes
        problems = [
            f"--only {name}: there is no such mutant{did_you_mean(name, catalogue.ids)}"
            for name in self.only
            if name not in catalogue.ids
        ]
        problems += [
            f"--theme {name}: there is no such theme{did_you_mean(name, themes)}"
            for name in self.themes
            if name not in themes
        ]
        if problems:
            raise InputRefused(problems)
        return [mutant for mutant in catalogue.mutants if self._holds(mutant)]

    def _holds(self, mutant: Mutant) -> bool:
        return (
            (not self.only or mutant.id in self.only)
            and (not self.themes or mutant.theme in self.themes)
            and (self.ids is None or mutant.id in self.ids)
        )
