"""Exactly what differed, made grossly wrong once, in the original: does any assertion depend on it?

The places come from a comparison of two recordings; only the elements that differed are touched, at the
first border where they did. A result that cannot be changed in place is exchanged on its way out, by a
call that the engine has put into the function's text for this one run.
"""

from __future__ import annotations

import builtins
import collections
import copy
import ctypes
import datetime
import decimal
import enum
import fractions
import math
import sys
from typing import Any

from . import arrays
from .walk import Walk

LEAVE, SWALLOW = "__rowproof_leave__", "__rowproof_swallow__"
FAR = 1000
_NOTHING = object()


class Poison:
    """One poisoning: at one border of one call, these marks, in one manner (`nan`, `up`, `down` or `zero`)."""

    def __init__(self, order: dict[str, Any], recorder: Any) -> None:
        self.number, self.kind, self.manner = order["call"], order["kind"], order["manner"]
        self.marks: list[dict[str, Any]] = order["marks"]
        self.done: list[str] = []
        self._over = False
        self._recorder = recorder
        self._active: dict[int, Any] = {}
        setattr(builtins, LEAVE, self.leave)
        setattr(builtins, SWALLOW, self.swallow)

    def entered(self, call: Any) -> None:
        """A mutated function was entered."""
        self._active[id(call.frame)] = call
        if call.number == self.number and self.kind == "enter":
            self._apply(call, "enter")

    def left(self, call: Any) -> None:
        """It is about to leave; what can be changed in place is changed now if it was not before."""
        self._active.pop(id(call.frame), None)
        if call.number == self.number and self.kind == "exit" and not self._over:
            self._apply(call, "exit")

    def leave(self, result: Any = None) -> Any:
        """Stands around every result and every yielded value of the function."""
        call = self._active.get(id(sys._getframe(1)))
        if call is None or call.number != self.number or self.kind != "exit" or self._over:
            return result
        # Read again: what was read at the entry is stale by now.
        call.values = call.frame.f_locals
        result = self._apply(call, "exit", result)
        if sys.version_info < (3, 13):
            # Outside of a tracer nobody else writes the names of the frame, and its cells, back.
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(call.frame), ctypes.c_int(0))
        return result

    def swallow(self, error: BaseException) -> Any:
        """Stands around the whole function when it is an exception that differed."""
        call = self._active.get(id(sys._getframe(1)))
        if call is None or call.number != self.number or self._over:
            raise error
        if any(mark["path"] == "exception" for mark in self.marks):
            self._over = True
            self._recorder.stop(for_good=True)
            self.done.append("exception")
            return None
        self._apply(call, "raise", error)
        raise error

    def _apply(self, call: Any, kind: str, outcome: Any = None) -> Any:
        self._over = True
        # What follows is a plain run.
        self._recorder.stop(for_good=True)
        try:
            return self._wrong(call, kind, outcome)
        except Exception as error:  # noqa: BLE001 - an error of ours must not pass for one of the program
            self._recorder.failed = f"{type(error).__name__}: {error}"
            return outcome

    def _wrong(self, call: Any, kind: str, outcome: Any) -> Any:
        roots = _Roots(call, kind, outcome, self._recorder.walk(places=True))
        for mark in self.marks:
            old = roots.get(mark["path"])
            if mark["kind"] == "state":
                _reseed(mark["path"])
                self.done.append(mark["path"])
            elif old is not _NOTHING:
                new = wrong(_apart(old) if mark["kind"] == "same" else old, mark, self.manner)
                if new is not _NOTHING:
                    roots.put(mark["path"], new, old)
                    self.done.append(mark["path"])
        return roots.outcome


def _apart(value: Any) -> Any:
    """A copy: what the mutant no longer shares is made wrong without what it was shared with."""
    if arrays.is_numpy(value):
        return value.copy()
    if arrays.is_torch(value):
        return value.detach().clone()
    return copy.copy(value) if type(value) in (list, dict, set, bytearray, collections.deque) else value


