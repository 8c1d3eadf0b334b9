"""A stored state goes on in another process as if it had never been stored, and a wrong file is refused by name."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import torch_impl
from harness.subjects.token_compressor import TokenCompressor
from torch_impl.compressor import Compressor
from torch_impl.geometry import Geometry
from torch_impl.refusals import RestoreRefused
from torch_impl.rope import Rope
from torch_impl.snapshot import restore, snapshot
from torch_impl.xs_rolling import XsRolling

HIDDEN, D = 8, 8
TOKENS = [0, 3, 17, 30]
RETAINS, PLANS = ("hidden", "projected"), ("grouped", "gathered")


def layer(dtype: torch.dtype, ratio: int = 4, span: int = 2, hidden: int = HIDDEN, d: int = D) -> Compressor:
    """The same weights in every process."""
    generator = torch.Generator().manual_seed(5)
    shapes = (span * d, hidden), (span * d, hidden), (ratio, span * d), (d,)
    wkv, wgate, bias, norm = (torch.randn(*shape, generator=generator) for shape in shapes)
    return Compressor(wkv.to(dtype), wgate.to(dtype), bias, norm, Rope(4))


def empty(dtype: torch.dtype, rows: int = 1, ratio: int = 4, span: int = 2, **settings) -> XsRolling:
    compressor = TokenCompressor(ratio, span) if dtype == torch.int64 else layer(dtype, ratio, span)
    return XsRolling(compressor, Geometry(ratio, span), rows, **settings)


def hidden_states(cache: XsRolling, rows: int, n: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, n, cache.compressor.hidden_width)
    if cache.hidden_dtype == torch.int64:
        return torch.randint(1 << 40, shape, generator=generator)
    return torch.randn(shape, generator=generator).to(cache.hidden_dtype)


def ragged(dtype: torch.dtype, **settings) -> XsRolling:
    """Rows of four lengths, one of them rolled back, over stale and poisoned memory."""
    cache = empty(dtype, len(TOKENS), **settings)
    cache.advance(hidden_states(cache, 4, 34, 1), [0, 3, 17, 34])
    cache.rollback(3, 4)
    cache.fill_dead(-2 if dtype == torch.int64 else float("nan"))
    return cache


def wide(dtype: torch.dtype, **settings) -> XsRolling:
    """A row that kept 44 tokens, where it would have kept 23 at most by itself, beside a row of 30."""
    donor = empty(dtype, **settings)
    xs = hidden_states(donor, 1, 48, 2)
    donor.advance(xs)
    kept = xs[0, 4:]
    payload = kept if donor.retain == "hidden" else donor.compressor.project(kept).flatten(1)
    adopted = donor.adopt(donor.comp(0)[None], payload[None], [48], [4])
    other = empty(dtype, **settings)
    other.advance(hidden_states(other, 1, 30, 3))
    return XsRolling.assemble([adopted, other])


MAKERS = {"ragged": ragged, "wide": wide}
CASES = {
    f"{name}-{retain}-{str(dtype)[6:]}": (make, dtype, retain)
    for name, make in MAKERS.items()
    for retain in RETAINS
    for dtype in (torch.int64, torch.float64, torch.float32, torch.bfloat16)
}


def go_on(cache: XsRolling) -> None:
    """Some steps, the same for everybody: uneven, with an idle row, back over a block edge, and on."""
    rows = cache.rows
    counts = [5, 0, 9, 2][:rows]
    cache.advance(hidden_states(cache, rows, 9, 11), counts)
    cache.rollback_rows([5, 0, 3, 1][:rows])
    cache.advance(hidden_states(cache, rows, 6, 12), [6, 1, 2, 6][:rows])


def contents(path: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    with safe_open(path, framework="pt") as file:
        return dict(file.metadata()), {name: file.get_tensor(name) for name in ("comp", "tail")}


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(
        a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)
    )


def continue_in_this_process(folder: Path) -> None:
    for case, (_, dtype, retain) in CASES.items():
        cache = restore(empty(dtype, retain=retain), folder / case)
        snapshot(cache, folder / f"{case}.again")
        go_on(cache)
        snapshot(cache, folder / f"{case}.later")


@pytest.fixture(scope="module")
def continued(tmp_path_factory) -> Path:
    """Every case stored here, restored and continued in one fresh process."""
    folder = tmp_path_factory.mktemp("states")
    for case, (make, dtype, retain) in CASES.items():
        snapshot(make(dtype, retain=retain), folder / case)
    places = [str(Path(torch_impl.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))}
    subprocess.run([sys.executable, __file__, str(folder)], env=environment, check=True, timeout=120)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_what_a_fresh_process_restores_is_what_was_stored_to_the_byte(continued, case):
    metadata, tensors = contents(continued / case)
    again, read = contents(continued / f"{case}.again")
    assert again == metadata
    assert all(same_bytes(tensors[name], read[name]) for name in tensors)


@pytest.mark.parametrize("case", [case for case in CASES if case.endswith(("int64", "float64"))])
def test_a_restored_batch_goes_on_as_its_twin_that_was_never_stored(continued, case, tmp_path):
    make, dtype, retain = CASES[case]
    twin = make(dtype, retain=retain)
    go_on(twin)
    snapshot(twin, tmp_path / "twin")
    expected, tensors = contents(tmp_path / "twin")
    metadata, read = contents(continued / f"{case}.later")
    assert metadata == expected
    for name, tensor in tensors.items():
        # float64: another process may block its products differently; a wrong token is off by about 1.
        torch.testing.assert_close(read[name], tensor, rtol=0, atol=0 if dtype == torch.int64 else 1e-12)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("retain", RETAINS)
@pytest.mark.parametrize("geometry", [(4, 2), (8, 1), (128, 1), (1, 1), (1, 2)])
def test_a_restored_batch_refuses_the_rollbacks_that_its_twin_refuses(retain, plan, geometry, tmp_path):
    ratio, span = geometry
    twin = empty(torch.int64, 4, ratio, span, retain=retain, plan=plan)
    longest = 3 * ratio + 40
    twin.advance(hidden_states(twin, 4, longest, 1), [0, ratio - 1, ratio + 1, longest])
    twin.rollback(3, 4)
    snapshot(twin, tmp_path / "rows")
    cache = restore(empty(torch.int64, 1, ratio, span, retain=retain, plan=plan), tmp_path / "rows")
    for row in range(4):
        for n in range(longest + 2):
            refusals = [c.rollback_refusal(row, n) for c in (cache, twin)]
            assert len({refusal and (refusal.kind, str(refusal)) for refusal in refusals}) == 1
    for each in (cache, twin):
        each.advance(hidden_states(each, 4, ratio + 2, 2), [ratio, 1, 0, ratio + 2])
    assert (cache.tokens, cache.base) == (twin.tokens, twin.base)
    assert same_bytes(cache.tail(), twin.tail())
    assert all(same_bytes(cache.comp(row), twin.comp(row)) for row in range(4))


def test_a_snapshot_holds_nothing_stale_and_no_poison(tmp_path):
    snapshot(ragged(torch.int64), tmp_path / "rows")
    _, tensors = contents(tmp_path / "rows")
    assert not (tensors["tail"] == -2).any()
    assert not (tensors["comp"] == -2).any()
    assert not tensors["comp"][1].any(), "row 1 has completed no block"


def test_restoring_leaves_the_cache_that_says_the_kind_alone(tmp_path):
    like = ragged(torch.int64)
    before = {name: tensor.clone() for name, tensor in like.storage().items()}
    counts = (list(like.tokens), list(like.base))
    snapshot(wide(torch.int64), tmp_path / "rows")
    restored = restore(like, tmp_path / "rows")
    go_on(restored)
    assert all(same_bytes(before[name], tensor) for name, tensor in like.storage().items())
    assert (like.tokens, like.base) == counts


def test_a_restored_row_stays_as_wide_as_it_was_until_it_takes_a_token(tmp_path):
    snapshot(wide(torch.int64), tmp_path / "rows")
    cache = restore(empty(torch.int64), tmp_path / "rows")
    assert (cache.tokens, cache.base) == ([48, 30], [4, 8])
    assert cache.rollback_refusal(0, 40) is None
    cache.advance(hidden_states(cache, 2, 1, 1), [0, 1])
    assert cache.base == [4, 8]
    cache.advance(hidden_states(cache, 2, 1, 1), [1, 0])
    assert cache.base == [28, 8]
    assert cache.width == 23


def refusal(path: Path, like: XsRolling | None = None) -> str:
    with pytest.raises(RestoreRefused) as refused:
        restore(like or empty(torch.int64), path)
    return refused.value.kind


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999])
def test_a_truncated_file_is_unreadable(share, tmp_path):
    snapshot(ragged(torch.int64), tmp_path / "rows")
    whole = (tmp_path / "rows").read_bytes()
    (tmp_path / "rows").write_bytes(whole[: int(len(whole) * share)])
    assert refusal(tmp_path / "rows") == "restore-unreadable"


def test_what_is_no_safetensors_file_is_unreadable(tmp_path):
    torch.save({"tokens": [3]}, tmp_path / "pickle")
    (tmp_path / "text").write_text(json.dumps({"tokens": [3], "base": [0]}))
    (tmp_path / "folder").mkdir()
    for name in ("pickle", "text", "folder", "nothing"):
        assert refusal(tmp_path / name) == "restore-unreadable", name


def test_no_flipped_byte_of_the_header_ends_in_anything_but_a_refusal_or_a_state_that_keeps_its_rules(
    tmp_path,
):
    snapshot(ragged(torch.int64), tmp_path / "rows")
    whole = (tmp_path / "rows").read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    choose = random.Random(7)
    refused = 0
    for _ in range(400):
        flipped = bytearray(whole)
        flipped[choose.randrange(header)] = choose.choice(b'0123456789[],"{}-e. \xff')
        (tmp_path / "rows").write_bytes(flipped)
        try:
            restore(empty(torch.int64), tmp_path / "rows").check_invariants()
        except RestoreRefused:
            refused += 1
    assert refused > 300


def rewritten(path: Path, drop: str = "", metadata: dict[str, str] | None = None, **tensors) -> Path:
    """A stored batch of tokens [0, 3, 17, 30], base [0, 0, 0, 12], with changes."""
    snapshot(ragged(torch.int64), path)
    stored, read = contents(path)
    assert (stored["tokens"], stored["base"]) == ("[0, 3, 17, 30]", "[0, 0, 0, 12]")
    read |= tensors
    read.pop(drop, None)
    stored |= metadata or {}
    stored.pop(drop, None)
    save_file(read, path, metadata=stored)
    return path


@pytest.mark.parametrize(
    "counts, kind",
    [
        ({"base": "[0, 0, 0, 31]"}, "restore-base-above-tokens"),
        ({"base": "[0, 4, 0, 12]"}, "restore-base-above-tokens"),
        ({"base": "[0, 0, -4, 12]"}, "restore-base-above-tokens"),
        ({"tokens": "[-1, 3, 17, 30]"}, "restore-base-above-tokens"),
        ({"base": "[0, 0, 0, 13]"}, "restore-not-a-multiple"),
        ({"base": "[0, 0, 2, 12]"}, "restore-not-a-multiple"),
        ({"base": "[0, 0, 0, 28]"}, "restore-above-need"),
        ({"base": "[0, 0, 16, 12]"}, "restore-above-need"),
        ({"base": "[0, 0, 0, 16]"}, "restore-shape"),
        ({"tokens": "[0, 3, 17, 36]"}, "restore-shape"),
        ({"tokens": "[0, 3, 17, 1000000000000000000000]"}, "restore-shape"),
        ({"tokens": "[0, 3, 17]"}, "restore-rows"),
        ({"tokens": "[]", "base": "[]"}, "restore-rows"),
        ({"tokens": "[0, 3, 17]", "base": "[0, 0, 0]"}, "restore-shape"),
        ({"tokens": "[0, 3, 17, 30.0]"}, "restore-incomplete"),
        ({"tokens": "[0, 3, 17, 1e999]"}, "restore-incomplete"),
        ({"tokens": "[0, 3, 17, true]"}, "restore-incomplete"),
        ({"tokens": "[0, 3, 17, null]"}, "restore-incomplete"),
        ({"tokens": '"0123"'}, "restore-incomplete"),
        ({"tokens": '{"0": 3}'}, "restore-incomplete"),
        ({"tokens": "30"}, "restore-incomplete"),
        ({"tokens": "[0, 3, 17, 30"}, "restore-incomplete"),
        ({"tokens": "[" * 100_000}, "restore-incomplete"),
        ({"format": "rowproof-xs-rolling-0"}, "restore-format"),
    ],
)
def test_edited_counts_are_refused_by_the_rule_that_they_break(counts, kind, tmp_path):
    assert refusal(rewritten(tmp_path / "rows", metadata=counts)) == kind


@pytest.mark.parametrize("part", ["comp", "tail", "tokens", "base"])
def test_a_missing_part_makes_a_file_incomplete(part, tmp_path):
    assert refusal(rewritten(tmp_path / "rows", drop=part)) == "restore-incomplete"


@pytest.mark.parametrize(
    "part", ["format", "ratio", "span", "margin", "retain", "payload_dtype", "block_dtype"]
)
def test_a_part_of_the_kind_that_the_file_does_not_tell_is_refused(part, tmp_path):
    assert refusal(rewritten(tmp_path / "rows", drop=part)) == f"restore-{part.replace('_', '-')}"


def test_a_file_without_metadata_is_refused(tmp_path):
    snapshot(ragged(torch.int64), tmp_path / "rows")
    save_file(contents(tmp_path / "rows")[1], tmp_path / "rows")
    assert refusal(tmp_path / "rows") == "restore-format"


@pytest.mark.parametrize("name", ["comp", "tail"])
def test_tensors_of_another_shape_or_dtype_are_refused(name, tmp_path):
    snapshot(ragged(torch.int64), tmp_path / "right")
    right = contents(tmp_path / "right")[1][name]
    wrong = [right[:3], right[:, 1:], right[..., :1].repeat(1, 1, 4), right[0], right.int(), right.double()]
    for tensor in wrong:
        assert refusal(rewritten(tmp_path / "rows", **{name: tensor.contiguous()})) == "restore-shape"


@pytest.mark.parametrize(
    "like, kind",
    [
        (lambda: XsRolling(layer(torch.float32, hidden=12), Geometry(4, 2), 1), "restore-hidden-width"),
        (lambda: XsRolling(layer(torch.float32, d=16), Geometry(4, 2), 1), "restore-shape"),
        (lambda: XsRolling(layer(torch.float32), Geometry(4, 2, 8), 1), "restore-margin"),
        (lambda: XsRolling(layer(torch.float32, span=1), Geometry(4, 1), 1), "restore-span"),
        (lambda: XsRolling(layer(torch.float32, ratio=8), Geometry(8, 2), 1), "restore-ratio"),
        (lambda: empty(torch.float32, retain="hidden"), "restore-retain"),
        (lambda: empty(torch.float64), "restore-payload-dtype"),
        (lambda: empty(torch.bfloat16), "restore-block-dtype"),
        (lambda: empty(torch.float32, per_row_state=False), "restore-ragged"),
    ],
)
def test_a_file_of_another_kind_of_layer_is_refused_by_what_differs(like, kind, tmp_path):
    snapshot(ragged(torch.float32), tmp_path / "rows")
    assert refusal(tmp_path / "rows", like()) == kind


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("flag", [True, False])
def test_plan_and_flag_belong_to_the_reader_and_not_to_the_file(plan, flag, tmp_path):
    cache = empty(torch.int64, 2, plan="grouped")
    cache.advance(hidden_states(cache, 2, 21, 1))
    snapshot(cache, tmp_path / "rows")
    restored = restore(empty(torch.int64, plan=plan, per_row_state=flag), tmp_path / "rows")
    assert (restored.plan, restored.per_row_state) == (plan, flag)


if __name__ == "__main__":
    continue_in_this_process(Path(sys.argv[1]))
