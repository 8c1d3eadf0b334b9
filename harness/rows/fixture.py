"""Fixture files: TOML in, `Fixture` out, every problem of every file at once."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field, TypeAdapter, ValidationError

from harness.rows import schedule as do
from harness.rows.exact import limits
from harness.rows.facts import FACTS
from harness.rows.schedule import Fixture, Step

_STEP: TypeAdapter[Step] = TypeAdapter(Annotated[Step, Field(discriminator="do")])
_FIXTURE = TypeAdapter(Fixture)
_KEYS = {step.__dataclass_fields__["do"].default: list(step.__dataclass_fields__) for step in get_args(Step)}


_NAME = re.compile(r"[a-z0-9_]+")
_COUNT_MAX = 1_000_000
_ROPE_MIN = 32
_UNIFORM = (do.Prefill, do.Advance, do.Verify, do.Select, do.Reorder, do.Reshape)


class FixtureError(ValueError):
    """Fixture files that cannot be played; `problems` has one sentence for each reason."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def default_folder() -> Path:
    """The fixtures of this distribution: the checkout's folder, or the copy inside an installed package."""
    harness = Path(__file__).resolve().parents[1]
    installed = harness / "data" / "fixtures"
    return installed if installed.is_dir() else harness.parent / "fixtures"


def load_folder(folder: Path) -> dict[str, Fixture]:
    """Every fixture of a folder by name, in name order. Raises FixtureError with all problems of all files."""
    paths = sorted(folder.glob("*.toml"))
    problems = [] if paths else [f"{folder} holds no fixture; it should hold at least one .toml file"]
    fixtures = {}
    for path in paths:
        try:
            fixtures[path.stem] = load(path)
        except FixtureError as error:
            problems += error.problems
    if problems:
        raise FixtureError(problems)
    return fixtures


def load(path: Path) -> Fixture:
    """The fixture in one file. Raises FixtureError with all its problems."""
    try:
        raw = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise FixtureError([f"{path.name}: cannot be read as TOML: {error}"]) from error
    return from_mapping(path.stem, raw, path.name)


def from_mapping(name: str, raw: dict[str, Any], file: str | None = None) -> Fixture:
    """The fixture that a parsed file describes. Raises FixtureError with all its problems."""
    file = file or name
    problems: list[str] = []
    steps = _steps(raw.get("step", []), problems)
    try:
        head = {key: value for key, value in raw.items() if key != "step"}
        if "name" in head:
            problems.append("unknown key 'name'; a fixture is named by its file")
        fixture = _FIXTURE.validate_json(
            json.dumps({**head, "name": name, "step": []}, default=str), strict=True
        )
    except ValidationError as error:
        problems += list(
            _sentences(error, "", [key for key in Fixture.__dataclass_fields__ if key != "name"])
        )
    if not problems:
        fixture = Fixture(**{**vars(fixture), "step": tuple(steps)})
        problems += _Rehearsal(fixture).problems()
    if problems:
        raise FixtureError([f"{file}: {problem}" for problem in problems])
    return fixture


def dump(fixture: Fixture) -> str:
    """The fixture as a TOML file: what `load` reads."""
    lines = []
    for key in Fixture.__dataclass_fields__:
        value = getattr(fixture, key)
        if key not in ("name", "step") and value != Fixture.__dataclass_fields__[key].default:
            lines.append(f"{key} = {_toml(value)}")
    lines.append("step = [")
    for step in fixture.step:
        keys = ["do", *(key for key in step.__dataclass_fields__ if key != "do")]
        given = [
            key for key in keys if key == "do" or getattr(step, key) != step.__dataclass_fields__[key].default
        ]
        lines.append(f"    {{ {', '.join(f'{key} = {_toml(getattr(step, key))}' for key in given)} }},")
    return "\n".join([*lines, "]"]) + "\n"


