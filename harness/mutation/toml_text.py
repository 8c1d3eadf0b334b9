"""Text as TOML writes it: code in literal strings where that is possible."""

from __future__ import annotations

import json


def quoted(value: str) -> str:
    """A basic string; TOML's escape as JSON's do."""
    return json.dumps(value, ensure_ascii=False)


def toml_string(value: str) -> str:
    """A literal string of any number of lines, or a basic one where a literal cannot hold it."""
    # A newline right after the opening quotes is dropped by TOML, so a leading one is doubled.
    if "'''" in value or "\r" in value or value.endswith("'"):
        return quoted(value)
    return f"'''\n{value}'''" if value.startswith("\n") else f"'''{value}'''"
