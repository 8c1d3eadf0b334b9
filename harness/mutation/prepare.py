"""Mutants made ready for judging: mutated texts, watched lines, and swap or reimport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from .anchor import MODULE, sources
from .catalogue import Mutant
from .codetree import Plan, compile_source, make_plan, replaced, watched
from .errors import InputRefused
from .serving import digest
from .settings import Limits


@dataclass(frozen=True)
class Fault:
    """Any change that the servers can apply: a mutant, a null control, a canary, a trap."""

    overlay: Mapping[str, str]
    watch: Mapping[str, tuple[tuple[str, int], ...]]
    swappable: bool
    why_reimport: str | None = None
    trace_import: bool = False
    null: Mapping[str, str] = field(default_factory=dict)
    functions: tuple[tuple[str, str], ...] = ()
    # Lines of the original that the edit replaces, when they say all; else the functions do.
    replaced: tuple[tuple[str, str, int], ...] | None = None

    @property
    def bytecode_differs(self) -> bool:
        """False for an edit that the compiler cannot tell from the original."""
        return self.swappable or self.why_reimport is not None

    @property
    def sources(self) -> dict[str, str]:
        """The sha256 of each mutated text, which the child must report as executed."""
        return {file: digest(text) for file, text in self.overlay.items()}


def make_fault(changed: Mapping[str, tuple[str, str]]) -> Fault:
    """Build a fault from {file: (original text, mutated text)}."""
    plans: dict[str, Plan] = {}
    watch = {}
    lines: dict[str, tuple[tuple[str, int], ...] | None] = {}
    for file, (original, mutated) in changed.items():
        old, new = _code(original, file), _code(mutated, file)
        plans[file] = make_plan(old, new)
        watch[file] = watched(original, mutated, old, new)
        lines[file] = replaced(original, mutated, old, new)
    reasons = [plan.why_reimport for plan in plans.values() if plan.why_reimport]
    functions = tuple((file, name) for file, plan in plans.items() for name in _functions(plan))
    if not reasons and MODULE in (name for _, name in functions):
        # A lambda or a comprehension of the module itself: without a trap, nobody knows whether the swap took effect.
        reasons = ["it changes a lambda outside of any function, where no trap can be set"]
    return Fault(
        overlay={file: mutated for file, (_, mutated) in changed.items()},
        watch=watch,
        swappable=not reasons and not any(plan.nothing for plan in plans.values()),
        why_reimport=reasons[0] if reasons else None,
        trace_import=bool(reasons),
        functions=functions,
        replaced=None
        if any(pairs is None for pairs in lines.values())
        else tuple((file, name, line) for file, pairs in lines.items() for name, line in pairs or ()),
    )


@lru_cache(maxsize=512)
def _code(text: str, file: str) -> CodeType:
    try:
        return compile_source(text, file)
    except SyntaxError as error:
        raise InputRefused([f"{file}: a mutated text has a syntax error: {error}"]) from error


def _functions(plan: Plan) -> list[str]:
    """The functions that the edit changes; `<module>` for an edit outside any function."""
    if plan.why_reimport:
        return [MODULE]
    return list(dict.fromkeys(_named(pair.old.co_qualname) for pair in plan.pairs if pair.changed))


def _named(qualname: str) -> str:
    """A lambda or comprehension stands for the function around it."""
    while qualname.rpartition(".")[2].startswith("<"):
        qualname = qualname.rpartition(".")[0].removesuffix(".<locals>")
    return qualname or MODULE


def of_mutant(root: Path, mutant: Mutant) -> Fault:
    """The fault that a catalogue entry describes."""
    return make_fault(sources(root, mutant.edits))


def job(fault: Fault, mode: str, nodes: list[str], wall_s: float, limits: Limits) -> dict[str, Any]:
    """The message that asks a slot for one judgement."""
    return {
        "mode": mode,
        "overlay": dict(fault.overlay),
        "watch": {file: [list(pair) for pair in pairs] for file, pairs in fault.watch.items()},
        "trace_import": fault.trace_import,
        "null": dict(fault.null),
        "nodes": nodes,
        "limits": {"wall_s": wall_s, "memory_mib": limits.memory_mib, "output_mib": limits.output_mib},
    }
