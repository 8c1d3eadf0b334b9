"""Names that engine-made mutants may call; they stand in `builtins` of the child that runs one.

`__rowproof_trap__()` raises a private BaseException: the proof that swapped code really ran.
`__rowproof_wrong__(value)` returns wrong data of the same shape, `__rowproof_wrong_state__(obj)`
makes the array state of an object wrong in place: together they are the engine's canaries.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import Any

TRAP = "__rowproof_trap__"
WRONG = "__rowproof_wrong__"
WRONG_STATE = "__rowproof_wrong_state__"


class Trapped(BaseException):
    """Raised by the trap; no project code catches it by accident."""


class Trap:
    """Callable that notes that it was hit, in case the project swallows BaseException."""

    def __init__(self) -> None:
        self.hit = False

    def __call__(self) -> None:
        self.hit = True
        raise Trapped


def plant() -> Trap:
    """Put the names into builtins of this process and return its trap."""
    trap = Trap()
    for name, value in ((TRAP, trap), (WRONG, wrong), (WRONG_STATE, wrong_state)):
        setattr(builtins, name, value)
    return trap


def wrong(value: Any, depth: int = 3) -> Any:
    """Return data of the same type with other content, of the same shape where that can be.

    A container of things that it does not know loses one of them; such a thing by itself stays as it is.
    """
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float | complex):
        return value + 1
    if isinstance(value, str):
        return value + "!"
    if isinstance(value, bytes):
        return value + b"!"
    if _is_array(value):
        return _wrong_array(value)
    if depth and isinstance(value, list | tuple | set | frozenset | dict):
        return _wrong_container(value, depth - 1)
    if depth and hasattr(value, "__dict__"):
        wrong_state(value)
    return value


def _wrong_container(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        pairs = {key: wrong(inner, depth) for key, inner in value.items()}
        if _untouched(pairs.values(), value.values()):
            pairs = dict(list(pairs.items())[:-1]) if pairs else {None: None}
        return pairs
    changed = [wrong(inner, depth) for inner in value]
    if hasattr(value, "_fields"):
        return type(value)(*changed)
    if _untouched(changed, value):
        changed = changed[:-1] if changed else [None]
    return type(value)(changed)


def _untouched(new: Iterable[Any], old: Iterable[Any]) -> bool:
    """Whether nothing in a container could be made wrong, in place neither; one less or one more then can."""
    return all(one is two and not hasattr(two, "__dict__") for one, two in zip(new, old, strict=True))


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "__add__")


def _wrong_array(value: Any) -> Any:
    try:
        return ~value if "bool" in str(value.dtype) else value + 1
    except Exception:  # noqa: BLE001 - an array kind without this operation stays as it is
        return value


def wrong_state(thing: Any) -> None:
    """Shift every floating array that `thing` or its attributes hold, in place."""
    for inner in [thing, *getattr(thing, "__dict__", {}).values()]:
        if _is_array(inner) and "float" in str(inner.dtype):
            try:
                inner += 1
            except Exception:  # noqa: BLE001, S112 - read-only or gradient-tracking arrays stay as they are
                continue
