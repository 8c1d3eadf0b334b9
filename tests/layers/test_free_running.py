"""A batch that writes its own text: each row's is what the sequence writes alone, and what the reference writes."""

from __future__ import annotations

import torch

from harness.subjects.v4_model import VOCABULARY, models
from torch_impl.mtp import DraftChain, Speculative, greedy, prefill

LENGTHS, STEPS = (3, 31, 17, 8), 20


def prompts() -> list[list[int]]:
    drawn = torch.randint(VOCABULARY, (sum(LENGTHS),), generator=torch.Generator().manual_seed(4))
    return [own.tolist() for own in drawn.split(LENGTHS)]


def opened(model, texts: list[list[int]]) -> tuple:
    """A cache that has consumed the texts, and the tokens that follow."""
    cache = model.cache(len(texts))
    padded = torch.tensor([own + [-1] * (max(map(len, texts)) - len(own)) for own in texts])
    return cache, prefill(model, cache, padded, [len(own) for own in texts])


def test_greedy_text_is_the_same_in_a_batch_alone_and_in_the_reference():
    model, oracle = models(4, 8)
    texts = prompts()
    cache, pending = opened(model, texts)
    together = torch.cat([pending[:, None], greedy(model, cache, pending, STEPS - 1)], dim=1).tolist()
    for own, text in zip(texts, together, strict=True):
        alone, first = opened(model, [own])
        assert text == [int(first), *greedy(model, alone, first, STEPS - 1)[0].tolist()]
        assert text == oracle.greedy(own, STEPS)
    assert len({tuple(text) for text in together}) == len(texts)
    assert min(len({*text}) for text in together) > 2


def test_speculative_text_is_the_greedy_one_though_rows_accept_unequally():
    model, _ = models(4, 8)
    texts = prompts()
    cache, pending = opened(model, texts)
    plain = torch.cat([pending[:, None], greedy(model, cache, pending, STEPS - 1)], dim=1).tolist()
    cache, pending = opened(model, texts)
    # A draft that has forgotten all but the end of the text is right at times, in each row at others.
    draft = DraftChain(model, opened(model, [own[-2:] for own in texts])[0])
    decoding, text = Speculative(model, cache, draft, pending), [[int(token)] for token in pending]
    accepted = []
    while min(map(len, text)) < STEPS:
        verified = decoding.step(3)
        accepted.append(verified.accepted)
        assert verified.per_row
        for own, new in zip(text, verified.tokens, strict=True):
            own += new
    assert [own[:STEPS] for own in text] == plain
    assert any(len(set(each)) > 1 for each in accepted), accepted
