"""The file edge: TOML tables become frozen dataclasses, or a list of sentences.

pydantic is used here and nowhere else in the engine; the dataclasses themselves stay plain.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from .errors import did_you_mean

T = TypeVar("T")


def read_toml(path: Path, shown: str) -> tuple[dict[str, Any], list[str]]:
    """Parse a TOML file; a syntax error becomes one problem that names file and line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")), []
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return {}, [f"{shown}: is not valid TOML: {error}"]
    except OSError as error:
        return {}, [f"{shown}: cannot be read: {error.strerror}"]


def read_table(kind: type[T], table: object, where: str) -> tuple[T | None, list[str]]:
    """Validate one table against a dataclass; returns (value or None, all problems)."""
    from pydantic import ValidationError

    if not isinstance(table, Mapping):
        return None, [f"{where}: should be a table, is {table!r}"]
    try:
        return _validate(kind, table), []
    except ValidationError as error:
        return None, [_sentence(kind, dict(item), where) for item in error.errors()]


def salvage(kind: type[T], table: object, stand_in: Mapping[str, Any]) -> tuple[T | None, frozenset[str]]:
    """What a refused table still says, so that its other problems are told in the same breath.

    Returns (value, the keys that are not what the table says); a missing key has its stand-in, a key that
    could not be read its default. None when that is not enough.
    """
    from pydantic import ValidationError

    if not isinstance(table, Mapping):
        return None, frozenset()
    try:
        return _validate(kind, table), frozenset()
    except ValidationError as error:
        lost = frozenset(str(item["loc"][0]) for item in error.errors() if item["loc"])
    left = {key: value for key, value in table.items() if key not in lost}
    try:
        return _validate(kind, {**{key: stand_in[key] for key in lost & set(stand_in)}, **left}), lost
    except ValidationError:
        return None, lost


def _validate(kind: Any, table: Mapping[Any, Any]) -> Any:
    return _adapter(kind).validate_python(dict(table))


@lru_cache(maxsize=32)
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _sentence(kind: type[Any], error: dict[str, Any], where: str) -> str:
    path = ".".join(str(part) for part in error["loc"])
    owner = _owner(kind, error["loc"])
    name = str(error["loc"][-1]) if error["loc"] else ""
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        names = [field.name for field in dataclasses.fields(owner)] if owner else []
        known = f" (known: {', '.join(names)})" if names else ""
        return f"{where}: unknown key '{path}'{did_you_mean(name, names)}{known}"
    if error["type"] in ("missing", "missing_argument"):
        return f"{where}: key '{path}' is missing"
    text = str(error["msg"])
    return f"{where}: key '{path}' is {error['input']!r}: {text[:1].lower()}{text[1:]}"


def _owner(kind: type[Any], location: tuple[Any, ...]) -> type[Any] | None:
    """Follow the error's path through nested dataclasses to the one that lacks the key."""
    import typing

    owner: Any = kind
    for part in location[:-1]:
        if not dataclasses.is_dataclass(owner):
            return None
        if isinstance(part, int):
            continue
        hint = typing.get_type_hints(owner).get(str(part))
        owner = next((a for a in typing.get_args(hint) if dataclasses.is_dataclass(a)), hint)
    return owner if isinstance(owner, type) and dataclasses.is_dataclass(owner) else None
