"""Code swap: the functions that live in a collected process, and their code replaced.

The index is made by one pass over the garbage collector's objects, which finds partials, closures,
dispatch tables and earlier redefinitions that no walk over modules sees. It must be made before
`gc.freeze`, after which the collector reports nothing.
"""

from __future__ import annotations

import functools
import gc
import os
from types import CodeType, FunctionType
from typing import Any

from .codetree import Pair, Plan, walk

Key = tuple[str, int, bytes, bytes]


class SwapRefused(Exception):
    """This edit cannot be swapped here; the sentence says why. The judgement goes to reimport."""


class Live:
    """Live functions by (real path, code identity), and caches filled before the fork."""

    def __init__(self, paths: set[str], ran: set[tuple[str, str, int]]) -> None:
        self._functions: dict[tuple[str, Key], list[FunctionType]] = {}
        self._ran = ran
        self.caches: list[Any] = []
        real: dict[str, str] = {}
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType):
                name = thing.__code__.co_filename
                path = real.setdefault(name, os.path.realpath(name))
                if path in paths:
                    self._functions.setdefault((path, _key(thing.__code__)), []).append(thing)
            elif isinstance(thing, functools._lru_cache_wrapper) and _filled(thing, paths):
                self.caches.append(thing)

    def of(self, path: str, code: CodeType) -> list[FunctionType]:
        """The live functions that execute this code object of the file at `path`."""
        return self._functions.get((path, _key(code)), [])

    def ran_early(self, path: str, code: CodeType) -> bool:
        """True when the code ran at import or collection, before any swap could matter."""
        return (path, code.co_qualname, code.co_firstlineno) in self._ran


def _key(code: CodeType) -> Key:
    # Equality of code ignores the file and cannot tell two lambdas of one line apart; the line table can.
    return (code.co_qualname, code.co_firstlineno, code.co_linetable, code.co_code)


def _filled(cache: Any, paths: set[str]) -> bool:
    wrapped = getattr(cache, "__wrapped__", None)
    code = getattr(wrapped, "__code__", None)
    return (
        code is not None and os.path.realpath(code.co_filename) in paths and cache.cache_info().currsize > 0
    )


class Swapped:
    """What a swap did: how many functions, and the code objects before and after."""

    def __init__(self) -> None:
        self.functions = 0
        self.old: set[int] = set()
        self.keep: list[CodeType] = []


def check(live: Live, path: str, plan: Plan) -> None:
    """Raise SwapRefused unless every pair of the plan can take effect in this process."""
    if plan.why_reimport:
        raise SwapRefused(plan.why_reimport)
    for pair in plan.pairs:
        _check_pair(live, path, pair)
    for code in plan.gone:
        if live.of(path, code):
            raise SwapRefused(f"{code.co_qualname} is gone in the mutant and still alive here")


def _check_pair(live: Live, path: str, pair: Pair) -> None:
    functions = live.of(path, pair.old)
    name = pair.old.co_qualname
    if pair.outermost and not functions:
        raise SwapRefused(f"no live function runs {name}")
    if functions and pair.old.co_freevars != pair.new.co_freevars:
        raise SwapRefused(f"the free variables of {name} change while it is alive")
    if pair.changed and live.ran_early(path, pair.old):
        raise SwapRefused(f"{name} ran at import or collection")


def swap(live: Live, path: str, plan: Plan, done: Swapped) -> None:
    """Replace the code of every live function in the plan; call `check` first."""
    for pair in plan.pairs:
        for function in live.of(path, pair.old):
            done.keep.append(function.__code__)
            done.old.update(id(code) for code in walk(function.__code__))
            replace_code(function, pair.new)
            done.functions += function.__code__ is pair.new
    for cache in live.caches:
        cache.cache_clear()


def replace_code(function: FunctionType, code: CodeType) -> None:
    """The one assignment that a swap is made of."""
    function.__code__ = code
