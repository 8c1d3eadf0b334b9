"""The measurements of `harness.bench`, each a row: what, the ratio with its spread, the target, whether it is met."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from harness.benchmark import huggingface, state
from harness.benchmark.clock import Ratio, exponent, interleaved, milliseconds
from harness.benchmark.state import Batch, Layer, cycle, new_tokens, spread_tokens
from harness.subjects.writes import CountWrites, address
from torch_impl.refusals import AdvanceRefused, RowInvarianceRefused
from torch_impl.step import Plan
from torch_impl.storage import Retain

RETAINS: tuple[Retain, ...] = ("projected", "hidden")
PLANS: tuple[Plan, ...] = ("gathered", "grouped")


@dataclass(frozen=True)
class Row:
    """One line of the report. met is None where the number is reported and nothing is promised."""

    target: str
    what: str
    ratio: Ratio | None
    limit: str
    met: bool | None
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Effort:
    """How long to measure: pairs per ratio, and steps per pair where a cycle is long."""

    repeats: int = 15
    pairs: int = 40
    steps: int = 16
    rows: int = 128
    spreads: tuple[int, ...] = (0, 4, 64, 4096)
    contexts: tuple[int, ...] = (512, 2048, 8192, 32768, 65536)
    sizes: tuple[int, ...] = (1, 8, 32, 64, 128, 256)
    columns: tuple[int, ...] = (1, 4, 8)
    layers: tuple[Layer, ...] = field(
        default_factory=lambda: (
            Layer("csa", torch.float32),
            Layer("hca", torch.float32),
            Layer("csa", torch.bfloat16),
            Layer("hca", torch.bfloat16),
        )
    )


def step_against_projection(effort: Effort, layer: Layer) -> Iterator[Row]:
    """B1: a ragged step at random residues, over its projection GEMM alone; every payload and plan."""
    limit = 1.20 if layer.dtype == torch.bfloat16 else 1.12 if layer.name == "csa" else 1.15
    compressor, xs = layer.compressor(), new_tokens(layer, effort.rows)
    batch = Batch(layer, spread_tokens(effort.rows, 2048, 4096))
    variants = [(retain, plan) for retain in RETAINS for plan in PLANS]
    cases = {
        f"{retain}, {plan}": cycle(
            replace(batch, retain=retain, plan=plan).open(compressor), xs, effort.steps
        )
        for retain, plan in variants
    }
    cases["gemm"] = state.repeated(state.projection(layer, compressor, effort.rows), effort.steps)
    seconds = interleaved(cases, effort.repeats, layer.device)
    for retain, plan in variants:
        name = f"{retain}, {plan}"
        ratio = Ratio.of(seconds[name], seconds["gemm"])
        promised = (retain, plan) == ("projected", "gathered")
        step = milliseconds(seconds[name])["median"] / effort.steps
        yield Row(
            "B1",
            f"{layer.short}, {name}: step / projection GEMM, B={effort.rows}",
            ratio,
            f"<= {limit}" if promised else "reported",
            ratio.median <= limit if promised else None,
            f"{step:.2f} ms a step",
        )


def ragged_against_uniform(effort: Effort, layer: Layer) -> Iterator[Row]:
    """B2: rows apart by `spread` against equal rows, over one full cycle of the ratio: equal completions."""
    compressor, xs = layer.compressor(), new_tokens(layer, effort.rows)
    steps = layer.geometry.ratio
    uniform = Batch(layer, spread_tokens(effort.rows, 4096, 0))
    for spread in effort.spreads:
        ragged = Batch(layer, spread_tokens(effort.rows, 4096, spread), always_ragged=spread == 0)
        cases = {
            "ragged": cycle(ragged.open(compressor), xs, steps),
            "uniform": cycle(uniform.open(compressor), xs, steps),
        }
        seconds = interleaved(cases, max(effort.repeats // (3 if steps > 16 else 1), 3), layer.device)
        ratio = Ratio.of(seconds["ragged"], seconds["uniform"])
        yield Row(
            "B2",
            f"{layer.short}: ragged / uniform, spread {spread}, one cycle of {steps} steps",
            ratio,
            "<= 1.10",
            ratio.median <= 1.10,
        )
    yield from _variants_over_a_cycle(effort, replace(uniform, tokens=ragged.tokens), uniform)
    single = cycle(uniform.open(compressor), xs, 1)
    times = [interleaved({"step": single}, 1, layer.device)["step"][0] for _ in range(steps)]
    yield Row(
        "B2",
        f"{layer.short}: the step in which all equal rows complete / a median step",
        None,
        "reported",
        None,
        f"{max(times) / statistics.median(times):.1f} times, {max(times) * 1e3:.1f} ms",
    )


def _variants_over_a_cycle(effort: Effort, ragged: Batch, uniform: Batch) -> Iterator[Row]:
    """B2: every payload and plan side by side, each over equal rows of its own payload."""
    layer, steps = ragged.layer, ragged.layer.geometry.ratio
    compressor, xs = layer.compressor(), new_tokens(layer, effort.rows)
    cases = {}
    for retain in RETAINS:
        cases[f"{retain}, uniform"] = cycle(replace(uniform, retain=retain).open(compressor), xs, steps)
        for plan in PLANS:
            batch = replace(ragged, retain=retain, plan=plan)
            cases[f"{retain}, {plan}"] = cycle(batch.open(compressor), xs, steps)
    seconds = interleaved(cases, max(effort.repeats // (5 if steps > 16 else 1), 3), layer.device)
    for retain in RETAINS:
        for plan in PLANS:
            name = f"{retain}, {plan}"
            ratio = Ratio.of(seconds[name], seconds[f"{retain}, uniform"])
            step = milliseconds(seconds[name])["median"] / steps
            what = f"{layer.short}, {name}: ragged / uniform, spread {effort.spreads[-1]}, one cycle"
            yield Row("B2", what, ratio, "reported", None, f"{step:.2f} ms a step")


def flags(effort: Effort, layer: Layer, rows: int) -> Row:
    """B3: per-row state on over off, equal rows: the claim of no regression."""
    compressor, xs = layer.compressor(), new_tokens(layer, rows)
    batch = Batch(layer, spread_tokens(rows, 2048, 0))
    steps = effort.steps if rows > 1 else 16 * effort.steps
    cases = {
        "on": cycle(batch.open(compressor), xs, steps),
        "off": cycle(replace(batch, per_row_state=False).open(compressor), xs, steps),
    }
    seconds = interleaved(cases, max(effort.pairs, 30), layer.device)
    ratio = Ratio.of(seconds["on"], seconds["off"])
    held = ratio.low <= 1.0 <= ratio.high and ratio.low >= 0.95 and ratio.high <= 1.05
    return Row(
        "B3",
        f"{layer.short}: flag on / flag off, uniform, B={rows}",
        ratio,
        "interval holds 1.00, within 0.95..1.05",
        held,
        f"{ratio.pairs} pairs of {steps} steps",
    )


def refusal(effort: Effort) -> str:
    """What per-row state off says to rows that differ, asked of it here: kind and sentence."""
    layer = replace(effort.layers[0], hidden=64, head=64)
    cache = Batch(layer, (64, 64), per_row_state=False).open(layer.compressor())
    try:
        cache.advance(new_tokens(layer, 2), [1, 0])
    except AdvanceRefused as refused:
        return f"{refused.kind}: {refused}"
    raise AssertionError("per-row state off took rows that differ; it should have refused them")


def loop_against_batch(effort: Effort, layer: Layer) -> Row:
    """B4: one call per row over one call for all."""
    compressor, xs = layer.compressor(), new_tokens(layer, effort.rows)
    batch = Batch(layer, spread_tokens(effort.rows, 2048, 4096))
    cases = {
        "loop": state.loop(state.rows_alone(batch, compressor), xs, 4),
        "ours": cycle(batch.open(compressor), xs, 4),
    }
    seconds = interleaved(cases, max(effort.repeats // 3, 3), layer.device)
    ratio, limit = Ratio.of(seconds["loop"], seconds["ours"]), 5 if layer.name == "csa" else 3
    return Row(
        "B4",
        f"{layer.short}: per-row loop / ours, B={effort.rows}",
        ratio,
        f">= {limit}",
        ratio.median >= limit,
    )


def against_hugging_face(effort: Effort, layer: Layer) -> Row:
    """B8: the public modules over ours, equal rows, one full cycle of decode steps."""
    what = f"{layer.short}: Hugging Face deepseek_v4 / ours, uniform decode, B={effort.rows}"
    if not huggingface.available():
        return Row("B8", what, None, "reported", None, "not measured: pip install transformers")
    compressor, xs, steps = layer.compressor(), new_tokens(layer, effort.rows), layer.geometry.ratio
    batch = Batch(layer, spread_tokens(effort.rows, 2048, 0))
    cases = {
        "theirs": huggingface.decode(batch, steps),
        "ours": cycle(batch.open(compressor), xs, steps),
    }
    seconds = interleaved(cases, max(effort.repeats // 3, 3), layer.device)
    ratio = Ratio.of(seconds["theirs"], seconds["ours"])
    return Row("B8", what, ratio, "> 1", ratio.median > 1, f"cycles of {steps} steps")


def pool_calls(effort: Effort, layer: Layer) -> Iterator[Row]:
    """B6: pool calls of one step and elements of comp written, counted from outside."""
    xs = new_tokens(layer, effort.rows)
    ratio = layer.geometry.ratio
    tokens = spread_tokens(effort.rows, 2048, 4096)
    tokens = tuple(t - t % ratio + ratio - 1 if row % 4 == 0 else t for row, t in enumerate(tokens))
    completing = [t for t in tokens if (t + 1) % ratio == 0]
    for plan, bound in (
        ("gathered", min(len(completing), 1)),
        ("grouped", len({t % ratio for t in completing})),
    ):
        compressor = layer.compressor()
        cache = Batch(layer, tokens, plan=plan).open(compressor)  # type: ignore[arg-type]
        calls, pool = [0], compressor.pool

        def counted(
            windows: torch.Tensor, block: torch.Tensor, calls: list[int] = calls, pool: Any = pool
        ) -> Any:
            calls[0] += 1
            return pool(windows, block)

        compressor.pool = counted  # type: ignore[method-assign]
        with CountWrites() as writes:
            cache.advance(xs)
        written = writes.elements[address(cache.storage()["comp"])]
        right = layer.head * len(completing)
        yield Row(
            "B6",
            f"{layer.short}, {plan}: pool calls of a step, elements of comp written, B={effort.rows}",
            None,
            f"<= {bound} calls, exactly {right} elements",
            calls[0] <= bound and written == right,
            f"{calls[0]} calls, {written} elements",
        )


def contexts(effort: Effort, layer: Layer) -> Iterator[Row]:
    """B5 and the curve behind it: the step's time does not depend on how much was consumed."""
    compressor, xs = layer.compressor(), new_tokens(layer, 8)
    cases = {
        str(tokens): cycle(Batch(layer, spread_tokens(8, tokens, 4)).open(compressor), xs, 2 * effort.steps)
        for tokens in effort.contexts
    }
    seconds = interleaved(cases, effort.repeats, layer.device)
    first, last = str(effort.contexts[0]), str(effort.contexts[-1])
    ratio = Ratio.of(seconds[last], seconds[first])
    yield Row(
        "B5",
        f"{layer.short}: step at {last} tokens / at {first}, B=8",
        ratio,
        "<= 1.05",
        ratio.median <= 1.05,
    )
    slope = exponent(effort.contexts, [statistics.median(seconds[str(n)]) for n in effort.contexts])
    yield Row(
        "curve",
        f"{layer.short}: exponent over the context",
        None,
        "0.0 +- 0.05",
        abs(slope) <= 0.05,
        f"{slope:+.3f}",
    )


