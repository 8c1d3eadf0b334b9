"""Which kind of layer stands where in a model, and the cache slots that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch_impl.rope import Rope, Yarn

Kind = Literal["sliding", "csa", "hca"]
SlotKind = Literal["kv", "compressor", "indexer"]

SPANS: dict[Kind, int] = {"csa": 2, "hca": 1}
"""Groups of tokens that one block pools; an indexer's compressor is a CSA compressor."""


class SlotPlan(NamedTuple):
    """One slot of the cache: whose it is, and what a column of it holds.

    ratio, span : of its compressor; 0 in a K/V slot, which has none
    width       : channels of a key or a block
    """

    layer: int
    kind: SlotKind
    ratio: int
    span: int
    width: int


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """The sizes of a model that its cache and its attention follow from.

    schedule : the kind of each layer, from the input on
    """

    schedule: tuple[Kind, ...]
    hidden_width: int
    heads: int
    d: int
    rope_width: int
    window: int
    index_heads: int
    index_d: int
    topk: int
    csa_ratio: int = 4
    hca_ratio: int = 128

    def __post_init__(self) -> None:
        if not self.schedule or not set(self.schedule) <= {"sliding", "csa", "hca"}:
            raise ValueError(
                f"schedule is {self.schedule}; it should name at least one layer, each sliding, csa or hca"
            )
        if self.rope_width > min(self.d, self.index_d):
            raise ValueError(
                f"rope_width is {self.rope_width}; it should be at most d={self.d} and index_d={self.index_d}: heads "
                "and index heads turn alike"
            )

    def ratio(self, kind: Kind) -> int:
        """Tokens of a block in a layer of that kind; 0 in a sliding layer."""
        return {"sliding": 0, "csa": self.csa_ratio, "hca": self.hca_ratio}[kind]

    def rope(self, kind: Kind) -> Rope:
        """The rotation of a layer's queries, raw keys, blocks and outputs, which is one for all of them."""
        if kind == "sliding":
            return Rope(self.rope_width, theta=10000.0, yarn=None)
        return Rope(self.rope_width, theta=160000.0, yarn=Yarn())

    def slots(self) -> list[SlotPlan]:
        """All slots of a cache: every layer's keys, then the compressors, then the indexers."""
        layers = list(enumerate(self.schedule))
        keys = [SlotPlan(i, "kv", 0, 0, self.d) for i, _ in layers]
        compressors = [
            SlotPlan(i, "compressor", self.ratio(kind), SPANS[kind], self.d)
            for i, kind in layers
            if kind != "sliding"
        ]
        indexers = [
            SlotPlan(i, "indexer", self.csa_ratio, SPANS["csa"], self.index_d)
            for i, kind in layers
            if kind == "csa"
        ]
        return keys + compressors + indexers


def alternating(first: tuple[Kind, ...], layers: int) -> tuple[Kind, ...]:
    """A schedule that opens with `first` and then alternates CSA and HCA, CSA first."""
    pair: tuple[Kind, Kind] = ("csa", "hca")
    return first + tuple(pair[i % 2] for i in range(layers - len(first)))


# Sizes as published with the two models. Flash opens with two sliding layers, Pro with two HCA layers.
V4_FLASH = AttentionConfig(
    schedule=alternating(("sliding", "sliding"), 43),
    hidden_width=4096,
    heads=64,
    d=512,
    rope_width=64,
    window=128,
    index_heads=64,
    index_d=128,
    topk=512,
)
V4_PRO = AttentionConfig(
    schedule=alternating(("hca", "hca"), 61),
    hidden_width=7168,
    heads=128,
    d=512,
    rope_width=64,
    window=128,
    index_heads=64,
    index_d=128,
    topk=1024,
)
