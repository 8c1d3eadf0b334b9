"""The batch caches of mlx-lm behind one attention layer, which is all that they need of a model.

Needs the extra `oracle`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import mlx.core as mx
import numpy as np
from mlx_lm.models import cache as mlx
from mlx_lm.models.base import create_attention_mask

from harness.caches.protocol import Geometry
from harness.subjects.row_arrays import Array, Refused

_WIDTH, _WINDOW, _SINKS = 8, 12, 4
_POISON = 1e6


class _Batch:
    """What both kinds have in common: the calls that `mlx_lm.generate` makes, in its order.

    A token's value is its input, and its key the same, rotated by its position. `attended` is what one more token
    would read: it sees through the mask, so a row that is shown its padding, or a neighbour's length, reads wrong.
    """

    width = _WIDTH
    supports = (
        "prefill.ragged", "advance.ragged", "rollback", "select", "split", "assemble", "snapshot", "poison", "reference",
    )  # fmt: skip
    axes: Mapping[str, str] = {"keys": "tokens", "values": "tokens", "attended": "state"}
    refusal = Refused
    single: ClassVar[Any]  # makes the cache that mlx-lm gives to a sequence of its own
    seen: ClassVar[int | None] = None  # how many tokens the next one sees, if not all

    def __init__(self, geometry: Geometry, rows: int) -> None:
        self.cache: Any = self.single().merge([self.single() for _ in range(rows)])

    def advance(self, xs: Array, n_new: Sequence[int]) -> None:
        if self.cache is None:
            return
        columns = xs.shape[1]
        padding = [columns - n for n in n_new]
        if any(padding):
            self.cache.prepare(lengths=list(n_new), right_padding=padding)
        if columns:
            _attend(self.cache, xs)
        if any(padding):
            self.cache.finalize()

    def rollback(self, counts: Sequence[int]) -> None:
        if not any(counts):
            return
        if not self.cache.is_trimmable():
            raise Refused("is_trimmable() is False")
        self.cache.trim(counts[0])

    def select(self, rows: Sequence[int]) -> None:
        if rows:
            self.cache.filter(list(rows))
        else:
            self.cache = (
                None  # mlx-lm lets go of the cache of a batch without rows, and goes on with the other's
            )

    def split(self, row: int) -> Self:
        return self._with(self.cache.merge([self.cache.extract(row)]))

    @staticmethod
    def assemble(parts: Sequence[_Batch]) -> _Batch:
        whole, *others = [part for part in parts if part.cache is not None] or parts
        for part in others:
            whole.cache.extend(part.cache)
        return whole

    def snapshot(self, path: Path) -> None:
        mlx.save_prompt_cache(f"{path}.safetensors", [self.cache])

    def restore(self, path: Path) -> Self:
        return self._with(mlx.load_prompt_cache(f"{path}.safetensors")[0])

    def _with(self, cache: Any) -> Self:
        other = copy.copy(self)
        other.cache = cache
        return other

    def poison(self) -> None:
        """Large, not NaN: what a mask hides is multiplied by a weight of zero."""
        if self.cache is None or self.cache.empty():
            return
        columns = np.arange(self.cache.keys.shape[2])
        if getattr(self.cache, "rotated", False):
            columns = (columns - self.cache._idx) % len(columns)  # from the oldest
            written = len(columns)
        else:
            written = self.cache._idx
        oldest = np.array(self.cache.left_padding)
        if self.seen is not None and not self.cache.is_trimmable():
            oldest = np.maximum(oldest, written - self.seen)
        dead = mx.array((columns < oldest[:, None]) | (columns >= written))[:, None, :, None]
        self.cache.keys = mx.where(dead, _POISON, self.cache.keys)
        self.cache.values = mx.where(dead, _POISON, self.cache.values)

    def read(self, row: int) -> Mapping[str, Array]:
        one = self.single() if self.cache.empty() else self.cache.extract(row)
        rows = self.cache.offset.shape[0]
        return self._seen(one, _attend(copy.deepcopy(self.cache), np.ones((rows, 1, _WIDTH)))[row])

    def reference(self, xs: Array) -> Mapping[str, Array]:
        """The same package's cache of one sequence, given everything at once."""
        one = self.single()
        if len(xs):
            _attend(one, xs[None])
        return self._seen(one, _attend(copy.deepcopy(one), np.ones((1, 1, _WIDTH)))[0])

    def _seen(self, one: Any, attended: Array) -> dict[str, Array]:
        """Of a cache that was extracted, or filled in one call: its entries are in the order of their tokens."""
        if one.empty():
            nothing = np.zeros((0, _WIDTH), np.float32)
            return {"keys": nothing, "values": nothing, "attended": attended}
        keys, values = one.keys_and_values()
        return {"keys": self._next(keys, one), "values": self._next(values, one), "attended": attended}

    def _next(self, entries: Any, one: Any) -> Array:
        """Those that the next token sees: all, or the first `keep` and the newest that fit beside it in the window."""
        held: Array = np.array(entries)[0, 0]
        if self.seen is None:
            return held
        keep = getattr(one, "keep", 0)
        return np.delete(held, np.s_[keep : keep + max(0, len(held) - self.seen)], axis=0)


class BatchKV(_Batch):
    """BatchKVCache: left-padded, and every token is kept."""

    single = mlx.KVCache


class BatchRotatingKV(_Batch):
    """BatchRotatingKVCache: the newest tokens of a sliding window, in a ring."""

    single = partial(mlx.RotatingKVCache, _WINDOW)
    seen = _WINDOW - 1


class BatchRotatingKVWithSinks(_Batch):
    """The same made from caches that never let go of their first tokens, as `make_prompt_cache(max_kv_size=...)` has them."""

    single = partial(mlx.RotatingKVCache, _WINDOW, keep=_SINKS)
    seen = _WINDOW - 1


def _attend(cache: Any, xs: Array) -> Array:
    """One attention layer without weights: the output [rows, width] of the last of the new tokens [rows, T, width]."""
    new = mx.array(xs.astype(np.float32))[:, None]  # one head
    turned = mx.fast.rope(new, _WIDTH, traditional=True, base=10000.0, scale=1.0, offset=cache.offset)
    mask = create_attention_mask(new[:, 0], cache)
    keys, values = cache.update_and_fetch(turned, new)
    read = mx.fast.scaled_dot_product_attention(turned, keys, values, scale=_WIDTH**-0.5, mask=mask)
    return np.array(read[:, 0, -1])
