"""Elements written to one memory block, counted from outside by watching every tensor operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def address(tensor: Tensor) -> int:
    """Where the memory block that holds `tensor` begins."""
    return int(tensor.untyped_storage().data_ptr())


class CountWrites(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, `elements[address]` counts the elements that were written to each storage."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements: Counter[int] = Counter()
        self._kept: list[Tensor] = []  # an address must not be reused while it is counted

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        if schema.is_mutable:
            for value, argument in zip(args, schema.arguments, strict=False):
                if (
                    argument.alias_info is not None
                    and argument.alias_info.is_write
                    and isinstance(value, Tensor)
                ):
                    count = _WRITTEN.get(schema.name, _whole)
                    self.elements[address(value)] += count(value, args)
                    self._kept.append(value)
        return func(*args, **kwargs)


def _whole(target: Tensor, args: tuple[Any, ...]) -> int:
    return target.numel()


def _indexed(target: Tensor, args: tuple[Any, ...]) -> int:
    """index_put_(self, indices, values): one slice of the unindexed dimensions per index tuple."""
    indices = list(args[1]) + [None] * (target.dim() - len(args[1]))
    picked, dim, slices = 1, 0, 1
    tuples: list[Tensor] = []
    for index in indices:
        if index is None:
            slices *= target.shape[dim]
            dim += 1
        elif index.dtype == torch.bool:
            picked *= int(index.sum())
            dim += index.dim()
        else:
            tuples.append(index)
            dim += 1
        if dim == target.dim():
            break
    if tuples:
        picked *= torch.broadcast_tensors(*tuples)[0].numel()  # type: ignore[no-untyped-call]
    return picked * slices


def _along_dim(target: Tensor, args: tuple[Any, ...]) -> int:
    """index_copy_(self, dim, index, source)."""
    return int(args[3].numel())


_WRITTEN: dict[str, Callable[[Tensor, tuple[Any, ...]], int]] = {
    "aten::index_put_": _indexed,
    "aten::_index_put_impl_": _indexed,
    "aten::index_copy_": _along_dim,
}
