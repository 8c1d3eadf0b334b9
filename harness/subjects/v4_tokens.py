"""The layers of a V4 model in token form: what every query was given, in event ids, judged with `==`.

Slots, masks, positions and choices are production's. The arithmetic carries ids in the place of keys, and so does what it
returns: a query notes which keys and blocks it was given, and where it was rotated. What each layer notes of a row's
last queries is what is read, beside what the row stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from harness.caches.protocol import Axis, Geometry
from harness.rows.events import ABSENT, POISON
from harness.rows.subject import Array
from harness.subjects.token_compressor import TokenCompressor
from reference_impl.attention import Visible, visible
from reference_impl.compressor import block_tokens
from reference_impl.indexer import picks, reached
from torch_impl import layer
from torch_impl.cache import Cache
from torch_impl.layer import Branch, IndexerMath
from torch_impl.refusals import Refusal
from torch_impl.schedule import SPANS, Kind
from torch_impl.storage import BlockPooler

KINDS: tuple[Kind, ...] = ("sliding", "csa", "hca")
WINDOW, TOPK, QUERIES = 8, 2, 8
ARRAYS: dict[Kind, tuple[str, ...]] = {
    "sliding": ("mask", "positions", "lead", "kv"),
    "csa": ("mask", "picks", "positions", "lead", "kv", "comp", "index"),
    "hca": ("mask", "blocks", "positions", "lead", "kv", "comp"),
}
AXES: dict[str, Axis] = {
    "mask": "tokens", "picks": "blocks", "blocks": "blocks", "positions": "state", "lead": "state",
    "kv": "tokens", "comp": "blocks", "index": "blocks",
}  # fmt: skip


def ratios(geometry: Geometry) -> dict[Kind, int]:
    """One geometry speaks of one kind of layer; the other kind has another ratio, so that no ratio serves both."""
    if geometry.span == 2:
        return {"sliding": 0, "csa": geometry.ratio, "hca": 2 * geometry.ratio}
    return {"sliding": 0, "csa": 4, "hca": geometry.ratio}


class Query(NamedTuple):
    """What one query was given.

    raw    : [n, 2], each key's id and the position at which it was rotated, by id
    blocks : [m, C], each block's ids and its index, by index
    at     : where the query was rotated, and where its output was turned back
    dead   : how many columns it saw that are nobody's, and how many columns hold something that no query saw
    """

    raw: Array
    blocks: Array
    at: tuple[int, int]
    dead: tuple[int, int]


class TokenIndexer:
    """Wants blocks in an order that depends on the query, its position and the blocks' ids."""

    def __init__(self, ratio: int) -> None:
        self.compressor: BlockPooler = TokenCompressor(ratio, SPANS["csa"])
        self.topk = TOPK

    def scores(self, hidden: Tensor, residual: Tensor, position: Tensor, keys: Tensor) -> Tensor:
        query = hidden.numpy()[..., 0] + residual.numpy()[..., 0]  # [B, T]
        return torch.from_numpy(wish(query[..., None], position.numpy()[..., None], keys.numpy()[:, None]))


def wish(query: Array, position: Array, blocks: Array) -> Array:
    """How much a query wants each block [..., C] of ids and an index: float64 integers, no two of one query equal."""
    with np.errstate(over="ignore"):
        mixed = np.uint64(0x9E3779B97F4A7C15) * query.astype(np.uint64)
        mixed = mixed + np.uint64(0xC2B2AE3D27D4EB4F) * position.astype(np.uint64)
        mixed = mixed + (_odd(blocks.shape[-1]) * blocks.astype(np.uint64)).sum(axis=-1)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    index = blocks[..., -1].astype(np.uint64) & np.uint64(0xFFF)
    result: Array = ((mixed >> np.uint64(24)) << np.uint64(12) | index).astype(np.float64)
    return result


@cache
def _odd(n: int) -> Array:
    drawn: Array = np.random.default_rng(5).integers(1, 1 << 62, n, dtype=np.uint64) * np.uint64(
        2
    ) + np.uint64(1)
    return drawn


