"""The elements of recorded arrays, read from their bytes without the library that made them."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_FORMATS = {
    "float64": "d", "float32": "f", "float16": "e", "int64": "q", "int32": "i", "int16": "h", "int8": "b",
    "uint64": "Q", "uint32": "I", "uint16": "H", "uint8": "B", "bool": "?", "complex64": "ff", "complex128": "dd",
}  # fmt: skip
ARRAYS = ("ndarray", "tensor")


@dataclass(frozen=True)
class Array:
    """An array leaf, taken apart; `raw` is None when its bytes were not kept."""

    dtype: str
    shape: tuple[int, ...]
    storage: str
    digest: str
    raw: bytes | None

    @property
    def count(self) -> int:
        """How many elements it has."""
        total = 1
        for size in self.shape:
            total *= size
        return total

    def element(self, number: int) -> bytes:
        """The bytes of one element, counted in C order."""
        assert self.raw is not None
        size = len(self.raw) // self.count
        return self.raw[number * size : (number + 1) * size]

    def shown(self, number: int, digits: str = ".9g") -> str:
        """One element as a number, or its bytes where the type is an unusual one."""
        raw, name = self.element(number), self.dtype.split()[0]
        if name == "bfloat16":
            return _number(struct.unpack("<f", b"\0\0" + raw)[0], digits)
        code = _FORMATS.get(name)
        if code is None or struct.calcsize(f"={code}") != len(raw):
            return f"0x{raw.hex()}"
        parts = struct.unpack(f"={code}", raw)
        return _number(complex(*parts) if len(parts) == 2 else parts[0], digits)

    def index(self, number: int) -> str:
        """An element's index as one writes it."""
        parts: list[str] = []
        for size in reversed(self.shape):
            number, at = divmod(number, size)
            parts.append(str(at))
        return f"[{', '.join(reversed(parts))}]" if parts else ""

    def whole(self) -> str:
        """A few words for all of it."""
        sizes = "x".join(map(str, self.shape)) or "scalar"
        return f"{self.dtype} {sizes}"


def array(text: str) -> Array:
    """Take an array leaf's text apart."""
    dtype, sizes, storage, digest, raw = text.split("|")
    shape = tuple(int(size) for size in sizes.split("x")) if sizes else ()
    return Array(dtype, shape, storage, digest, None if raw == "-" else bytes.fromhex(raw))


def differing(one: Array, other: Array) -> list[int] | None:
    """Numbers of those elements of `one` that `other` lacks or holds otherwise; None where that cannot be told."""
    if one.raw is None or other.raw is None or one.dtype != other.dtype or len(one.shape) != len(other.shape):
        return None
    if one.shape == other.shape:
        size = len(one.raw) // max(one.count, 1)
        a, b = one.raw, other.raw
        return [at // size for at in range(0, len(a), size or 1) if a[at : at + size] != b[at : at + size]]
    found = []
    for number in range(one.count):
        there = _counterpart(number, one.shape, other.shape)
        if there is None or one.element(number) != other.element(there):
            found.append(number)
    return found


def _counterpart(number: int, shape: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    """The number that the element at the same index has in an array of another shape."""
    there, weight = 0, 1
    for size, there_size in zip(reversed(shape), reversed(other), strict=True):
        number, at = divmod(number, size)
        if at >= there_size:
            return None
        there, weight = there + at * weight, weight * there_size
    return there


def _number(value: object, digits: str) -> str:
    return format(value, digits) if isinstance(value, float) else repr(value)