def batch_sizes(effort: Effort, layer: Layer) -> Row:
    """The exponent over B: at most linear."""
    compressor = layer.compressor()
    cases = {}
    for rows in effort.sizes:
        batch = Batch(layer, spread_tokens(rows, 2048, 4096))
        cases[str(rows)] = cycle(batch.open(compressor), new_tokens(layer, rows), 4)
    seconds = interleaved(cases, max(effort.repeats // 3, 3), layer.device)
    medians = [statistics.median(seconds[str(rows)]) for rows in effort.sizes]
    slope = exponent(effort.sizes, medians)
    shown = ", ".join(f"{rows}: {t / 4 * 1e3:.2f} ms" for rows, t in zip(effort.sizes, medians, strict=True))
    return Row(
        "curve",
        f"{layer.short}: exponent over B {effort.sizes[0]}..{effort.sizes[-1]}",
        None,
        "<= 1.05",
        slope <= 1.05,
        f"{slope:+.3f}; {shown}",
    )


def columns(effort: Effort, layer: Layer) -> Row:
    """A step of T tokens per row, beside its GEMM of B * T rows."""
    compressor = layer.compressor()
    parts = []
    for count in effort.columns:
        batch = Batch(layer, spread_tokens(32, 2048, 4096))
        cases = {
            "step": cycle(batch.open(compressor), new_tokens(layer, 32, count), 4),
            "gemm": state.repeated(state.projection(layer, compressor, 32, count), 4),
        }
        seconds = interleaved(cases, max(effort.repeats // 3, 3), layer.device)
        parts.append(f"T={count}: {Ratio.of(seconds['step'], seconds['gemm']).median:.2f}")
    return Row(
        "curve",
        f"{layer.short}: step / projection GEMM over T, B=32",
        None,
        "reported",
        None,
        ", ".join(parts),
    )


def row_invariance(effort: Effort, layer: Layer) -> Iterator[Row]:
    """What it costs that a row keeps its bytes in any batch: a step with row-invariant arithmetic / without."""
    plain = layer.compressor()
    try:
        invariant = layer.compressor(row_invariant=True)
    except RowInvarianceRefused as refused:
        yield Row("mode", f"{layer.short}: row-invariant / plain step", None, "reported", None, str(refused))
        return
    for rows in (1, effort.rows):
        batch, xs = Batch(layer, spread_tokens(rows, 2048, 4096)), new_tokens(layer, rows)
        cases = {
            name: cycle(batch.open(compressor), xs, effort.steps)
            for name, compressor in (("invariant", invariant), ("plain", plain))
        }
        seconds = interleaved(cases, effort.repeats, layer.device)
        step = milliseconds(seconds["invariant"])["median"] / effort.steps
        yield Row(
            "mode",
            f"{layer.short}: row-invariant / plain step, B={rows}",
            Ratio.of(seconds["invariant"], seconds["plain"]),
            "reported",
            None,
            f"{step:.2f} ms a step",
        )


def storage(effort: Effort, layer: Layer) -> Iterator[Row]:
    """B7 and the peak of a step: what is stored, and what a step needs beside it."""
    compressor, xs = layer.compressor(), new_tokens(layer, effort.rows)
    cache = Batch(layer, spread_tokens(effort.rows, 2048, 4096)).open(compressor)
    for _ in range(2 * layer.geometry.ratio if layer.name == "csa" else 8):
        cache.advance(xs)
    kept = cache.storage()
    slots = kept["ring"].shape[1] / layer.geometry.width_max
    live = max(cache.live_blocks(row) for row in range(cache.rows))
    yield Row(
        "B7",
        f"{layer.short}: ring slots / (span * ratio + margin - 1)",
        None,
        "<= 1.10",
        slots <= 1.10,
        f"{slots:.3f}",
    )
    capacity = kept["comp"].shape[1]
    yield Row(
        "B7",
        f"{layer.short}: comp capacity",
        None,
        "<= 1.5 x live + 64",
        capacity <= 1.5 * live + 64,
        f"{capacity} columns for {live} live",
    )
    held = sum(t.numel() * t.element_size() for t in kept.values())
    outside = xs.numel() * xs.element_size() + cache.rows * layer.head * kept["comp"].element_size()
    peak = state.peak_step_bytes(cache, xs)
    total = (held + outside + peak) / (held + outside)
    yield Row(
        "memory",
        f"{layer.short}: peak of a step / (state + inputs + outputs), B={effort.rows}",
        None,
        "<= 1.5",
        total <= 1.5,
        f"{total:.3f}; {peak / 2**20:.1f} MiB beside {held / 2**20:.0f} MiB of state",
    )
