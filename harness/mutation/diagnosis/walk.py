"""What an object holds, as leaves: (path, kind, text), comparable between processes.

Nothing is copied and no code of the project is called: attributes are read from instance
dictionaries and slots, numbers by their bytes. What cannot be looked into is a leaf of the kind
`opaque`, and counted. One walk may have several roots; what it meets twice is named once.
"""

from __future__ import annotations

import collections
import enum
import functools
import hashlib
import io
import random
import types
from collections.abc import Callable
from typing import Any

from . import arrays

Leaf = tuple[str, str, str]
LEAVES_MAX = 2000
DEPTH_MAX = 24
_TEXT_MAX = 60
_PLAIN = {"datetime", "decimal", "fractions", "uuid", "pathlib", "ipaddress", "re", "zoneinfo"}
_FOREIGN = ("_pytest", "pytest", "pluggy", "logging", "threading", "_thread", "typing", "importlib", "weakref",
            "socket", "subprocess", "hypothesis", "concurrent", "asyncio", "multiprocessing", "sqlite3")  # fmt: skip
_CONTAINERS: tuple[Any, ...] = (list, tuple, dict, set, frozenset, collections.deque)
_Scalar = bool | int | float | complex


class Place:
    """Where a leaf stands: the object that holds it, and how it is reached from there."""

    __slots__ = ("above", "holder", "key", "kind", "value")

    def __init__(self, above: str, holder: Any, kind: str, key: Any, value: Any) -> None:
        self.above, self.holder, self.kind, self.key, self.value = above, holder, kind, key, value


class Walk:
    """One walk; `leaves` grows with every root. With `places`, it also notes where each leaf stands."""

    def __init__(
        self,
        mask: str,
        own: Callable[[type], bool],
        kept: int,
        places: bool = False,
        digests: Any = None,
        whole: frozenset[str] = frozenset(),
    ) -> None:
        self.leaves: list[Leaf] = []
        self.opaque: dict[str, int] = {}
        self.met: dict[int, tuple[str, Any]] = {}
        self.places: dict[str, Place] | None = {} if places else None
        self._mask, self._own, self._kept = mask, own, kept
        self._digests, self._whole = digests, whole
        self._storages: dict[int, int] = {}
        # Bytes of the array that a function returns are kept up to this size.
        self.result_kept = 0

    def root(self, path: str, value: Any) -> None:
        """Add everything below a root."""
        self._visit(path, value, 0)

    def _leaf(self, path: str, kind: str, text: str) -> None:
        self.leaves.append((path, kind, text))

    def _below(self, path: str, holder: Any, kind: str, key: Any, shown: str, value: Any, depth: int) -> None:
        below = f"{path}{shown}"
        if self.places is not None:
            self.places[below] = Place(path, holder, kind, key, value)
        self._visit(below, value, depth + 1)

    def _visit(self, path: str, value: Any, depth: int) -> None:
        if len(self.leaves) >= LEAVES_MAX or depth > DEPTH_MAX:
            self._leaf(path, "cut", type(value).__name__)
            return
        kind = type(value)
        plain = _plain(value, self._mask)
        if plain is not None:
            self._leaf(path, kind.__name__, plain)
        elif kind is tuple or kind is frozenset or kind is set:
            self._container(path, value, depth)
        elif id(value) in self.met:
            self._leaf(path, "same", self.met[id(value)][0])
        else:
            self.met[id(value)] = (path, value)
            self._object(path, value, depth)

    def _object(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, _CONTAINERS):
            self._container(path, value, depth)
            self._attributes(path, value, depth)
            return
        kept = arrays.WHOLE_MAX if path in self._whole else self._kept
        if path == "result":
            kept = max(kept, self.result_kept)
        array = arrays.leaf(value, kept, self._storages, self._digests)
        if array is not None:
            if array[0] == "opaque":
                self.opaque[array[1]] = self.opaque.get(array[1], 0) + 1
            self._leaf(path, *array)
            for shown, inner in arrays.beside(value):
                self._below(path, value, "attr", shown, f".{shown}", inner, depth)
            return
        objects = arrays.objects(value)
        if objects is not None:
            self._leaf(path, "array of objects", "x".join(map(str, value.shape)))
            for index, inner in objects[:LEAVES_MAX]:
                self._below(path, value, "item", index, str(list(index)), inner, depth)
            return
        for matches, method in _SPECIAL:
            if isinstance(value, matches):
                method(self, path, value, depth)
                return
        module = type(value).__module__
        if module.partition(".")[0] in _FOREIGN or not self._attributes(path, value, depth):
            self._opaque(path, value)

    def _opaque(self, path: str, value: Any) -> None:
        name = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        self.opaque[name] = self.opaque.get(name, 0) + 1
        self._leaf(path, "opaque", name)

    def _container(self, path: str, value: Any, depth: int) -> None:
        # By the built-in type's own methods: a subclass may have put anything in their place.
        base = next(base for base in _CONTAINERS if isinstance(value, base))
        self._leaf(path, type(value).__name__, f"of {base.__len__(value)}")
        if isinstance(value, dict):
            for number, (key, inner) in enumerate(list(dict.items(value))):
                name = _plain(key, self._mask)
                if name is None and isinstance(key, tuple):
                    name = repr(key) if all(_plain(part, "") is not None for part in key) else None
                self._below(path, value, "item", key, f"[{name or f'<key {number}>'}]", inner, depth)
        elif isinstance(value, set | frozenset):
            named = sorted(
                (_plain(inner, self._mask) or type(inner).__name__) for inner in base.__iter__(value)
            )
            text = ", ".join(named)
            self._leaf(f"{path}{{}}", "elements", _short(text))
        else:
            for number, inner in enumerate(list(base.__iter__(value))):
                self._below(path, value, "item", number, f"[{number}]", inner, depth)

    def _attributes(self, path: str, value: Any, depth: int) -> bool:
        """Walk the instance's dictionary and slots, and the data of a class of the project; False without any."""
        found = _state(value)
        if found is None:
            return False
        if not isinstance(value, _CONTAINERS):
            self._leaf(path, type(value).__qualname__, "")
        for name, inner in found:
            self._below(path, value, "attr", name, f".{name}", inner, depth)
        if self._own(type(value)):
            self._visit(f"{path}.__class__", type(value), depth + 1)
        return True

    def _class(self, path: str, value: Any, depth: int) -> None:
        self._leaf(path, "class", value.__qualname__)
        if self._own(value):
            for name, inner in list(vars(value).items()):
                data = isinstance(inner, _Scalar | str | list | dict | set | tuple | collections.deque)
                if data and not (name.startswith("__") and name.endswith("__")) and name != "_abc_impl":
                    self._below(path, value, "attr", name, f".{name}", inner, depth)

    def _function(self, path: str, value: Any, depth: int) -> None:
        self._leaf(path, "function", value.__qualname__)
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        for name, cell in cells:
            try:
                inner = cell.cell_contents
            except ValueError:
                continue
            self._below(path, cell, "attr", "cell_contents", f".{name}", inner, depth)

    def _method(self, path: str, value: Any, depth: int) -> None:
        self._leaf(
            path, "method", value.__func__.__qualname__ if hasattr(value, "__func__") else value.__name__
        )
        self._visit(f"{path}.__self__", value.__self__, depth + 1)

    def _named(self, path: str, value: Any, depth: int) -> None:
        self._leaf(path, type(value).__name__, str(getattr(value, "__name__", "")))

    def _partial(self, path: str, value: Any, depth: int) -> None:
        self._leaf(path, "partial", "")
        for name in ("func", "args", "keywords"):
            self._visit(f"{path}.{name}", getattr(value, name), depth + 1)

    def _generator(self, path: str, value: Any, depth: int) -> None:
        self._leaf(path, "generator", value.gi_code.co_qualname)
        for name, inner in list(value.gi_frame.f_locals.items()) if value.gi_frame is not None else []:
            self._visit(f"{path}.<{name}>", inner, depth + 1)

    def _exception(self, path: str, value: Any, depth: int) -> None:
        self._leaf(path, "exception", type(value).__qualname__)
        self._below(path, value, "attr", "args", ".args", value.args, depth)
        for name, inner in _state(value) or ():
            self._below(path, value, "attr", name, f".{name}", inner, depth)
        if value.__cause__ is not None:
            self._visit(f"{path}.__cause__", value.__cause__, depth + 1)

    def _text_buffer(self, path: str, value: Any, depth: int) -> None:
        self._leaf(path, type(value).__name__, "closed" if value.closed else _short(repr(value.getvalue())))

    def _random(self, path: str, value: Any, depth: int) -> None:
        self._leaf(path, "Random", format(hash(value.getstate()), "x"))