def _toml(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {k: v for k, v in vars(value).items() if v != type(value).__dataclass_fields__[k].default}
        return f"{{ {', '.join(f'{key} = {_toml(each)}' for key, each in changed.items())} }}"
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _steps(raw: Any, problems: list[str]) -> list[Step]:
    if not isinstance(raw, list) or not raw:
        problems.append("there is no [[step]]; a fixture should have at least one")
        return []
    steps = []
    for number, step in enumerate(raw):
        try:
            steps.append(_STEP.validate_json(json.dumps(step, default=str), strict=True))
        except ValidationError as error:
            do_ = step.get("do") if isinstance(step, dict) else None
            keys = _KEYS.get(do_, sorted(_KEYS)) if isinstance(do_, str) else sorted(_KEYS)
            problems += _sentences(error, f"step {number}: ", keys)
    return steps


def _sentences(error: ValidationError, where: str, keys: list[str]) -> Iterator[str]:
    for detail in error.errors(include_url=False):
        place = [str(part) for part in detail["loc"]]
        name = place[-1] if place else ""
        if detail["type"] == "unexpected_keyword_argument" or detail["type"] == "extra_forbidden":
            close = difflib.get_close_matches(name, keys, 1)
            yield f"{where}unknown key {name!r}" + (
                f"; did you mean {close[0]!r}?" if close else f"; keys: {keys}"
            )
        elif detail["type"] == "union_tag_invalid":
            tag = str(detail["ctx"]["tag"])
            close = difflib.get_close_matches(tag, list(_KEYS), 1)
            hint = (
                f"did you mean {close[0]!r}?" if close else f"it should be one of {', '.join(sorted(_KEYS))}"
            )
            yield f"{where}do is {tag!r}; {hint}"
        else:
            yield f"{where}{'.'.join(place) or 'step'}: {detail['msg']}"


class _Rehearsal:
    """Walks a schedule without playing it: do its rows and sequences exist when a step names them?"""

    def __init__(self, fixture: Fixture) -> None:
        self.fixture = fixture
        self.batch: list[int] = []
        self.parked: list[int] = []
        self.opened = 0
        self.saved: dict[str, list[int]] = {}

    def problems(self) -> list[str]:
        found = list(self._head())
        if not self.fixture.proves.strip().endswith("."):
            found.append("proves should be one sentence that ends with a full stop")
        if not self.fixture.facts:
            found.append(
                f"facts is empty; a fixture should declare what its play must witness, some of {', '.join(FACTS)}"
            )
        for fact in self.fixture.facts:
            if fact not in FACTS:
                close = difflib.get_close_matches(fact, FACTS, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"facts: {', '.join(FACTS)}"
                found.append(f"unknown fact {fact!r}; {hint}")
        for number, step in enumerate(self.fixture.step):
            problem = self._numbers(step) or self._step(step)
            if problem:
                found.append(f"step {number} {step.do}: {problem}")
                break  # what follows would only repeat it
        return found

    def _head(self) -> Iterator[str]:
        fixture = self.fixture
        if not _NAME.fullmatch(fixture.name):
            yield f"the name is {fixture.name!r}; it should be lower-case letters, digits and underscores"
        if (
            fixture.span not in (1, 2)
            or not 1 <= fixture.ratio <= _COUNT_MAX
            or not 0 <= fixture.margin <= _COUNT_MAX
        ):
            yield f"geometry should have ratio 1..{_COUNT_MAX}, span 1 or 2 and margin 0..{_COUNT_MAX}"
        if not 0 <= fixture.kv_window <= _COUNT_MAX:
            yield f"kv_window is {fixture.kv_window}; it should lie in 0..{_COUNT_MAX}"
        yield from self._values()
        for step in fixture.step:
            unequal = isinstance(step, do.Prefill) and len(set(step.lengths)) > 1
            if fixture.uniform and (unequal or not isinstance(step, _UNIFORM)):
                yield f"uniform is true, but {do.describe(step)} does not keep all rows equal"

    def _values(self) -> Iterator[str]:
        fixture, values = self.fixture, self.fixture.values
        for key in ("hidden_width", "block_width", "rope_width"):
            if not 1 <= getattr(values, key) <= _COUNT_MAX:
                yield f"values.{key} is {getattr(values, key)}; it should lie in 1..{_COUNT_MAX}"
        if values.rope_width % 2 or not _ROPE_MIN <= values.rope_width <= values.block_width:
            yield (
                f"values.rope_width is {values.rope_width}; it should be even and lie in {_ROPE_MIN}..{values.block_width}, "
                "the block's width: a narrower one leaves YaRN's ramp no room"
            )
        if not fixture.payloads or len(set(fixture.payloads)) < len(fixture.payloads):
            yield f"payloads is {list(fixture.payloads)}; it should hold hidden, projected, or both once"
        if values.data == "exact":
            yield from limits(fixture)
            return
        if values.dtype != "bfloat16":
            return
        # Its blocks are judged from the payloads that were stored, so each must have been seen in the window.
        if fixture.payloads != ("projected",):
            yield f"payloads is {list(fixture.payloads)}; in bfloat16 it should be ['projected']: what a hidden payload is rounded to before the pool cannot be seen"
        for step in fixture.step:
            fed = (
                step.lengths
                if isinstance(step, do.Prefill)
                else step.n_new
                if isinstance(step, do.Advance)
                else ()
            )
            fed = (step.width,) if isinstance(step, do.Verify) else fed
            if isinstance(step, do.Adopt) or max(fed, default=0) > fixture.margin:
                yield (
                    f"{do.describe(step)} brings tokens that the window may have let go; in bfloat16 a step should feed at "
                    f"most margin = {fixture.margin} tokens to a row, and adopt nothing"
                )

    def _numbers(self, step: Step) -> str | None:
        """Counts, rows and numbers of sequences are small and not negative."""
        for key, value in vars(step).items():
            numbers = value if isinstance(value, tuple) else (value,)
            for number in numbers:
                if isinstance(number, int) and not 0 <= number <= _COUNT_MAX:
                    return f"{key} holds {number}; it should lie in 0..{_COUNT_MAX}"
        name = getattr(step, "name", None)
        if name is not None and not _NAME.fullmatch(name):
            return f"name is {name!r}; it should be lower-case letters, digits and underscores"
        return None

    def _step(self, step: Step) -> str | None:
        rows = len(self.batch)
        takes_effect = step.expect_refusal is None
        match step:
            case do.Prefill(lengths=lengths) | do.Adopt(tokens=lengths):
                return self._open(step, lengths)
            case do.Advance(n_new=counts) if len(counts) != rows:
                return f"n_new has {len(counts)} entries; the batch has {rows} rows"
            case do.Verify(accept=accept, width=width):
                if len(accept) != rows:
                    return f"accept has {len(accept)} entries; the batch has {rows} rows"
                if not all(0 <= n <= width for n in accept):
                    return (
                        f"accept is {list(accept)}; it should lie in 0..{width}, the tokens that are verified"
                    )
            case do.Rollback(row=row) if not 0 <= row < rows:
                return f"row is {row}; the batch has rows 0..{rows - 1}"
            case (
                do.Split(rows=names) | do.Select(rows=names) | do.Reorder(rows=names) | do.Reshape(rows=names)
            ):
                return self._choose(step, names)
            case do.Assemble(sequences=names) | do.Reconcile(sequences=names):
                return self._gather(step, names)
            case do.Trim(sequence=name) if name is not None and name not in self.parked:
                return f"sequence {name} is not parked; parked are {self.parked}"
            case do.Trim(sequence=None) if not rows:
                return "there is no batch"
            case do.Snapshot(name=name):
                self.saved[name] = list(self.batch)
                return None if rows else "there is no batch"
            case do.Restore(name=name):
                if name not in self.saved:
                    return f"{name!r} was never written; written are {sorted(self.saved)}"
                if takes_effect:
                    self.batch = list(self.saved[name])
            case do.Align() if not self.fixture.kv_window:
                return "the fixture has no K/V slots; set kv_window"
        return None

    def _open(self, step: do.Prefill | do.Adopt, lengths: tuple[int, ...]) -> str | None:
        if isinstance(step, do.Adopt) and len(step.base) != len(lengths):
            return f"tokens has {len(lengths)} entries, base {len(step.base)}; they should be equally many"
        if isinstance(step, do.Prefill) and step.cuts:
            edges = [0, *step.cuts, max(lengths)]
            if edges != sorted(set(edges)):
                return f"cuts is {list(step.cuts)}; it should rise within 1..{max(lengths) - 1}"
        if min(lengths, default=-1) < 0:
            return "lengths should be one count, 0 or more, per sequence"
        numbers = list(range(self.opened, self.opened + len(lengths)))
        self.opened += len(lengths)
        park = isinstance(step, do.Adopt) or step.parked or self.batch
        if park:
            self.parked += numbers
        else:
            self.batch = numbers
        return None

    def _choose(self, step: Step, names: tuple[int, ...]) -> str | None:
        if not all(0 <= row < len(self.batch) for row in names):
            return f"rows is {list(names)}; the batch has rows 0..{len(self.batch) - 1}"
        if isinstance(step, do.Split) and len(set(names)) < len(names):
            return f"rows is {list(names)}; a row can leave once"
        if isinstance(step, do.Reorder) and sorted(names) != list(range(len(self.batch))):
            return f"rows is {list(names)}; it should hold every row of {len(self.batch)} once"
        if step.expect_refusal is not None:
            return None
        if isinstance(step, do.Split):
            names = names or tuple(range(len(self.batch)))
            self.parked += [self.batch[row] for row in names]
            self.batch = [number for row, number in enumerate(self.batch) if row not in names]
            return None
        chosen: list[int] = []
        for row in names:
            if self.batch[row] in chosen:
                chosen.append(self.opened)
                self.opened += 1
            else:
                chosen.append(self.batch[row])
        self.batch = chosen
        return None

    def _gather(self, step: Step, names: tuple[int, ...]) -> str | None:
        if len(set(names)) < len(names) or not set(names) <= set(self.parked):
            return f"sequences is {list(names)}; parked are {self.parked}, each can be named once"
        if isinstance(step, do.Assemble) and step.expect_refusal is None:
            self.parked = [number for number in self.parked if number not in names]
            self.batch += names
        return None