class _Roots:
    """The roots of a border, read and written by the paths of a walk."""

    def __init__(self, call: Any, kind: str, outcome: Any, walk: Walk) -> None:
        self.call, self.outcome, self.walk = call, outcome, walk
        self.values = dict(call.roots(kind, call.resumable, outcome))
        for path, value in self.values.items():
            walk.root(path, value)
        self._now: dict[str, Any] = {}

    def get(self, path: str) -> Any:
        path = path.removesuffix("{}")
        if path in self._now:
            return self._now[path]
        if path in self.values:
            return self.values[path]
        place = (self.walk.places or {}).get(path)
        return place.value if place is not None else _NOTHING

    def put(self, path: str, new: Any, old: Any) -> None:
        path = path.removesuffix("{}")
        self._now[path] = new
        if new is old:
            return
        if path in self.values:
            self._put_root(path, new)
            return
        place = (self.walk.places or {})[path]
        if isinstance(place.holder, tuple):
            before = self._now.get(place.above, place.holder)
            parts = [*before[: place.key], new, *before[place.key + 1 :]]
            made = type(before)(*parts) if hasattr(before, "_fields") else tuple(parts)
            if isinstance(place.holder, tuple) and place.kind == "item":
                self.put(place.above, made, before)
        elif place.kind == "item":
            # An element may be gone by now, with the poison of the list that held it.
            if not isinstance(place.holder, list) or place.key < len(place.holder):
                place.holder[place.key] = new
        elif isinstance(place.holder, type):
            setattr(place.holder, place.key, new)
        else:
            object.__setattr__(place.holder, place.key, new)

    def _put_root(self, path: str, new: Any) -> None:
        frame = self.call.frame
        module = str(frame.f_globals.get("__name__", ""))
        if path in ("result", "exception"):
            self.outcome = new
        elif path in self.call.values:
            self.call.values[path] = new
        elif path.startswith(f"{module}."):
            frame.f_globals[path.removeprefix(f"{module}.")] = new


def wrong(value: Any, mark: dict[str, Any], manner: str) -> Any:
    """A grossly wrong stand-in for a value, or the value itself when it was made wrong in place."""
    if arrays.is_numpy(value) or arrays.is_torch(value):
        return _wrong_array(value, mark, manner)
    sign = 1 if manner in ("up", "nan") else -1
    if isinstance(value, bool):
        return not value
    if isinstance(value, enum.Enum):
        return next((other for other in type(value) if other is not value), None)
    if manner == "zero" and isinstance(value, int | float | complex):
        return type(value)(0)
    if type(value) is int:
        return value + sign * FAR
    if isinstance(value, float | complex):
        return type(value)(math.nan) if manner == "nan" else value + sign * FAR
    if isinstance(value, str):
        return value + "!" if sign > 0 else ""
    if isinstance(value, bytes):
        return value + b"!" if sign > 0 else b""
    if isinstance(value, list | tuple | dict | set | frozenset | bytearray | collections.deque):
        return _wrong_container(value, sign)
    if value is None:
        return FAR if sign > 0 else None
    return _wrong_quantity(value, manner, sign)


def _wrong_quantity(value: Any, manner: str, sign: int) -> Any:
    """NumPy's scalars, decimals, fractions, times: of the same type, so that an assertion can still compare them."""
    np = arrays.numpy()
    try:
        if np is not None and isinstance(value, np.generic):
            if value.dtype.kind == "b":
                return ~value
            if manner == "nan" and value.dtype.kind in "fc":
                return type(value)(math.nan)
            return (np.asarray(value) + np.array(sign * FAR)).astype(value.dtype)[()]
        if isinstance(value, datetime.date | datetime.timedelta):
            return value + sign * datetime.timedelta(days=FAR)
        return value + sign * FAR if isinstance(value, fractions.Fraction | decimal.Decimal) else None
    except (ArithmeticError, TypeError):
        return None


