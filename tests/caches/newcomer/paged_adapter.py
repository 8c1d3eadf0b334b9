"""The adapter that lets rowproof play `paged_cache.PagedCache`."""

from typing import ClassVar

import torch
from paged_cache import PagedCache


class Paged:
    """A paged cache with pages of four tokens, so that short histories cross and share pages."""

    width = 8
    supports = ("prefill.ragged", "advance.ragged", "rollback.ragged", "select", "repeat")
    axes: ClassVar = {"keys": "tokens", "values": "tokens"}

    def __init__(self, geometry, rows):
        self.cache = PagedCache(rows, self.width, 8, page_size=4, pages=8192)

    def advance(self, xs, n_new):
        self.cache.append(torch.from_numpy(xs).float(), [int(n) for n in n_new])

    def rollback(self, counts):
        self.cache.truncate(
            [held - int(count) for held, count in zip(self.cache.lengths, counts, strict=True)]
        )

    def select(self, rows):
        self.cache.select([int(row) for row in rows])

    def read(self, row):
        keys, values = self.cache.gather(row)
        return {"keys": keys.numpy(), "values": values.numpy()}
