"""The cache of an x-transformers decoder of one layer, driven as `generate` and `beam_search` drive it.

Random weights, no download. Needs the extra `oracle`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import torch
from x_transformers import Decoder
from x_transformers.autoregressive_wrapper import modify_cached_kv

from harness.caches.protocol import Axis, Geometry
from harness.subjects.row_arrays import Array

_WIDTH, _WINDOW = 32, 12
# Not constant: the layer's norm would make a query of zeros of it.
_PROBE = torch.arange(_WIDTH).cos()


@lru_cache(maxsize=2)
def _net(hybrid: bool) -> Any:
    """The same weights in every play; `hybrid` puts a recurrent unit beside the attention."""
    state = torch.get_rng_state()
    torch.manual_seed(3)
    options: dict[str, Any] = {}
    if hybrid:
        unit = torch.nn.GRU(_WIDTH, _WIDTH, batch_first=True)
        options = {"attn_hybrid_module": unit, "attn_hybrid_fold_axial_dim": 1}
    net = Decoder(
        dim=_WIDTH,
        depth=1,
        heads=1,
        attn_dim_head=_WIDTH,
        ff_mult=1,
        rotary_pos_emb=True,
        rotary_emb_dim=_WIDTH,
        **options,
    )
    torch.set_rng_state(state)
    return net.eval().requires_grad_(False)


class XTransformersCache:
    """Prompts of unequal length are aligned at the right, `seq_start_pos` says where each begins; then rows step evenly.

    `attended` is what one more token would read: it sees through the mask.
    """

    width = _WIDTH
    supports = ("prefill.ragged", "select", "repeat")
    axes: ClassVar[Mapping[str, Axis]] = {"keys": "tokens", "values": "tokens"}
    hybrid: ClassVar[bool] = False
    seen: ClassVar[int | None] = None  # `max_seq_len`, if prompts and steps may go beyond it

    def __init__(self, geometry: Geometry, rows: int) -> None:
        self.net = _net(self.hybrid)
        self.cache: Any = None
        self.start = torch.zeros(rows, dtype=torch.int64)

    def advance(self, xs: Array, n_new: Sequence[int]) -> None:
        new = torch.from_numpy(xs).float()
        if not new.shape[1]:
            return
        if self.cache is None:
            self.start = new.shape[1] - torch.tensor(n_new)
            aligned = [row.roll(int(start), 0) for row, start in zip(new, self.start, strict=True)]
            prompts = torch.stack(aligned)
            _, self.cache = self._forward(prompts if self.seen is None else prompts[:, -self.seen :])
        else:
            for column in range(new.shape[1]):
                _, self.cache = self._forward(new[:, column : column + 1])

    def _forward(self, new: torch.Tensor) -> Any:
        cache = self._next()
        return self.net(
            new,
            cache=cache,
            input_not_include_cache=True,
            seq_pos_offset=0 if cache is None else _held(cache)[0].shape[2],
            seq_start_pos=self.start,
            return_hiddens=True,
        )

    def _next(self) -> Any:
        """The cache as it is given to the next step."""
        cache = copy.copy(self.cache)
        if cache is not None and self.seen is not None:
            window = 1 - self.seen
            modify_cached_kv(cache, lambda entries: entries[..., window:, :])
        return cache

    def select(self, rows: Sequence[int]) -> None:
        """As `beam_search` moves rows."""
        self.start = self.start[list(rows)]
        if self.cache is not None:
            modify_cached_kv(self.cache, lambda entries: entries[list(rows)])

    def read(self, row: int) -> Mapping[str, Array]:
        attended, _ = self._forward(_PROBE.expand(len(self.start), 1, _WIDTH))
        nothing = torch.zeros(len(self.start), 1, 0, _WIDTH)
        held = (nothing, nothing) if self.cache is None else _held(self._next())
        keys, values = (entries[row, 0, self.start[row] :].numpy() for entries in held)
        read = {"keys": keys, "values": values, "attended": attended[row, 0].numpy()}
        if self.hybrid and self.cache is not None:
            read["hidden"] = self.cache.attn_intermediates[0].hybrid_hidden[0, row].numpy()
        return read


class XTransformersWindow(XTransformersCache):
    """The same beyond `max_seq_len`: `generate` lets go of the oldest columns, of all rows alike."""

    seen = _WINDOW


class XTransformersHybrid(XTransformersCache):
    """The same with a recurrent unit beside the attention, whose hidden state is part of the cache."""

    hybrid = True


def _held(cache: Any) -> Any:
    """Keys and values of the one layer, each [rows, 1, columns, width]."""
    return cache.attn_intermediates[0].cached_kv