def _wrong_container(value: Any, sign: int) -> Any:
    if isinstance(value, tuple | frozenset):
        if hasattr(value, "_fields") or sign < 0:
            return ()
        return type(value)([*value, FAR])
    if sign < 0:
        value.clear()
    elif isinstance(value, dict):
        value["poison"] = FAR
    elif isinstance(value, set):
        value.add(FAR)
    else:
        value.append(FAR if not isinstance(value, bytearray) else 1)
    return value


def _wrong_array(value: Any, mark: dict[str, Any], manner: str) -> Any:
    at, grown = mark.get("at"), mark.get("grown")
    if at is not None and not at and not grown:
        # The elements are equal; the difference is in whether memory is shared.
        return _NOTHING
    sign = -1 if manner == "down" else 1
    try:
        if arrays.is_numpy(value):
            new = _wrong_numpy(value, at, manner, sign)
            return _grown(value, new, grown, manner, sign) if grown else new
        new = _wrong_torch(value, at, manner, sign)
        return _grown(value, new, grown, manner, sign) if grown else new
    except Exception:  # noqa: BLE001 - read-only, expanded, quantised: not every array can be written to
        return _NOTHING


def _wrong_numpy(value: Any, at: list[int] | None, manner: str, sign: int) -> Any:
    np = arrays.numpy()
    new = value if value.flags.writeable else value.copy()
    where = np.arange(new.size) if at is None else np.array([n for n in at if n < new.size], dtype=np.int64)
    if new.dtype.kind not in "fciub":
        return _NOTHING
    if new.dtype.kind == "b":
        new.flat[where] = ~new.flat[where]
    elif new.dtype.kind in "fc" and manner == "nan":
        new.flat[where] = np.nan
    elif manner == "zero":
        new.flat[where] = 0
    else:
        new.flat[where] = (new.flat[where] + np.array(sign * FAR)).astype(new.dtype)
    return new


def _wrong_torch(value: Any, at: list[int] | None, manner: str, sign: int) -> Any:
    th = arrays.torch()
    with th.no_grad():
        where = th.zeros(value.numel(), dtype=th.bool)
        where[
            th.arange(value.numel())
            if at is None
            else th.tensor([n for n in at if n < value.numel()], dtype=th.int64)
        ] = True
        where = where.reshape(value.shape).to(value.device)
        plain = value.detach()
        if plain.dtype is th.bool:
            plain[where] = ~plain[where]
        elif manner == "nan" and (plain.is_floating_point() or plain.is_complex()):
            plain[where] = math.nan
        elif manner == "zero":
            plain[where] = 0
        else:
            plain[where] = (plain[where].to(th.float64) + sign * FAR).to(plain.dtype)
    return value


def _grown(value: Any, new: Any, shape: list[int], manner: str, sign: int) -> Any:
    """The array with as many elements more as the mutant has, and gross ones."""
    sizes = [max(a, b) for a, b in zip(value.shape, shape, strict=True)]
    floating = value.dtype.kind in "fc" if arrays.is_numpy(value) else value.is_floating_point()
    fill = math.nan if manner == "nan" and floating else 0 if manner == "zero" else sign * FAR
    inside = tuple(slice(0, size) for size in value.shape)
    if arrays.is_numpy(value):
        wide = arrays.numpy().full(sizes, fill).astype(value.dtype)
    else:
        wide = arrays.torch().full(sizes, fill, dtype=arrays.torch().float64).to(value.dtype).to(value.device)
    wide[inside] = new
    return wide


def _reseed(path: str) -> None:
    library = path.rpartition(" ")[2]
    if library == "random":
        sys.modules["random"].seed(FAR)
    elif library == "numpy":
        arrays.numpy().random.seed(FAR)
    elif library == "torch":
        arrays.torch().manual_seed(FAR)
