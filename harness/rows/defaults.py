"""What is judged unless another is named, by dotted name: this package imports no implementation."""

from __future__ import annotations

SUBJECT = "harness.subjects.xs_rolling:subject"
ORACLE = "harness.subjects.numpy_reference:oracle"
RETAINS = ("hidden", "projected")
PLANS = ("grouped", "gathered")
