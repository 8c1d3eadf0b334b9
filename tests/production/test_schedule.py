"""The slots of the two published schedules, counted, and the sizes that follow from them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from torch_impl.schedule import V4_FLASH, V4_PRO


def test_flash_has_43_layers_of_which_2_slide_21_are_csa_and_20_hca():
    assert Counter(V4_FLASH.schedule) == {"sliding": 2, "csa": 21, "hca": 20}
    assert [V4_FLASH.ratio(kind) for kind in V4_FLASH.schedule] == [0, 0, *[4, 128] * 20, 4]


def test_pro_has_61_layers_of_which_none_slides_30_are_csa_and_31_hca():
    assert Counter(V4_PRO.schedule) == {"csa": 30, "hca": 31}


def test_a_flash_cache_has_43_slots_of_keys_then_41_compressors_then_21_indexers():
    slots = V4_FLASH.slots()
    assert [slot.kind for slot in slots] == ["kv"] * 43 + ["compressor"] * 41 + ["indexer"] * 21
    assert Counter((s.ratio, s.span, s.width) for s in slots if s.kind == "compressor") == {
        (4, 2, 512): 21,
        (128, 1, 512): 20,
    }
    assert {(s.ratio, s.span, s.width) for s in slots if s.kind == "indexer"} == {(4, 2, 128)}


def test_a_pro_cache_has_61_slots_of_keys_then_61_compressors_then_30_indexers():
    assert [slot.kind for slot in V4_PRO.slots()] == ["kv"] * 61 + ["compressor"] * 61 + ["indexer"] * 30


@pytest.mark.parametrize("config", [V4_FLASH, V4_PRO])
def test_compressors_belong_to_compressed_layers_and_indexers_to_csa_layers(config):
    owners = {
        kind: [config.schedule[s.layer] for s in config.slots() if s.kind == kind]
        for kind in ("kv", "compressor", "indexer")
    }
    assert owners["kv"] == list(config.schedule)
    assert owners["compressor"] == [kind for kind in config.schedule if kind != "sliding"]
    assert set(owners["indexer"]) == {"csa"}


@pytest.mark.parametrize(
    ("config", "sizes"),
    [(V4_FLASH, (4096, 64, 512, 64, 128, 64, 128, 512)), (V4_PRO, (7168, 128, 512, 64, 128, 64, 128, 1024))],
)
def test_sizes_are_the_published_ones(config, sizes):
    found = (
        config.hidden_width, config.heads, config.d, config.rope_width, config.window,
        config.index_heads, config.index_d, config.topk,
    )  # fmt: skip
    assert found == sizes


def test_only_sliding_layers_turn_plainly():
    ropes = {kind: V4_FLASH.rope(kind) for kind in ("sliding", "csa", "hca")}
    assert (ropes["sliding"].theta, ropes["sliding"].yarn) == (10000.0, None)
    assert ropes["csa"] == ropes["hca"]
    assert ropes["csa"].theta == 160000.0
    assert ropes["csa"].yarn is not None


@pytest.mark.parametrize(
    "wrong", [{"schedule": ()}, {"schedule": ("dense",)}, {"rope_width": 130}, {"rope_width": 514}]
)
def test_sizes_of_no_model_are_value_errors_that_say_what_should_be(wrong):
    with pytest.raises(ValueError, match="should"):
        replace(V4_FLASH, **wrong)
