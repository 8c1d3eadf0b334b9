"""Timing in turn: every repeat runs all cases once, so that a machine that slows down slows all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

Case = Callable[[], None]


def interleaved(cases: Mapping[str, Case], repeats: int, device: str = "cpu") -> dict[str, list[float]]:
    """Seconds per case and repeat, after one warm-up of each. CPU time; on CUDA the device's own events.

    The order rotates from repeat to repeat, so that no case always runs behind the same neighbour.
    """
    measure = _cpu_seconds if torch.device(device).type == "cpu" else _cuda_seconds
    names = list(cases)
    for name in names:
        measure(cases[name])
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        turn = repeat % len(names)
        for name in names[turn:] + names[:turn]:
            seconds[name].append(measure(cases[name]))
    return seconds


def _cpu_seconds(case: Case) -> float:
    start = time.process_time()
    case()
    return time.process_time() - start


def _cuda_seconds(case: Case) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    case()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


@dataclass(frozen=True)
class Ratio:
    """How many times as long the first case takes as the second: the median of pairs, with its spread.

    low, high: a 95 % interval of the median, by bootstrap over the pairs.
    """

    median: float
    low: float
    high: float
    pairs: int

    @staticmethod
    def of(first: Sequence[float], second: Sequence[float]) -> Ratio:
        """From two series of one interleaved measurement."""
        pairs = np.array(first) / np.array(second)
        rng = np.random.default_rng(0)
        medians = np.median(rng.choice(pairs, (2000, len(pairs))), axis=1)
        low, high = np.percentile(medians, [2.5, 97.5])
        return Ratio(float(np.median(pairs)), float(low), float(high), len(pairs))


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of a series, in ms."""
    if len(seconds) < 2:
        return {"median": seconds[0] * 1e3, "low": seconds[0] * 1e3, "high": seconds[0] * 1e3}
    low, middle, high = (q * 1e3 for q in statistics.quantiles(seconds, n=4))
    return {"median": middle, "low": low, "high": high}


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of log(seconds) over log(size), least squares: 1 is linear growth, 0 none."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
