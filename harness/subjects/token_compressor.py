"""A compressor whose blocks say which tokens they pooled: the state machinery judged with `==`."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.rows.events import ABSENT


class TokenCompressor:
    """Stands in for the real compressor: int64 event ids in, blocks of ids out, pool calls counted.

    A token is its id, or C numbers (channels) that stand for it.

    project : tokens [N, C] to payloads [N, span, C], or [N, C] of one series: the token itself
    pool    : windows [N, span, ratio, C] to blocks [N, span * ratio * C + 1]: the tokens in slot order, -1 where
              block 0 has no predecessor, and the block index that the rotation would have used
    """

    payload_dtype = torch.int64
    block_dtype = torch.int64

    def __init__(self, ratio: int, span: int, channels: int = 1) -> None:
        self.ratio, self.span = ratio, span
        self.hidden_width = self.series_width = channels
        self.block_width = span * ratio * channels + 1
        self.pool_calls = 0

    def describe(self) -> dict[str, str]:
        return {"compressor": "token identity"}

    def project(self, hidden: Tensor, series: int | None = None) -> Tensor:
        return hidden.clone() if series is not None else hidden[:, None].repeat(1, self.span, 1)

    def pool(self, windows: Tensor, block: Tensor) -> Tensor:
        self.pool_calls += 1
        ids = windows.clone()
        block = block.to(ids.device)
        if self.span == 2:
            ids[block == 0, 0] = ABSENT
        return torch.cat([ids.flatten(1), block[:, None]], dim=1)
