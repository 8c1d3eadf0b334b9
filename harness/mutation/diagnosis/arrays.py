"""Arrays of libraries that the process has imported already; none is ever imported here.

An array is one leaf: its library, dtype and shape, a digest of its bytes, the number of its storage
(a view shares the number of its base), and the bytes themselves when they are few or asked for.
Bytes are compared, and not values: NaN equals itself, and -0.0 is not 0.0.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
import sys
import weakref
from collections.abc import Iterable
from typing import Any

RAW_MAX = 4096
WHOLE_MAX = 4 << 20
# Tensors of so many bytes are read again only after a write.
LARGE = 1 << 16


def numpy() -> Any:
    """NumPy, if this process has imported it."""
    return sys.modules.get("numpy")


def torch() -> Any:
    """torch, if this process has imported all of it."""
    module = sys.modules.get("torch")
    return module if module is not None and hasattr(module, "Tensor") and hasattr(module, "randn") else None


def is_numpy(value: Any) -> bool:
    """Whether this is a NumPy array of numbers."""
    np = numpy()
    return np is not None and isinstance(value, np.ndarray) and not value.dtype.hasobject


def is_torch(value: Any) -> bool:
    """Whether this is a torch tensor."""
    th = torch()
    return th is not None and isinstance(value, th.Tensor)


def scalar(value: Any) -> str | None:
    """The text of a NumPy scalar, a dtype or a device; None for anything else."""
    np, th = numpy(), torch()
    if np is not None and isinstance(value, np.generic):
        return f"{value.dtype} {value!r}" if not value.dtype.hasobject else None
    if np is not None and isinstance(value, np.dtype):
        return str(value)
    if th is not None and isinstance(value, th.dtype | th.device | th.layout | th.memory_format):
        return str(value)
    return None


class Digests:
    """Digests of large tensors, kept for as long as torch's own counter of writes says that nothing was written.

    A write through `.data` or through NumPy escapes that counter; `spent` counts the bytes that were read.
    A blind one reads nothing: for a walk that only looks for places.
    """

    def __init__(self, blind: bool = False) -> None:
        self.spent = 0
        self.blind = blind
        self._known: dict[int, tuple[Any, int, int, str]] = {}

    def of_tensor(self, value: Any) -> str | None:
        """The digest found earlier, if nothing was written since."""
        if self.blind:
            return "-"
        known = self._known.get(id(value))
        if known is None or known[0]() is not value or known[1:3] != _version(value):
            return None
        return known[3]

    def keep(self, value: Any, digest: str) -> None:
        """Remember a large tensor's digest, without keeping the tensor alive."""
        version = _version(value)
        if version is not None and value.numel() * value.element_size() >= LARGE:
            self._known[id(value)] = (weakref.ref(value), *version, digest)


def _version(value: Any) -> tuple[int, int] | None:
    try:
        return int(value._version), int(value.data_ptr())
    except RuntimeError:
        # Tensors of inference mode count no writes.
        return None


def leaf(
    value: Any, limit: int, storages: dict[int, int], digests: Digests | None = None
) -> tuple[str, str] | None:
    """(kind, text) of an array, None when the value is none. The text: dtype, shape, storage, digest, bytes."""
    digests = digests if digests is not None else Digests()
    try:
        if is_numpy(value):
            raw = numpy_bytes(value) if not digests.blind else b""
            digests.spent += len(raw)
            shape, base = value.shape, _base(value)
            return "ndarray", _text(str(value.dtype), shape, raw, _digest(raw), base, limit, storages)
        if is_torch(value) and value.layout is not torch().strided:
            return "sparse", f"{value.dtype} {tuple(value.shape)} {value.layout}".replace("torch.", "")
        if is_torch(value):
            return _tensor(value, limit, storages, digests)
    except Exception as error:  # noqa: BLE001 - meta, sparse and nested tensors, and what others may invent
        return "opaque", f"{type(value).__qualname__} ({type(error).__name__})"
    return _generator(value)


def _tensor(value: Any, limit: int, storages: dict[int, int], digests: Digests) -> tuple[str, str]:
    dtype = str(value.dtype).removeprefix("torch.")
    told = f"{dtype}{' requires grad' if value.requires_grad else ''}"
    storage = value.untyped_storage().data_ptr() if value.numel() and value.layout is torch().strided else 0
    raw: bytes | memoryview = b""
    digest = digests.of_tensor(value)
    if digest is None or limit >= WHOLE_MAX:
        raw = torch_bytes(torch_plain(value))
        digests.spent += len(raw)
        digest = _digest(raw)
        digests.keep(value, digest)
    else:
        limit = -1
    return "tensor", _text(told, tuple(value.shape), raw, digest, storage, limit, storages)