class TokenMath:
    """Keys are ids beside the position at which they were rotated; `given` is what the last step's queries were given."""

    key_width, key_dtype = 2, torch.int64

    def __init__(self, kind: Kind, ratio: int) -> None:
        self.compressor: BlockPooler | None = (
            TokenCompressor(ratio, SPANS[kind]) if kind != "sliding" else None
        )
        self.indexer: IndexerMath | None = TokenIndexer(ratio) if kind == "csa" else None
        self.given: tuple[Branch, Branch | None] | None = None

    def queries(self, hidden: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        return self.keys(hidden, position), hidden

    def keys(self, hidden: Tensor, position: Tensor) -> Tensor:
        return torch.cat([hidden, position[..., None]], dim=-1)

    def attend(self, queries: Tensor, raw: Branch, blocks: Branch | None) -> Tensor:
        self.given = raw, blocks
        return queries

    def output(self, read: Tensor, position: Tensor) -> Tensor:
        return torch.cat([read, position[..., None]], dim=-1)

    def noted(self, output: Tensor, n_new: Sequence[int], keep: int) -> list[list[Query]]:
        """What each row's last `keep` queries of a step were given; output [B, T, 3] is what the layer returned."""
        assert self.given is not None
        raw, blocks = self.given
        return [
            _queries(output[row].numpy(), _offered(raw, row), _offered(blocks, row), n, keep)
            for row, n in enumerate(n_new)
        ]


class Offered(NamedTuple):
    """What one row was offered in a branch: keys [N, C], and keep [T, N], which of them each query saw."""

    keys: Array
    keep: Array


def _offered(branch: Branch | None, row: int) -> Offered | None:
    return Offered(branch.keys[row].numpy(), branch.keep[row].numpy()) if branch is not None else None


def _queries(output: Array, raw: Offered | None, blocks: Offered | None, n: int, keep: int) -> list[Query]:
    assert raw is not None
    branches = [branch for branch in (raw, blocks) if branch is not None]
    unseen = sum(
        int((branch.keys.any(axis=1) & ~branch.keep[:n].any(axis=0)).sum()) for branch in branches if n
    )
    found = []
    for k in range(max(n - keep, 0), n):
        dead = sum(int((branch.keep[k] & ~branch.keys.any(axis=1)).sum()) for branch in branches)
        tokens = raw.keys[raw.keep[k]]
        pooled = blocks.keys[blocks.keep[k]] if blocks is not None else raw.keys[:0]
        found.append(
            Query(
                tokens[np.lexsort(tokens.T[::-1])],
                pooled[np.argsort(pooled[:, -1], kind="stable")],
                (int(output[k, 1]), int(output[k, 2])),
                (dead, unseen),
            )
        )
    return found


class V4TokenCache:
    """All slots of three layers, sliding, CSA and HCA, and what their last queries of each row were given.

    Read, for each layer: the tokens in its window (mask), the blocks (picks in CSA, blocks in HCA), positions, dead
    columns (lead), and the stored keys and blocks (kv, comp, index).
    """

    width = 1
    stream = "ids"
    exact = True
    supports: ClassVar[tuple[str, ...]] = (
        "prefill.ragged", "advance.ragged", "rollback.ragged", "select", "repeat", "split", "assemble", "poison",
        "reference",
    )  # fmt: skip
    axes: ClassVar[Mapping[str, Axis]] = {
        f"l{i}.{name}": AXES[name] for i, kind in enumerate(KINDS) for name in ARRAYS[kind]
    }
    refusal = Refusal

    def __init__(self, geometry: Geometry, rows: int) -> None:
        self.geometry, self.ratios = geometry, ratios(geometry)
        self.maths = [TokenMath(kind, self.ratios[kind]) for kind in KINDS]
        self.cache = Cache.open(self.maths, rows, WINDOW, geometry.margin)
        self.noted: list[list[list[Query]]] = [[[] for _ in KINDS] for _ in range(rows)]  # row, layer, query

    def _like(self, cache: Cache, noted: list[list[list[Query]]]) -> Self:
        other = object.__new__(type(self))
        other.geometry, other.ratios, other.maths = self.geometry, self.ratios, self.maths
        other.cache, other.noted = cache, [[list(queries) for queries in row] for row in noted]
        return other

    def advance(self, xs: Array, n_new: Sequence[int]) -> None:
        hidden = torch.from_numpy(np.ascontiguousarray(xs))
        kept = QUERIES + self.geometry.margin  # no rollback goes back further
        for i, (math, slots) in enumerate(zip(self.maths, self.cache.layers, strict=True)):
            output = layer.step(math, slots, hidden, n_new)
            for row, queries in zip(self.noted, math.noted(output, n_new, kept), strict=True):
                row[i] = (row[i] + queries)[-kept:]

    def rollback(self, counts: Sequence[int]) -> None:
        self.cache.rollback_rows(counts)
        for row, n in zip(self.noted, counts, strict=True):
            for queries in row:
                del queries[len(queries) - n :]

    def select(self, rows: Sequence[int]) -> None:
        self.cache.select(rows)
        self.noted = [[list(queries) for queries in self.noted[row]] for row in rows]

    def split(self, row: int) -> Self:
        return self._like(self.cache.split_row(row), self.noted[row : row + 1])

    def assemble(self, parts: Sequence[Self]) -> Self:
        cache = Cache.assemble([part.cache for part in parts])
        return self._like(cache, [row for part in parts for row in part.noted])

    def poison(self) -> None:
        for _, slot in self.cache.slots():
            slot.fill_dead(POISON)

    def read(self, row: int) -> Mapping[str, Array]:
        held: dict[str, Array] = {}
        for i, kind in enumerate(KINDS):
            slots, start = self.cache.layers[i], f"l{i}."
            tokens = slots.kv.tokens[row]
            ratio = self.ratios[kind]
            held |= _told(start, kind, self.noted[row][i][-QUERIES:], tokens // ratio if ratio else 0)
            held[start + "kv"] = slots.kv.run(row)[
                len(slots.kv.run(row)) - min(tokens, WINDOW - 1) :, :1
            ].numpy()
            for name, state in (("comp", slots.compressor), ("index", slots.indexer)):
                if state:
                    held[start + name] = state.comp(row)[:, :-1].numpy()
        return held

    def reference(self, xs: Array) -> Mapping[str, Array]:
        ids, right = xs[:, 0], dict[str, Array]()
        for i, kind in enumerate(KINDS):
            start, ratio = f"l{i}.", self.ratios[kind]
            blocks = _pooled(ids, ratio, SPANS[kind]) if ratio else np.zeros((0, 1), dtype=np.int64)
            queries = [
                _right(ids, t, _seen(ids, blocks, t, kind, ratio), blocks)
                for t in range(max(len(ids) - QUERIES, 0), len(ids))
            ]
            right |= _told(start, kind, queries, len(blocks))
            right[start + "kv"] = ids[max(len(ids) - WINDOW + 1, 0) :, None]
            right |= {start + name: blocks[:, :-1] for name in ("comp", "index")[: _STATES[kind]]}
        return right


_STATES: dict[Kind, int] = {"sliding": 0, "csa": 2, "hca": 1}


def _pooled(ids: Array, ratio: int, span: int) -> Array:
    """Every completed block's ids and index, [n, span * ratio + 1], in closed form."""
    extended = np.append(ids, ABSENT)  # the last one stands for token -1
    rows = [[*extended[block_tokens(b, ratio, span)], b] for b in range(len(ids) // ratio)]
    return np.array(rows, dtype=np.int64).reshape(-1, span * ratio + 1)


def _seen(ids: Array, blocks: Array, t: int, kind: Kind, ratio: int) -> Visible:
    """What the query at token t attends to, in closed form."""

    def best(position: int, among: range) -> list[int]:
        wishes = wish(2 * ids[position], np.array(position), blocks)
        return reached(picks(wishes, len(among), TOPK))

    return visible(t, kind, WINDOW, ratio, best if kind == "csa" else None)


def _right(ids: Array, t: int, seen: Visible, blocks: Array) -> Query:
    positions = np.array(seen.raw)
    return Query(np.stack([ids[positions], positions], axis=1), blocks[list(seen.blocks)], (t, t), (0, 0))


def _told(start: str, kind: Kind, queries: Sequence[Query], live: int) -> dict[str, Array]:
    """The queries as arrays, one entry per query; -1 stands where a query was given less than others."""
    most = TOPK if kind == "csa" else live
    raw = _filled((query.raw for query in queries), len(queries), WINDOW, 2)
    at, dead = (
        np.array(pairs, dtype=np.int64).reshape(-1, 2)
        for pairs in ([query.at for query in queries], [query.dead for query in queries])
    )
    told = {"mask": raw[..., 0], "lead": dead, "positions": np.concatenate([at, raw[..., 1]], axis=1)}
    if kind != "sliding":
        width = max((query.blocks.shape[1] for query in queries), default=1)
        blocks = _filled((query.blocks for query in queries), len(queries), most, width)
        told["picks" if kind == "csa" else "blocks"] = blocks[..., :-1]
    return {start + name: array for name, array in told.items()}


def _filled(parts: Iterable[Array], n: int, least: int, width: int) -> Array:
    """Arrays [m_i, width] side by side as [n, most, width], the room in front filled with -1."""
    held = list(parts)
    filled = np.full((n, max([least, *map(len, held)]), width), ABSENT, dtype=np.int64)
    for row, part in zip(filled, held, strict=True):
        if len(part):
            row[len(row) - len(part) :] = part
    return filled
