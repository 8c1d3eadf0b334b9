"""A whole layer in float32 whose every product has one row's shape: a row in a batch has the bytes it has alone.

The layer's slots, masks and choices are those of any batch. What they hand to the arithmetic of one query follows from
its own row, so nothing is left that could round otherwise. As in `tests/production/test_invariance.py` the machine is
asked first, in a product of its own, whether bytes or the refusal are due.
"""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

from torch_impl.attention import under
from torch_impl.invariance import ROWS, same_bytes
from torch_impl.layer import LayerSlots, step
from torch_impl.model import Model, ModelConfig, random_weights
from torch_impl.mtp import greedy, prefill
from torch_impl.refusals import RowInvarianceRefused
from torch_impl.row_invariant import RowInvariantAttention
from torch_impl.schedule import Kind

KINDS: tuple[Kind, ...] = ("sliding", "csa", "hca")
CONFIG = ModelConfig(
    schedule=KINDS, vocab=5, hidden_width=96, intermediate=8, heads=4, d=32, rope_width=8, window=8, q_lora=24,
    o_groups=2, o_lora=8, index_heads=4, index_d=16, topk=2, csa_ratio=4, hca_ratio=8,
)  # fmt: skip
MARGIN = 8


def layer(kind: Kind) -> RowInvariantAttention:
    weights = random_weights(CONFIG, seed=3)
    own = under(weights, f"layers.{KINDS.index(kind)}.attn.")
    return RowInvariantAttention(CONFIG, kind, own, CONFIG.o_groups)


def machine_keeps_bytes() -> bool:
    """Equal rows of a product have equal bytes in all places. All true sums are 0: what is left is their rounding."""
    generator = torch.Generator().manual_seed(9)
    half = CONFIG.hidden_width // 2
    drawn = torch.randn(1 + 2 * CONFIG.d, half, generator=generator)
    twice = torch.cat([drawn, drawn], dim=1)
    twice[1:, half:] *= -1
    twice = twice[:, torch.randperm(2 * half, generator=generator)]
    row, weight = twice[0], twice[1:]
    found = list(F.linear(row.repeat(ROWS, 1), weight))
    for place in range(ROWS):
        tile = torch.randn(ROWS, 2 * half, generator=generator)
        tile[place] = row
        found.append(F.linear(tile, weight)[place])
    return all(same_bytes(one, found[0]) for one in found)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_a_ragged_batch_has_the_bytes_that_it_has_alone(kind: Kind):
    if kind != "sliding" and not machine_keeps_bytes():
        with pytest.raises(RowInvarianceRefused, match="leave row_invariant off"):
            layer(kind)
        return
    math, rng = layer(kind), random.Random(kind)
    generator = torch.Generator().manual_seed(1)
    batch = LayerSlots.open(math, 4, CONFIG.window, MARGIN)
    alone = [LayerSlots.open(math, 1, CONFIG.window, MARGIN) for _ in range(4)]
    compared = 0
    for turn in range(8):
        n_new = [7, 30, 12, 1] if not turn else [rng.randint(0, 5) for _ in range(3)] + [5]
        hidden = torch.randn(4, max(n_new), CONFIG.hidden_width, generator=generator)
        together = step(math, batch, hidden, n_new)
        back = [rng.randint(0, n) if turn else 0 for n in n_new]
        for row, n in enumerate(n_new):
            if n:
                found = step(math, alone[row], hidden[row : row + 1, :n])
                assert same_bytes(together[row, :n], found[0]), (turn, row)
                compared += n
            for (_, one), (_, own) in zip(batch.named(), alone[row].named(), strict=True):
                held = [
                    slot.comp(at) if hasattr(slot, "comp") else slot.run(at)
                    for slot, at in ((one, row), (own, 0))
                ]
                assert same_bytes(*held), (turn, row)
                own.rollback(0, back[row])
        for _, slot in batch.named():
            slot.rollback_rows(back)
    assert compared > 80


def test_a_whole_model_gives_a_row_the_logits_and_the_text_it_has_alone_to_the_bit():
    weights = random_weights(CONFIG, seed=5)
    if not machine_keeps_bytes():
        with pytest.raises(RowInvarianceRefused, match="leave row_invariant off"):
            Model(CONFIG, weights, row_invariant=True)
        return
    model = Model(CONFIG, weights, row_invariant=True)
    lengths = [5, 19, 11]
    prompts = torch.randint(CONFIG.vocab, (3, max(lengths)), generator=torch.Generator().manual_seed(2))
    cache, plain = model.cache(3), Model(CONFIG, weights)
    logits = model.forward(prompts, cache, lengths)
    pending = prefill(model, model.cache(3), prompts, lengths)
    text = greedy(model, cache, pending, 12)
    for row, n in enumerate(lengths):
        alone = model.cache(1)
        assert same_bytes(model.forward(prompts[row : row + 1, :n], alone)[0], logits[row, :n])
        assert torch.equal(greedy(model, alone, pending[row : row + 1], 12)[0], text[row])
    usual = plain.forward(prompts, plain.cache(3), lengths)
    assert all((usual[i, :n] - logits[i, :n]).abs().max() < 1e-4 for i, n in enumerate(lengths))