def _text(
    dtype: str,
    shape: Any,
    raw: bytes | memoryview,
    digest: str,
    storage: int,
    limit: int,
    storages: dict[int, int],
) -> str:
    number = storages.setdefault(storage, len(storages)) if storage else "-"
    kept = raw.hex() if len(raw) <= limit else "-"
    sizes = "x".join(str(size) for size in shape)
    return f"{dtype}|{sizes}|{number}|{digest}|{kept}"


def _base(value: Any) -> int:
    while isinstance(value.base, numpy().ndarray):
        value = value.base
    return id(value) if value.size else 0


def numpy_bytes(value: Any) -> bytes:
    """The elements in C order."""
    return bytes(numpy().ascontiguousarray(value).tobytes())


def torch_plain(value: Any) -> Any:
    """The elements in C order on the CPU, as bytes in a tensor that has no graph."""
    th = torch()
    with th.no_grad():
        flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        return flat.view(th.uint8) if flat.numel() else flat


def torch_bytes(plain: Any) -> bytes | memoryview:
    """The memory of what `torch_plain` returned, not copied; needs no NumPy."""
    if not plain.numel():
        return b""
    memory = (ctypes.c_char * plain.numel()).from_address(plain.data_ptr())
    # The tensor lives as long as what is read from it.
    memory.__dict__["tensor"] = plain
    return memoryview(memory).cast("B")


_PARTS = {
    "coo": ("_indices", "_values"),
    "csr": ("crow_indices", "col_indices", "values"),
    "bsr": ("crow_indices", "col_indices", "values"),
    "csc": ("ccol_indices", "row_indices", "values"),
    "bsc": ("ccol_indices", "row_indices", "values"),
}


def objects(value: Any) -> list[tuple[Any, Any]] | None:
    """(index, object) of a NumPy array of objects; None for anything else."""
    np = numpy()
    if np is None or not isinstance(value, np.ndarray) or value.dtype != object:
        return None
    return [(index, np.ndarray.__getitem__(value, index)) for index in np.ndindex(value.shape)]


def beside(value: Any) -> Iterable[tuple[str, Any]]:
    """What a tensor carries beside its elements: its gradient; of a sparse one, indices and values."""
    if is_torch(value):
        for name in _PARTS.get(str(value.layout).removeprefix("torch.sparse_"), ()):
            yield name, getattr(value, name)()
    if is_torch(value) and value.is_leaf and value.grad is not None:
        yield "grad", value.grad


def _generator(value: Any) -> tuple[str, str] | None:
    th, legacy = torch(), sys.modules.get("numpy.random")
    if legacy is not None and isinstance(value, legacy.Generator):
        return "Generator", _digest(repr(value.bit_generator.state).encode())
    if legacy is not None and isinstance(value, legacy.RandomState):
        return "RandomState", _digest(repr(value.get_state(legacy=False)).encode())
    if th is not None and isinstance(value, th.Generator):
        return "Generator", _digest(torch_bytes(value.get_state()))
    return None


def _digest(raw: bytes | memoryview) -> str:
    # The fastest of the library's that no two arrays share by chance.
    return hashlib.sha1(raw, usedforsecurity=False).hexdigest()[:16]


def random_states(pinned: list[str]) -> Iterable[tuple[str, str]]:
    """(library, digest) of each global random state that was pinned when the run began."""
    if "random" in pinned:
        yield "random", format(hash(random.getstate()), "x")
    if "numpy" in pinned:
        state = sys.modules["numpy.random"].get_state()
        yield "numpy", _digest(state[1].tobytes() + bytes(str(state[2:]), "ascii"))
    if "torch" in pinned:
        yield "torch", _digest(torch_bytes(torch().get_rng_state()))


def pin_random_states(seed: int) -> list[str]:
    """Python gives every forked process random numbers of its own; runs that are compared need the same."""
    random.seed(seed)
    pinned = ["random"]
    legacy = sys.modules.get("numpy.random")
    if legacy is not None:
        legacy.seed(seed)
        pinned.append("numpy")
    # torch starts from the same number in every process.
    return [*pinned, "torch"] if torch() is not None else pinned
