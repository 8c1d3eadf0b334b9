"""A paged key/value cache for one attention layer: block tables, shared pages, speculative append and truncate."""

import math

import torch
from torch import Tensor


class PagedCache:
    """Keys and values of many sequences in one pool of pages.

    Every sequence has a block table (its pages, in order) and a length. Sequences forked from one another share
    their pages; a page goes back to the free list when no block table holds it. A full page is never written
    again, so a fork shares full pages and copies the one that is still being filled.
    """

    def __init__(
        self, batch: int, width: int, head_dim: int, *, page_size: int = 16, pages: int = 256
    ) -> None:
        generator = torch.Generator().manual_seed(7)
        scale = 1 / math.sqrt(width)
        self.w_key = torch.randn(width, head_dim, generator=generator) * scale
        self.w_value = torch.randn(width, head_dim, generator=generator) * scale
        self.page_size = page_size
        self.keys = torch.zeros(pages, page_size, head_dim)
        self.values = torch.zeros(pages, page_size, head_dim)
        self.refs = [0] * pages
        self.free = list(range(pages))[::-1]
        self.tables: list[list[int]] = [[] for _ in range(batch)]
        self.lengths = [0] * batch

    def append(self, hidden: Tensor, counts: list[int]) -> None:
        """Append the first `counts[row]` tokens of `hidden` [batch, tokens, width] to every row."""
        rows, slots, columns = [], [], []
        for row, count in enumerate(counts):
            for column in range(count):
                rows.append(row)
                slots.append(self._slot(row))
                columns.append(column)
        if not rows:
            return
        new = hidden[rows, columns]
        positions = torch.tensor([slot % self.page_size for slot in slots])
        pages = torch.tensor([slot // self.page_size for slot in slots])
        self.keys[pages, positions] = new @ self.w_key
        self.values[pages, positions] = new @ self.w_value

    def truncate(self, lengths: list[int]) -> None:
        """Cut every row down to `lengths[row]` tokens: the drafts behind were not accepted."""
        for row, length in enumerate(lengths):
            if not 0 <= length <= self.lengths[row]:
                raise ValueError(f"row {row} holds {self.lengths[row]} tokens, cannot keep {length}")
            keep = -(-length // self.page_size)
            for page in self.tables[row][keep:]:
                self._release(page)
            self.tables[row] = self.tables[row][:keep]
            self.lengths[row] = length

    def select(self, rows: list[int]) -> None:
        """Keep `rows`, in that order. A row named twice is forked."""
        before = self.tables
        self.tables = [self._fork(before[row], self.lengths[row]) for row in rows]
        self.lengths = [self.lengths[row] for row in rows]
        for table in before:
            for page in table:
                self._release(page)

    def gather(self, row: int) -> tuple[Tensor, Tensor]:
        """The keys and the values of a row, [length, head_dim] each."""
        length, table = self.lengths[row], self.tables[row]
        return self.keys[table].flatten(0, 1)[:length], self.values[table].flatten(0, 1)[:length]

    def _slot(self, row: int) -> int:
        """The place of the row's next token in the pool; takes a page where the last one is full."""
        offset = self.lengths[row] % self.page_size
        if offset == 0:
            self.tables[row].append(self._take())
        self.lengths[row] += 1
        return self.tables[row][-1] * self.page_size + offset

    def _fork(self, table: list[int], length: int) -> list[int]:
        """A block table of its own for a row with the same tokens: full pages are shared, an unfilled one is copied."""
        full = length // self.page_size
        for page in table[:full]:
            self.refs[page] += 1
        return table[:full] + [self._copy(page) for page in table[full:]]

    def _copy(self, page: int) -> int:
        """A new page with what this one holds."""
        new = self._take()
        self.keys[new], self.values[new] = self.keys[page], self.values[page]
        return new

    def _take(self) -> int:
        """A page off the free list."""
        page = self.free.pop()
        self.refs[page] = 1
        return page

    def _release(self, page: int) -> None:
        """Give one hold on a page back."""
        self.refs[page] -= 1
        if self.refs[page] == 0:
            self.free.append(page)
