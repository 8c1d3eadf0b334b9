"""A compressor whose blocks say which tokens they pooled: the state machinery judged with `==`."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.rows.events import ABSENT


class TokenCompressor:
    """Stands in for the real compressor: int64 event ids in, blocks of ids out, pool calls counted.

    project : ids [N, 1] to payloads [N, span, 1], or [N, 1] of one series: the id itself
    pool    : windows [N, span, ratio, 1] to blocks [N, span * ratio + 1]: the ids in slot order, -1 where
              block 0 has no predecessor, and the block index that the rotation would have used
    """

    payload_dtype = torch.int64
    block_dtype = torch.int64
    hidden_width = 1
    series_width = 1

    def __init__(self, ratio: int, span: int) -> None:
        self.ratio, self.span = ratio, span
        self.block_width = span * ratio + 1
        self.pool_calls = 0

    def describe(self) -> dict[str, str]:
        return {"compressor": "token identity"}

    def project(self, hidden: Tensor, series: int | None = None) -> Tensor:
        return hidden.clone() if series is not None else hidden[:, None].repeat(1, self.span, 1)

    def pool(self, windows: Tensor, block: Tensor) -> Tensor:
        self.pool_calls += 1
        ids = windows.squeeze(-1).clone()
        block = block.to(ids.device)
        if self.span == 2:
            ids[block == 0, 0] = ABSENT
        return torch.cat([ids.flatten(1), block[:, None]], dim=1)
