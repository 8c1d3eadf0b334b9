"""reports/README.md describes the files that a run writes, and their parts, as they are."""

import re

from documents import ROOT

from harness.mutation import evidence, journal, matrix, shards
from harness.mutation.sweep import run as sweeps

TEXT = (ROOT / "reports" / "README.md").read_text(encoding="utf-8")


def test_it_lists_every_file_that_a_run_writes():
    listed = re.findall(r"`([\w.-]+)`", " ".join(re.findall(r"^\| (`.+?`) \|", TEXT, re.MULTILINE)))
    written = [
        evidence.EVIDENCE,
        evidence.PARTIAL,
        shards.Shard(0, 3).file.replace("0", "K").replace("3", "N"),
        evidence.RUN,
        evidence.MARKDOWN,
        journal.NAME,
        matrix.NAME,
        matrix.MARKDOWN,
        sweeps.NAME,
    ]
    others = ("bench", "identity.", "lens.")
    assert [name for name in listed if not name.startswith(others)] == written


def test_the_parts_it_names_are_parts_of_the_statement():
    named = set(re.findall(r"`(subject|seal|predicate(?:\.\w+)?)`", TEXT))
    body = evidence.statement({"file": "0"}, {})
    assert {name.split(".")[0] for name in named} == set(body) - {"_type", "predicateType"}
