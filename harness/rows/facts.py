"""Reach facts: what a play went through, so that a fixture proves what its name says.

A fixture declares facts; a declared fact that the play does not witness is an error. Facts are read off the
oracle's counts and the schedule, never off the implementation under judgement (two sizes of its storage apart).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FACTS = {
    "residues_all": "one call advances rows of every residue modulo the ratio",
    "completes_in_same_call": "two rows complete a block in one call",
    "one_call_two_destinations": "two rows with equal windows complete in one call, at different columns",
    "same_residue_unequal_block": "two rows of one call have equal residue and stand in different blocks",
    "several_blocks_in_one_call": "one row completes two blocks or more in one call",
    "short_row_beside_long": "rows of equal residue complete in one call, one of them its block 0",
    "equal_tokens_base_ascending": "a call meets equal tokens and unequal base, the smaller base first",
    "equal_tokens_base_descending": "a call meets equal tokens and unequal base, the larger base first",
    "row_idle_this_step": "a row takes no token while another does",
    "unequal_new_tokens": "rows of one call take different, non-zero numbers of tokens",
    "prompts_padded": "prompts of different lengths are prefilled in one padded call",
    "chunked_prefill": "a prompt is fed in pieces and compared with one shot",
    "uniform_throughout": "all rows always have equal tokens and base",
    "rollback_crosses_block_edge": "a rollback takes back a completed block",
    "rollback_lands_on_block_edge": "a rollback ends on a multiple of the ratio",
    "rollback_lands_below_block_edge": "a rollback ends one token before a multiple of the ratio",
    "rollback_lands_above_block_edge": "a rollback ends one token after a multiple of the ratio",
    "rollback_refused": "a rollback that cannot be answered is tried and refused",
    "depth_refused": "a depth that cannot be answered is asked for, and said to be refused",
    "accept_none": "a row keeps none of its drafts",
    "accept_some": "a row keeps some of its drafts",
    "accept_all": "a row keeps all of its drafts",
    "draft_replaced": "a token takes the position of one that was rolled back",
    "narrow_row_beside_wide": "rows of one batch retain runs of different width",
    "batch_shrinks_while_ragged": "rows leave a batch whose rows differ",
    "batch_shrinks_while_uniform": "rows leave a batch whose rows are equal",
    "batch_grows_while_uniform": "rows are added to a batch whose rows are equal",
    "batch_grows_while_ragged": "rows are added to a batch whose rows differ",
    "rows_reordered": "surviving rows change their order",
    "row_repeated": "a row is selected twice and both copies go on",
    "rows_assembled": "caches of single rows become one batch",
    "split_and_assembled": "rows leave as caches of their own and come together again",
    "rebatched_24": "the batch is taken apart and put together at least 24 times",
    "reshape_refused": "a reshape of differing rows is refused",
    "capacity_grows": "comp outgrows its columns",
    "window_wraps": "a row's tokens pass the end of its ring",
    "window_edge_127_to_130": "rows stand at 127, 128, 129 and 130 tokens together",
    "adopted_wide": "a row starts with a run wider than it would have kept itself",
    "restored": "a batch is replaced by its stored state and goes on",
    "trimmed": "a run loses its oldest tokens by trim",
    "trim_refused": "a trim that cannot be answered is refused",
    "reconciled": "unequal tails are brought to one base before a scalar batch",
    "reconcile_ignored": "reconcile meets unequal bases and per-row state, and changes nothing",
    "reconcile_refused": "a reconcile that cuts below what a row needs is refused",
    "assemble_refused": "rows that a scalar batch cannot hold are refused",
    "advance_refused": "new tokens that do not fit the batch are refused",
    "leads_differ": "aligned sequences have different leads",
    "full_windows_without_lead": "unequal sequences have full windows and no lead",
    "realigned": "sequences are aligned again while they carry a dead prefix",
    "batch_of_128": "128 rows advance in one call",
}

FACTS_OF_STORAGE = ("capacity_grows", "window_wraps")


@dataclass(frozen=True)
class RowBefore:
    """One row at the start of a call: counts, and how many tokens the call appends."""

    tokens: int
    base: int
    need: int
    n_new: int
    take: int


def witnessed_by_call(ratio: int, rows: Sequence[RowBefore]) -> Iterator[str]:
    """The facts that one advance call witnesses."""
    active = [row for row in rows if row.n_new]
    completing = [row for row in rows if row.take]
    if {row.tokens % ratio for row in active} == set(range(ratio)):
        yield "residues_all"
    if len(completing) > 1:
        yield "completes_in_same_call"
    if any(row.take > 1 for row in completing):
        yield "several_blocks_in_one_call"
    for a in completing:
        for b in completing:
            if (
                a.tokens - a.need == b.tokens - b.need
                and a.take == b.take
                and a.tokens // ratio != b.tokens // ratio
            ):
                yield "one_call_two_destinations"
            if a.tokens % ratio == b.tokens % ratio and a.tokens < ratio <= b.tokens:
                yield "short_row_beside_long"
    residues = {(row.tokens % ratio, row.tokens // ratio) for row in active}
    if len({residue for residue, _ in residues}) < len(residues):
        yield "same_residue_unequal_block"
    if len(rows) > 1 and len({row.tokens for row in rows}) == 1:
        for a, b in zip(rows, rows[1:], strict=False):
            if a.base != b.base:
                yield "equal_tokens_base_ascending" if a.base < b.base else "equal_tokens_base_descending"
    if len(active) < len(rows) and active:
        yield "row_idle_this_step"
    if len({row.n_new for row in active}) > 1:
        yield "unequal_new_tokens"
    if len(rows) == 128 and len(active) == 128:
        yield "batch_of_128"


def witnessed_by_rollback(ratio: int, before: int, after: int) -> Iterator[str]:
    """The facts that one row's rollback witnesses, from its tokens before and after."""
    if after // ratio < before // ratio:
        yield "rollback_crosses_block_edge"
    if after == before:
        return
    if after % ratio == 0:
        yield "rollback_lands_on_block_edge"
    if after % ratio == ratio - 1:
        yield "rollback_lands_below_block_edge"
    if after % ratio == 1:
        yield "rollback_lands_above_block_edge"
