"""What row identity asks of somebody else's cache, and what it does without where a cache does not offer it.

A cache is named as `package.module:factory`. The factory is called with a Geometry and a number of rows and
returns an object that holds a batch; the same factory with one row makes the sequence that plays alone. So a
class whose constructor takes these two is a factory. Arrays are NumPy's, in and out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from harness.rows.subject import Array, load

Axis = Literal["tokens", "blocks", "state"]


@dataclass(frozen=True)
class Geometry:
    """The sizes that a fixture speaks of; a cache without compressed blocks looks at `margin` alone.

    ratio, span : a block is made of `ratio` tokens, and looks back on `span` groups of them
    margin      : how many tokens a row must be able to drop again
    """

    ratio: int = 4
    span: int = 2
    margin: int = 16


class NotOffered(Exception):
    """Raised by a factory for a geometry that the cache does not have; the fixture is reported as not offered."""


class Cache(Protocol):
    """A batch of per-row states. `advance` and `read` must be there; the rest is named in `supports`.

    width    : channels of one token's input
    supports : names of OFFERS, for what this cache can do besides
    axes     : what the first axis of each array of `read` counts: `tokens`, one entry per token, the newest last;
               `blocks`, entry j made of tokens j * ratio ..; anything else is `state`
    exact    : the cache only moves what it is given, so arrays are compared bit for bit (default: False)
    stream   : what a token is fed as: `vectors`, real numbers of its own (default); or `ids`, the int64 id of the
               event itself in one channel; arrays of `tokens` and `blocks` then hold ids, and are told as such
    refusal  : the exception type, or types, by which it says what it cannot do (default: none)
    """

    width: int
    supports: Sequence[str]
    axes: Mapping[str, Axis]

    def advance(self, xs: Array, n_new: Sequence[int]) -> None:
        """xs [rows, T, width], float64 or ids, right-padded; row i takes its first n_new[i] columns."""

    def read(self, row: int) -> Mapping[str, Array]:
        """Named arrays: what the next step of this row can see, and nothing else.

        No padding, no dead memory, no room for a rollback: two rows that go on alike must read alike.
        """

    def rollback(self, counts: Sequence[int]) -> None:
        """Row i drops its last counts[i] tokens: all rows or none."""

    def select(self, rows: Sequence[int]) -> None:
        """Keep exactly these rows, in this order."""

    def split(self, row: int) -> Cache:
        """A cache of its own for one row; the batch stays as it is."""

    def assemble(self, parts: Sequence[Cache]) -> Cache:
        """A batch of all rows of these caches, in this order (a static or class method does)."""

    def trim(self, base: int) -> None:
        """A batch of one row forgets the tokens before `base`, because nothing will need them."""

    def snapshot(self, path: Path) -> None: ...

    def restore(self, path: Path) -> Cache: ...

    def poison(self) -> None:
        """Overwrite all memory that no row's `read` shows."""

    def reference(self, xs: Array) -> Mapping[str, Array]:
        """What `read` should show after xs [tokens, width], worked out by other code."""


Factory = Callable[[Geometry, int], Cache]

OFFERS = {
    "prefill.ragged": "prompts of unequal length in one batch stay untried",
    "advance.ragged": "rows that take different numbers of tokens in one step, or none, stay untried",
    "rollback": "dropping draft tokens stays untried",
    "rollback.ragged": "rows that drop different numbers of tokens stay untried",
    "select": "dropping and permuting rows stays untried",
    "repeat": "a row that becomes two, as in beam search, stays untried",
    "split": "a row that leaves the batch stays untried",
    "assemble": "a row that joins the batch stays untried",
    "trim": "forgetting the oldest tokens on request stays untried",
    "snapshot": "writing and reading the state stays untried",
    "poison": "reads of memory that no row owns may go unseen",
    "reference": "a fault that batch, alone and a fresh start share goes unseen",
}
"""What a cache may support, each with the consequence of its absence."""

_METHODS = {
    "rollback.ragged": ("rollback",),
    "repeat": ("select",),
    "snapshot": ("snapshot", "restore"),
    "prefill.ragged": (),
    "advance.ragged": (),
}


@dataclass(frozen=True)
class Described:
    """A factory by its name, and what one of its caches said of itself."""

    name: str
    factory: Factory
    width: int
    supports: frozenset[str]
    axes: Mapping[str, Axis]
    exact: bool
    refusal: tuple[type[Exception], ...]
    stream: str = "vectors"

    def offers(self, what: str) -> bool:
        """A ragged rollback includes the even one, a repeated row the selected one."""
        return what in self.supports or any(each.startswith(what + ".") for each in self.supports)


def load_cache(name: str) -> Described:
    """The cache that a dotted name names. Raises ValueError with what is missing."""
    factory = load(name)
    if not callable(factory):
        raise ValueError(
            f"{name!r} is {type(factory).__name__}; it should be a factory that is called with (geometry, rows)"
        )
    try:
        cache = factory(Geometry(), 1)
    except NotOffered as error:
        raise ValueError(
            f"{name!r} does not offer {Geometry()}: {error}; a factory should offer this one"
        ) from None
    except Exception as error:
        raise ValueError(
            f"{name!r} cannot be opened with {Geometry()} and 1 row: {type(error).__name__}: {error}; it should be a "
            "factory that takes a geometry and a number of rows (harness/caches/README.md)"
        ) from error
    return describe(name, factory, cache)


def describe(name: str, factory: Factory, cache: Any) -> Described:
    """What a cache says of itself, checked. Raises ValueError with every problem."""
    problems = [
        f"it has no {part}"
        for part in ("advance", "read", "width", "supports")
        if getattr(cache, part, None) is None
    ]
    listed = getattr(cache, "supports", None) or ()
    if isinstance(listed, str):
        problems.append(f"supports is the text {listed!r}; it should be a tuple of names, ({listed!r},)")
    supports = frozenset(() if isinstance(listed, str) else listed)
    problems += [
        f"supports names {each!r}; there are {', '.join(OFFERS)}" for each in sorted(supports - set(OFFERS))
    ]
    problems += [
        f"supports names {each!r}, and there is no method {method}"
        for each in sorted(supports & set(OFFERS))
        for method in _METHODS.get(each, (each,))
        if not callable(getattr(cache, method, None))
    ]
    axes = dict(getattr(cache, "axes", {}))
    problems += [
        f"axes[{array!r}] is {axis!r}; it should be tokens, blocks or state"
        for array, axis in axes.items()
        if axis not in ("tokens", "blocks", "state")
    ]
    width = getattr(cache, "width", None)
    if width is not None and (not isinstance(width, int) or width < 1):
        problems.append(f"width is {width!r}; it should be the number of channels of a token, 1 or more")
    stream = getattr(cache, "stream", "vectors")
    if stream not in ("vectors", "ids") or (stream == "ids" and width != 1):
        problems.append(
            f"stream is {stream!r} and width {width!r}; it should be vectors, or ids with one channel"
        )
    if problems:
        raise ValueError(f"{name!r} cannot be played: {'; '.join(problems)} (harness/caches/README.md)")
    refusal = getattr(cache, "refusal", ())
    kinds = refusal if isinstance(refusal, tuple) else (refusal,)
    exact = bool(getattr(cache, "exact", False))
    return Described(name, factory, int(width), supports, axes, exact, kinds, stream)  # type: ignore[arg-type]
