"""The device that a command's --device names, or the sentence that refuses it."""

from __future__ import annotations

import torch


def refusal(device: str) -> str | None:
    """Why production cannot run there, in one sentence; None if it can."""
    try:
        kind = torch.device(device).type
        if kind in ("cpu", "cuda"):
            torch.empty(1, device=device)
            return None
        reason = f"a {kind} device is none of those"
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
    return f"--device is {device}; it should be cpu, or cuda where torch finds a GPU: {reason}; leave it out for cpu"
