"""Other data for the same calls: what a test feeds into the project, replaced by values that all differ.

Only *outermost inputs* are varied: arguments of calls that come from outside the project. What the
project made itself (its objects, and whatever it returned) keeps its meaning and is left alone, since
values that a class never lets happen would tell apart what nothing can tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from . import arrays

# Where the values of a ramp lie; both bounds are left out.
RANGES = {"wide": (-2.0, 3.0), "unit": (0.02, 0.98)}
_NOTED_MAX = 12
_DEPTH_MAX = 6


class Vary:
    """Arrays and lists of fractions on a ramp; fractions that stand alone, and rows, only where asked for.

    Rows: every other whole number of a list is halved, and a list of the project's own objects is reversed.

    Without a style nothing is varied, and what could be is only counted.
    """

    def __init__(self, style: str | None, scalars: bool, rows: bool, own: Callable[[type], bool]) -> None:
        self._own = own
        self.dry = style is None
        self._low, self._high = RANGES[style or "unit"]
        self._scalars, self._rows = scalars, rows
        self._kept: dict[int, Any] = {}
        self._storages: set[int] = set()
        self._calls = 0
        self._last: tuple[Any, int, Any] | None = None
        self.noted: list[str] = []
        self.met = {"arrays": 0, "scalars": 0, "rows": 0}

    def leave_alone(self, value: Any, depth: int = 0) -> None:
        """Remember what the project returned."""
        if id(value) in self._kept or depth > _DEPTH_MAX:
            return
        storage = _storage(value)
        if storage:
            self._storages.add(storage)
        if isinstance(value, list | dict | tuple) or storage:
            self._kept[id(value)] = value
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list | tuple):
            for inner in value:
                self.leave_alone(inner, depth + 1)

    def arguments(self, values: dict[str, Any], names: list[str]) -> None:
        """Vary the arguments of a call that has just begun."""
        self._calls += 1
        shift = 0.03 * (self._calls * 0.618 % 1)
        count = sum(type(value) is float for value in values.values())
        following: Iterator[float] = iter([(n + 1) / (count + 1.5) + shift for n in range(count)])
        for name in names:
            if name in values and name not in ("self", "cls"):
                new = self._value(values[name], name, following, 0)
                if new is not values[name]:
                    values[name] = new

    def _scaled(self, t: float) -> float:
        # A straight line is itself too regular: its differences are all equal.
        return self._low + (self._high - self._low) * math.pow(t, 1.5)

    def _note(self, name: str, text: str) -> None:
        told = f"{name} {text}"
        if len(self.noted) < _NOTED_MAX and told not in self.noted:
            self.noted.append(told)

    def _value(self, value: Any, name: str, scalars: Iterator[float], depth: int) -> Any:
        if type(value) is float:
            self.met["scalars"] += 1
            if self.dry or not self._scalars:
                return value
            new = self._scaled(next(scalars, 0.9))
            self._note(name, f"= {new:.3g}")
            return new
        if depth > _DEPTH_MAX or id(value) in self._kept or _storage(value) in self._storages:
            return value
        if isinstance(value, list | tuple | dict):
            new = self._container(value, name, scalars, depth)
        elif arrays.is_numpy(value) or arrays.is_torch(value):
            new = self._array(value, name)
        else:
            return value
        for each in (value, new):
            self._kept[id(each)] = each
            if (storage := _storage(each)) is not None:
                self._storages.add(storage)
        return new

    def _container(self, value: Any, name: str, scalars: Iterator[float], depth: int) -> Any:
        items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        changed: list[tuple[Any, Any]]
        floats = bool(items) and all(type(inner) is float for _, inner in items)
        counts = type(value) is list and _counts(value)
        self.met["arrays"] += floats
        objects = type(value) is list and len(value) > 1 and all(self._own(type(inner)) for inner in value)
        self.met["rows"] += counts or objects
        if self.dry and (floats or counts or objects):
            return value
        if floats:
            changed = [(key, self._scaled((n + 0.5) / len(items))) for n, (key, _) in enumerate(items)]
            self._note(name, "on a ramp")
        elif self._rows and objects:
            changed = list(enumerate(reversed(value)))
            self._note(name, "in reversed order")
        elif self._rows and counts and _uneven(value) != value:
            changed = list(enumerate(_uneven(value)))
            self._note(name, f"{list(value)} as {[inner for _, inner in changed]}")
        else:
            changed = [
                (key, self._value(inner, f"{name}[{key!r}]", scalars, depth + 1)) for key, inner in items
            ]
        if all(new is old for (_, new), (_, old) in zip(changed, items, strict=True)):
            return value
        if isinstance(value, tuple):
            parts: list[Any] = [inner for _, inner in changed]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        for key, inner in changed:
            value[key] = inner
        return value

    def _array(self, value: Any, name: str) -> Any:
        kind = arrays.numpy() if arrays.is_numpy(value) else arrays.torch()
        count = value.size if arrays.is_numpy(value) else value.numel()
        floating = value.dtype.kind == "f" if arrays.is_numpy(value) else value.is_floating_point()
        if not count:
            return value
        if floating:
            self.met["arrays"] += 1
            if self.dry:
                return value
            ramp = [self._scaled((n + 0.5) / count) for n in range(count)] if count <= 1 << 16 else None
            self._note(name, "on a ramp")
            return _filled(kind, value, ramp if ramp is not None else self._long_ramp(kind, count))
        whole = value.dtype.kind in "iu" if arrays.is_numpy(value) else not value.dtype.is_complex
        if whole and value.ndim == 1 and str(value.dtype).removeprefix("torch.") != "bool":
            counts = value.tolist()
            self.met["rows"] += _counts(counts)
            if self._rows and not self.dry and _counts(counts) and _uneven(counts) != counts:
                spread = _uneven(counts)
                self._note(name, f"{counts} as {spread}")
                return _filled(kind, value, spread)
        return value

    def _long_ramp(self, kind: Any, count: int) -> Any:
        """The same ramp, made by the library; the last one is kept, since arrays of one size come in numbers."""
        if self._last is None or self._last[:2] != (kind, count):
            steps = kind.arange(count, dtype=kind.float64)
            steps += 0.5
            steps /= count
            steps *= steps**0.5
            steps *= self._high - self._low
            steps += self._low
            self._last = (kind, count, steps)
        return self._last[2]


def _counts(values: list[Any]) -> bool:
    """Whole numbers, at least two of them, probably one for each row."""
    return len(values) > 1 and all(type(each) is int and each >= 0 for each in values) and any(values)


def _uneven(values: list[int]) -> list[int]:
    """Every other row gets half: rows part, and what was as long as its row still is long enough."""
    return [value // 2 if number % 2 else value for number, value in enumerate(values)]


def _filled(kind: Any, value: Any, numbers: Any) -> Any:
    """Write into the array, so that whoever shares it shares this; where that is refused, a new one.

    `numbers`: a list, or a ramp of the same library, which is left as it is.
    """
    th = arrays.torch()
    if kind is th:
        with th.no_grad():
            new = th.tensor(numbers, dtype=th.float64) if isinstance(numbers, list) else numbers
            new = new.reshape(value.shape)
            try:
                value.copy_(new)
            except RuntimeError:
                return new.to(value.device, value.dtype, copy=True)
        return value
    new = kind.array(numbers).reshape(value.shape).astype(value.dtype)
    if not value.flags.writeable:
        return new
    value[...] = new
    return value


def _storage(value: Any) -> int | None:
    if arrays.is_numpy(value):
        while isinstance(value.base, arrays.numpy().ndarray):
            value = value.base
        return id(value)
    if arrays.is_torch(value):
        try:
            return int(value.untyped_storage().data_ptr()) or None
        except Exception:  # noqa: BLE001 - meta, sparse and nested tensors have none
            return None
    return None
