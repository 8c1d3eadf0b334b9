"""The check rows.bytes: it sees one last bit, and it is green without one only where the mode was refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.report.identity import declined
from harness.rows.defaults import ORACLE, SUBJECT
from harness.rows.play import play
from harness.rows.results import Result
from harness.rows.schedule import Advance, Fixture, Prefill, Values
from harness.rows.subject import load
from harness.rows.trace import Trace
from torch_impl import invariance
from torch_impl.compressor import Compressor
from torch_impl.refusals import RowInvarianceRefused

FIXTURE = Fixture(
    "two_rows",
    "Nothing.",
    ratio=4,
    span=2,
    step=(Prefill((9, 6)), Advance((3, 4))),
    values=Values("float32", hidden_width=64, row_invariant=True),
)


def played(fixture: Fixture = FIXTURE, **how: object) -> Trace:
    options = {"retain": "projected", "plan": "gathered"}
    return play(fixture, load(SUBJECT), load(ORACLE), options, lane="values", **how)


@pytest.fixture
def machine_that_keeps_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariance, "probe", lambda compressor: None)


@pytest.mark.usefixtures("machine_that_keeps_bytes")
def test_every_row_is_compared_after_every_step_blocks_and_payloads():
    assert played().compared["rows.bytes"] == 2 * 2 * 2


def test_it_is_not_asked_of_plain_arithmetic():
    assert not played(replace(FIXTURE, values=replace(FIXTURE.values, row_invariant=False))).compared[
        "rows.bytes"
    ]


@pytest.mark.usefixtures("machine_that_keeps_bytes")
@pytest.mark.parametrize("at", [0, 1])
def test_it_sees_one_last_bit_of_one_payload_where_bounds_see_nothing(at, monkeypatch):
    """A call of more than one row rounds one number of one row up."""
    project = Compressor.project

    def project_worse(self: Compressor, hidden: torch.Tensor, series: int | None = None) -> torch.Tensor:
        right = project(self, hidden, series)
        if len(hidden) > 9:  # the batch, never a row alone
            right[at, 0, 0] = right[at, 0, 0].nextafter(right[at, 0, 0] + 1)
        return right

    monkeypatch.setattr(Compressor, "project", project_worse)
    trace = played()
    assert trace.outcome("rows.bytes") == "red"
    assert trace.outcome("comp.values") == trace.outcome("tail.values") == "green"
    message = trace.message(trace.of("rows.bytes")[0])
    assert "row 0 · rows.bytes" in message
    assert "some bit" in message
    assert "numerics: every token is right" in message


def test_where_the_machine_cannot_keep_bytes_the_mode_is_refused_by_name_and_values_are_judged_all_the_same(
    monkeypatch,
):
    product = Compressor.product

    def rounds_by_place(self: Compressor, tile: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        right = product(self, tile, weight)
        right[1] = right[1].nextafter(right[1] + 1)
        return right

    monkeypatch.setattr(Compressor, "product", rounds_by_place)
    trace = played()
    assert "leave row_invariant off" in (trace.declined or "")
    assert trace.outcome("rows.bytes") == trace.outcome("comp.values") == "green"
    (said,) = declined([Result(FIXTURE, traces=[("values", trace)])])
    assert said.startswith("two_rows: row-invariant arithmetic was refused: a row of a product")


def test_a_refusal_of_another_kind_is_not_taken_for_the_machines(monkeypatch):
    def refuses(self: Compressor, *weights: object, row_invariant: bool = False, **more: object) -> None:
        raise RowInvarianceRefused("not today", "invariance-threads")

    monkeypatch.setattr(Compressor, "__init__", refuses)
    trace = played()
    assert trace.declined is None
    assert trace.outcome("rows.bytes") == "aborted"
    assert trace.outcome("refusal") == "red"
