"""What row identity asks of an implementation, and of the oracle it is judged by. Arrays are NumPy's.

A subject is loaded by dotted name (`package.module:name`), so this package never imports one.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harness.rows.formats import Format

Array = NDArray[Any]
CANNOT_KEEP_BYTES = "invariance-machine"


@dataclass(frozen=True)
class Weights:
    """Random weights of one compressor layer: wkv, wgate [sp*d, H], bias [r, sp*d], gamma [d].

    All float64, in values that `dtype` holds: float64, float32 or bfloat16, in which the layer is to compute.
    """

    wkv: Array
    wgate: Array
    bias: Array
    gamma: Array
    rope_width: int
    dtype: Format = "float64"


@dataclass(frozen=True)
class Setup:
    """How a play opens its subject.

    weights: None asks for the token-identity compressor: int64, a block is the event ids that it pooled and
    the block's index. channels: how many numbers stand for a token there (one, its id; the lens feeds several).
    row_invariant: a row's bytes may not depend on what else stands in its batch. A subject that cannot promise it
    on this machine refuses to open, with the kind `CANNOT_KEEP_BYTES`.
    options are the subject's own settings (ours: retain and plan).
    """

    ratio: int
    span: int
    margin: int
    weights: Weights | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    per_row_state: bool = True
    always_ragged: bool = False
    kv_window: int = 0
    device: str = "cpu"
    channels: int = 1
    row_invariant: bool = False


class Rows(Protocol):
    """A batch (of one row or more) of the implementation under judgement."""

    def advance(self, xs: Array, n_new: Sequence[int]) -> None:
        """xs [B, T, H], right-padded; row i takes its first n_new[i] columns."""

    def rollback(self, row: int, n: int) -> None: ...

    def rollback_rows(self, counts: Sequence[int]) -> None:
        """Row i drops its last counts[i] tokens: all rows or none."""

    def rollback_refusal(self, row: int, n: int) -> str | None:
        """The kind of the refusal that rollback(row, n) would end in, or None. Changes nothing."""

    def select(self, rows: Sequence[int]) -> None: ...

    def reshape(self, rows: Sequence[int]) -> None:
        """Build tensors that hold these rows outside, and hand them over."""

    def trim(self, base: int) -> None: ...

    def split(self, row: int) -> Rows: ...

    def snapshot(self, path: Path) -> None: ...

    def restore(self, path: Path) -> Rows: ...

    def read(self, row: int) -> Mapping[str, Array]:
        """tokens [], base [], width [] (of the batch's window), comp [live, d], tail [width, F].

        With a real compressor and projected payloads also kv and z, each [width, sp*d], z without position bias.
        Floats come as float64, whatever they are stored in.
        """

    def memory(self) -> Mapping[str, Array]:
        """Everything that is stored, dead memory included, batch axis first. Copies."""

    def check_invariants(self) -> None: ...

    def poison(self, value: float) -> None:
        """Overwrite all memory that no row promises."""

    def storages(self) -> frozenset[int]:
        """Addresses of the memory blocks that hold the state."""

    def pool_calls(self) -> int:
        """Calls of the compressor's pool so far, counted by the compressor that was injected."""

    def advance_counting(self, xs: Array, n_new: Sequence[int]) -> int:
        """advance, and return how many elements of comp it wrote, counted from outside."""


class Slots(Protocol):
    """The K/V slots of several sequences, in the order of the batch."""

    def append(self, sequence: int, kv: Array) -> None: ...

    def rollback(self, sequence: int, n: int) -> None: ...

    def rollback_refusal(self, sequence: int, n: int) -> str | None:
        """The kind of the refusal that rollback(sequence, n) would end in, or None. Changes nothing."""

    def align(self, sequences: Sequence[int], compressors: Sequence[Rows]) -> list[int]:
        """Pad to one length; one lead per sequence."""

    def drop(self, sequences: Sequence[int]) -> None: ...

    def columns(self, sequence: int) -> Array:
        """What the slot holds, dead prefix included [lead + live, D]."""

    def mismatched(self, sequences: Sequence[int], compressors: Sequence[Rows]) -> int | None:
        """The first slot whose length differs between the sequences, or None."""


class Subject(Protocol):
    """An implementation and its typed exceptions."""

    refusal: type[Exception]  # has `kind`
    invariant_broken: type[Exception]

    def open(self, setup: Setup, rows: int) -> Rows: ...

    def assemble(self, parts: Sequence[Rows]) -> Rows: ...

    def reconcile(self, rows: Sequence[Rows]) -> None: ...

    def adopt(self, setup: Setup, xs: Array, base: int) -> Rows:
        """A single row that continues from a stored state: xs [tokens, H] consumed, the run from `base`."""

    def slots(self, setup: Setup, width: int) -> Slots: ...


class Promises(Protocol):
    """The oracle's model of what one sequence promises."""

    tokens: int

    @property
    def base(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def live_blocks(self) -> int: ...

    def need(self, tokens: int) -> int: ...

    def advance(self, n: int) -> None: ...

    def rollback(self, n: int) -> None: ...

    def rollback_refusal(self, n: int) -> str | None: ...

    def trim(self, new_base: int) -> None: ...

    def trim_refusal(self, new_base: int, rows: int = 1) -> str | None: ...

    def restore(self, tokens: int, base: int) -> None: ...

    def violations(self, tokens: int, base: int) -> list[str]: ...


class Bounded(Protocol):
    """A value, and how far a correct implementation may be from it: two float64 arrays of one shape."""

    @property
    def value(self) -> Array: ...

    @property
    def bound(self) -> Array: ...


class Oracle(Protocol):
    """The second opinion: one sequence, recomputed from its whole history."""

    def promises(self, ratio: int, span: int, margin: int) -> Promises: ...

    def block_tokens(self, block: int, ratio: int, span: int) -> list[int]:
        """Absolute tokens of the block's slots, -1 where there is none."""

    def payload(self, weights: Weights, hidden: Array) -> tuple[Bounded, Bounded]:
        """kv and z [T, sp*d] that hidden [T, H] projects to, as the weights' format stores them."""

    def block(
        self, weights: Weights, kv: Bounded, z: Bounded, block: int, *, pool_is_exact: bool = False
    ) -> Bounded:
        """Completed block [d] of a payload [T, sp*d] by absolute token; only the block's own tokens are read.

        A payload whose bounds are zero is taken bit by bit, as an implementation stored it. pool_is_exact: nothing is
        rounded before the norm, so only norm and rotation are in doubt.
        """

    def before_norm(self, weights: Weights, blocks: Array) -> Array:
        """Blocks [n, d], block j in row j, turned back and without gamma: pooled values, each row up to a factor."""

    def margin(self, weights: Weights, kv: Bounded, z: Bounded, block: int) -> float:
        """How many bounds the block is away from the nearest one with a wrong token in it."""


def load(name: str) -> Any:
    """The object that `package.module:attribute` names. Raises ValueError if there is none."""
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(f"{name!r} names a module; it should be package.module:attribute")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ValueError(f"{name!r} cannot be loaded: {error}; install it, or correct the name") from error
    except AttributeError as error:
        raise ValueError(f"{name!r} cannot be loaded: {error}") from error


def is_subject(loaded: Any) -> bool:
    """Whether an object is meant as a Subject, complete or not: it opens rows. A factory of caches does not."""
    return not isinstance(loaded, type) and not callable(loaded)


def load_subject(name: str) -> Subject:
    """The subject that a dotted name names. Raises ValueError if it cannot be played."""
    subject = load(name)
    missing = [part for part in (*_METHODS, *_EXCEPTIONS) if not hasattr(subject, part)]
    wrong = [
        part for part in _EXCEPTIONS if part not in missing and not isinstance(getattr(subject, part), type)
    ]
    if missing or wrong:
        raise ValueError(
            f"{name!r} is {type(subject).__name__}, without a usable {', '.join(missing + wrong)}; a subject should have "
            f"the methods {', '.join(_METHODS)} and the exception types {', '.join(_EXCEPTIONS)} (CONTRIBUTING.md)"
        )
    checked: Subject = subject
    return checked


_METHODS = ("open", "assemble", "reconcile", "adopt", "slots")
_EXCEPTIONS = ("refusal", "invariant_broken")


def random_weights(ratio: int, span: int, hidden_width: int, block_width: int, rope_width: int) -> Weights:
    """Weights with values and gates of about unit size, and a position bias that is nowhere zero."""
    rng = np.random.default_rng([ratio, span, hidden_width, block_width])
    width = span * block_width
    return Weights(
        wkv=rng.standard_normal((width, hidden_width)) / np.sqrt(hidden_width),
        wgate=rng.standard_normal((width, hidden_width)) / np.sqrt(hidden_width),
        bias=rng.standard_normal((ratio, width)),
        gamma=1 + 0.25 * rng.standard_normal(block_width),
        rope_width=rope_width,
    )
