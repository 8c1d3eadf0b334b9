"""A fresh interpreter for one judgement, run as a script by exec: nothing is inherited from a server.

For what a fork cannot judge rightly (third-party modules that start threads, a server that imported
the project), and as an audit of the faster ways. Bytecode lives in a folder of this run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any


def main(note: str) -> None:
    """Do the job that the note describes, and answer through the inherited pipe."""
    with open(note, encoding="utf-8") as handle:
        facts = json.load(handle)
    stem = _stem()
    engine = stem.load_engine()
    context = stem.make_context(engine, facts["boot"])
    engine["memory"].remember_tests(context.sources, [])
    # Only third-party modules write bytecode, and only into this run's folder; it spares the next one seconds.
    sys.dont_write_bytecode = False
    os.set_inheritable(facts["fd"], False)
    line = engine["child"].Line(facts["fd"], facts["job"]["nonce"])
    engine["child"].answer(context, facts["job"], line, facts["basetemp"])


def _stem() -> Any:
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stem.py")
    spec = importlib.util.spec_from_file_location("_rowproof_stem", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    status = 1
    try:
        main(sys.argv[1])
        status = 0
    finally:
        os._exit(status)