_SPECIAL: tuple[tuple[Any, Callable[[Walk, str, Any, int], None]], ...] = (
    (type, Walk._class),
    (types.FunctionType, Walk._function),
    ((types.MethodType, types.BuiltinFunctionType), Walk._method),
    (types.ModuleType, Walk._named),
    (functools.partial, Walk._partial),
    (types.GeneratorType, Walk._generator),
    (BaseException, Walk._exception),
    ((io.StringIO, io.BytesIO), Walk._text_buffer),
    (random.Random, Walk._random),
)


def _short(text: str) -> str:
    if len(text) <= _TEXT_MAX:
        return text
    return f"{text[: _TEXT_MAX - 20]}...{hashlib.blake2b(text.encode(errors='replace'), digest_size=6).hexdigest()}"


def _plain(value: Any, mask: str) -> str | None:
    """The text of a value that is a leaf by itself, None for everything else."""
    kind = type(value)
    if value is None or kind is bool or kind is int or kind is float or kind is complex:
        return repr(value)
    if kind is str:
        text = value.replace(mask, "<tmp>") if mask and mask in value else value
        return repr(text) if len(text) < _TEXT_MAX else _short(repr(text))
    if kind is bytes or kind is bytearray:
        return _short(repr(bytes(value)))
    if kind is range or kind is slice or value is Ellipsis or value is NotImplemented:
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{kind.__qualname__}.{value.name}"
    if isinstance(value, type):
        return None
    if kind.__module__.partition(".")[0] in _PLAIN:
        text = repr(value)
        return _short(text.replace(mask, "<tmp>") if mask else text)
    if isinstance(value, str | bytes | int | float) and kind.__module__ not in ("numpy", "torch"):
        return _short(f"{kind.__qualname__} {_base(value)!r}")
    return arrays.scalar(value)


def _base(value: Any) -> Any:
    """A subclass of text, bytes or a number as what it is underneath."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return bytes(value)
    return int.__int__(value) if isinstance(value, int) else float.__float__(value)


def _state(value: Any) -> list[tuple[str, Any]] | None:
    """(name, value) of the instance dictionary and of slots, running no code of the project; None without either."""
    found: list[tuple[str, Any]] = []
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = None
    slots = [
        (name, slot)
        for cls in type(value).__mro__
        for name, slot in list(vars(cls).items())
        if isinstance(slot, types.MemberDescriptorType) and not name.startswith("__")
    ]
    if not isinstance(own, dict) and not slots:
        return None
    found += [(str(name), inner) for name, inner in (own or {}).items()]
    for name, slot in slots:
        try:
            found.append((name, slot.__get__(value)))
        except AttributeError:
            continue
    return found
