"""Snapshots of compressor state in safetensors files: what is written is enough to refuse a wrong reader."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from torch_impl.refusals import RestoreRefused
from torch_impl.xs_rolling import XsRolling

_FORMAT = "rowproof-xs-rolling-1"


def snapshot(cache: XsRolling, path: Path | str) -> None:
    """Write every row's live blocks, its run, tokens and base; nothing stale is written."""
    live = max(cache.live_blocks(row) for row in range(cache.rows))
    comp = cache.storage()["comp"].new_zeros(cache.rows, live, cache.compressor.block_width)
    for row in range(cache.rows):
        comp[row, : cache.live_blocks(row)] = cache.comp(row)
    counts = {"tokens": json.dumps(cache.tokens), "base": json.dumps(cache.base)}
    tensors = {"comp": comp.contiguous(), "tail": cache.tail().contiguous()}
    save_file(tensors, str(path), metadata=_kind(cache) | counts)


def restore(like: XsRolling, path: Path | str) -> XsRolling:
    """The cache stored at `path`, of the kind of `like` (whose own rows are not touched).

    Raises RestoreRefused for a file that cannot be read, is of another geometry, payload or dtype, or whose
    counts break an invariant. A restored row may be wider than it would have been alone.
    """
    try:
        with safe_open(str(path), framework="pt") as file:
            stored = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError) as error:
        raise RestoreRefused(
            f"{path} cannot be read ({error}); it should be a safetensors file that snapshot has written; take the "
            "snapshot again",
            "restore-unreadable",
        ) from error
    for key, should in _kind(like).items():
        if stored.get(key) != should:
            raise RestoreRefused(
                f"{path} has {key} {stored.get(key)!r}; it should have {should!r}, as this cache has; restore "
                "into a cache of the same layer and settings",
                f"restore-{key.replace('_', '-')}",
            )
    try:
        tokens, base = (_counts(key, stored[key]) for key in ("tokens", "base"))
        comp, tail = tensors["comp"], tensors["tail"]
    except (KeyError, ValueError, RecursionError) as error:
        raise RestoreRefused(
            f"{path} lacks a part of the state ({error!r}); it should hold comp, tail, tokens and base; take the "
            "snapshot again",
            "restore-incomplete",
        ) from error
    return like.adopt(comp, tail, tokens, base)


def _counts(key: str, text: str) -> list[int]:
    """The list of whole numbers that `text` is. Raises ValueError for anything else."""
    counts = json.loads(text)
    if not isinstance(counts, list) or not all(type(count) is int for count in counts):
        raise ValueError(f"{key} is {text}, not a list of whole numbers")
    return counts


def _kind(cache: XsRolling) -> dict[str, str]:
    geometry = cache.geometry
    return {
        "format": _FORMAT,
        "ratio": str(geometry.ratio),
        "span": str(geometry.span),
        "margin": str(geometry.margin),
        "retain": cache.retain,
        "payload_dtype": str(cache.storage()["ring"].dtype),
        "block_dtype": str(cache.storage()["comp"].dtype),
    } | dict(cache.compressor.describe())
