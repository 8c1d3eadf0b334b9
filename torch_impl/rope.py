"""Rotary position embedding on the last channels, interleaved pairs, with YaRN as DeepSeek-V4 uses it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Yarn:
    """YaRN's frequency ramp (Peng et al. 2023, without mscale): long wavelengths are stretched by `factor`."""

    factor: float = 16.0
    original_length: int = 65536
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class Rope:
    """Rotation of the last `width` channels; pair i is channels (2i, 2i+1) with angle position * f_i."""

    width: int
    theta: float = 160000.0
    yarn: Yarn | None = Yarn()

    def __post_init__(self) -> None:
        if self.width % 2 or self.width < 0 or self.theta <= 1:
            raise ValueError(
                f"rope has width {self.width} and theta {self.theta}; the width should be even, theta above 1"
            )
        if self.yarn is not None and self.width:
            low, high = self._ramp_ends(self.yarn)
            if low >= high:
                raise ValueError(
                    f"{self.yarn} at width {self.width} has a ramp from pair {low} to {high}; it should rise: "
                    "check beta_fast > beta_slow and original_length"
                )

    @cached_property
    def frequencies(self) -> Tensor:
        """f_i in radians per token, float64 [width / 2]."""
        pairs = torch.arange(self.width // 2, dtype=torch.float64)
        plain = self.theta ** (-2.0 * pairs / self.width)
        if self.yarn is None:
            return plain
        low, high = self._ramp_ends(self.yarn)
        ramp = ((pairs - low) / (high - low)).clamp(0, 1)
        return plain / self.yarn.factor * ramp + plain * (1 - ramp)

    def _ramp_ends(self, yarn: Yarn) -> tuple[int, int]:
        """The pairs between which frequencies go from kept to stretched."""

        def pair_turning(turns: float) -> float:
            """The real-valued pair index that turns `turns` times over YaRN's original length."""
            length = yarn.original_length / (turns * 2 * math.pi)
            return self.width * math.log(length) / (2 * math.log(self.theta))

        low = max(math.floor(pair_turning(yarn.beta_fast)), 0)
        high = min(math.ceil(pair_turning(yarn.beta_slow)), self.width - 1)
        return low, high

    def rotate(self, x: Tensor, position: Tensor) -> Tensor:
        """x [*P, ..., d] with its last `width` channels rotated by position [*P], int64.

        P are the leading axes: one position per token serves all its heads. A negative position turns back.
        Angles are formed in float64: a float32 product of a position of 10^6 is off by a twentieth of a turn.
        The rotation itself runs in float32 or wider.
        """
        if self.width == 0:
            return x
        wide = torch.promote_types(x.dtype, torch.float32)
        angle = position[..., None] * self.frequencies.to(x.device)  # [*P, width / 2]
        angle = angle.view(*position.shape, *[1] * (x.dim() - position.dim() - 1), self.width // 2)
        cos, sin = angle.cos().to(wide), angle.sin().to(wide)
        even, odd = x[..., -self.width :: 2], x[..., 1 - self.width :: 2]
        rotated = x.clone()
        rotated[..., -self.width :: 2] = even * cos - odd * sin
        rotated[..., 1 - self.width :: 2] = even * sin + odd * cos
        return rotated
