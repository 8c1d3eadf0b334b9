"""`python -m harness.identity`: play the fixtures, compare every row with itself alone and with the reference."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.exit_codes import ExitCode
from harness.rows.checks import VALUES_LANE, checks_of
from harness.rows.defaults import ORACLE, PLANS, RETAINS, SUBJECT
from harness.rows.facts import FACTS
from harness.rows.fixture import FixtureError, default_folder, load_folder
from harness.rows.play import Lane, play
from harness.rows.schedule import Fixture
from harness.rows.subject import load
from harness.rows.trace import Trace
from harness.rows.verdict import worst

_MARKS = {"green": "●", "red": "✗", "aborted": "!", "unevaluated": "?", "not asked": "·"}


@dataclass
class Result:
    """All plays of one fixture."""

    fixture: Fixture
    traces: list[tuple[Lane, Trace]] = field(default_factory=list)

    def outcome(self, check: str) -> str:
        """One word over all plays of the lane that answers `check`."""
        if check not in checks_of(self.fixture):
            return "not asked"
        lane = "values" if check in VALUES_LANE else "tokens"
        return worst([trace.outcome(check) for name, trace in self.traces if name == lane])

    def facts(self) -> set[str]:
        """The facts that every play of the token lane witnessed."""
        return set.intersection(*(trace.facts for lane, trace in self.traces if lane == "tokens"))


def results(
    fixtures: Sequence[Fixture],
    subject: Any,
    oracle: Any,
    retains: Sequence[str],
    plans: Sequence[str],
    **how: Any,
) -> Iterator[Result]:
    """Play every fixture with every payload and plan, in both lanes."""
    for fixture in fixtures:
        result = Result(fixture)
        for retain in retains:
            for plan in plans:
                for lane in ("tokens", "values"):
                    options = {"retain": retain, "plan": plan}
                    result.traces.append((lane, play(fixture, subject, oracle, options, lane=lane, **how)))
        yield result


def _usage(message: str) -> typer.Exit:
    print(f"rowproof identity: {message}", file=sys.stderr)
    return typer.Exit(ExitCode.USAGE)


def _choose(names: list[str], folder: Path) -> list[Fixture]:
    try:
        fixtures = load_folder(folder)
    except FixtureError as error:
        raise _usage(
            "the fixtures cannot be played\n" + "\n".join(f"  {p}" for p in error.problems)
        ) from None
    unknown = [name for name in names if name not in fixtures]
    if unknown:
        raise _usage(f"there is no fixture {unknown[0]!r} in {folder}; there are {', '.join(fixtures)}")
    return [fixtures[name] for name in names] if names else list(fixtures.values())


def _one_of(name: str, given: str | None, allowed: tuple[str, ...]) -> tuple[str, ...]:
    if given is not None and given not in allowed:
        raise _usage(f"--{name} is {given!r}; it should be one of {', '.join(allowed)}")
    return allowed if given is None else (given,)


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise _usage(f"--device {device} cannot be used here: {str(error).splitlines()[0]}") from None


def identity(
    fixture: Annotated[list[str] | None, typer.Option(help="Play this fixture only (repeatable).")] = None,
    row: Annotated[int | None, typer.Option(help="Show mismatches of this batch row only.")] = None,
    until: Annotated[int | None, typer.Option(help="Stop after this step.", min=0)] = None,
    retain: Annotated[str | None, typer.Option(help="Payload: hidden or projected. Default: both.")] = None,
    plan: Annotated[str | None, typer.Option(help="Pool plan: grouped or gathered. Default: both.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    device: Annotated[str, typer.Option(help="Where production runs: cpu, cuda.")] = "cpu",
    poison: Annotated[bool, typer.Option(help="Overwrite dead memory before every comparison.")] = True,
    fixtures: Annotated[Path | None, typer.Option(help="Folder of fixture files.")] = None,
    subject: Annotated[str, typer.Option(help="package.module:name of the implementation.")] = SUBJECT,
) -> None:
    """Play every fixture three ways and compare row by row."""
    retains, plans = _one_of("retain", retain, RETAINS), _one_of("plan", plan, PLANS)
    chosen = _choose(fixture or [], fixtures or default_folder())
    _check_device(device)
    try:
        implementation, oracle = load(subject), load(ORACLE)
    except ValueError as error:
        raise _usage(str(error)) from None
    played: list[Result] = []
    for result in results(
        chosen, implementation, oracle, retains, plans, until=until, poison=poison, device=device
    ):
        if not as_json and not played:
            _print_legend(chosen)
        played.append(result)
        if not as_json:
            _print_line(result)
    partial = until is not None or bool(fixture)
    arguments = (f" --fixtures {fixtures}" if fixtures else "") + (
        f" --subject {subject}" if subject != SUBJECT else ""
    )
    verdicts = _Summary(played, row, whole=until is None, arguments=arguments)
    if as_json:
        print(json.dumps(verdicts.as_json(), indent=2, sort_keys=True))
    else:
        verdicts.print(partial)
    raise typer.Exit(ExitCode.OK if verdicts.good() else ExitCode.FINDING)


def _columns(fixtures: Sequence[Fixture]) -> list[str]:
    seen = {check for fixture in fixtures for check in checks_of(fixture)}
    return sorted(
        seen,
        key=lambda check: max(list(checks_of(f)).index(check) for f in fixtures if check in checks_of(f)),
    )


def _letter(n: int) -> str:
    return "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"[n]


_shown: list[str] = []


def _print_legend(fixtures: Sequence[Fixture]) -> None:
    _shown[:] = _columns(fixtures)
    print("  ".join(f"{_letter(n)} {check}" for n, check in enumerate(_shown)))
    print("  ".join(f"{mark} {word}" for word, mark in _MARKS.items()) + "\n")
    print(f"{'fixture':36} {''.join(_letter(n) for n in range(len(_shown)))}  facts declared and witnessed")


def _print_line(result: Result) -> None:
    marks = "".join(_MARKS[result.outcome(check)] for check in _shown)
    declared, seen = result.fixture.facts, result.facts()
    facts = f"{len(seen.intersection(declared))} of {len(declared)}: {', '.join(f for f in declared if f in seen)}"
    print(f"{result.fixture.name:36} {marks}  {facts}", flush=True)


@dataclass
class _Summary:
    played: list[Result]
    row: int | None
    whole: bool
    arguments: str

    def _asked(self) -> list[tuple[Result, str, str]]:
        """Every (fixture, check) that was asked, with its outcome. A play cut short has no facts to answer for."""
        return [
            (result, check, result.outcome(check))
            for result in self.played
            for check in checks_of(result.fixture)
            if self.whole or result.outcome(check) != "unevaluated"
        ]

    def good(self) -> bool:
        return bool(self._asked()) and all(outcome == "green" for _, _, outcome in self._asked())

    def _messages(self) -> list[str]:
        messages = []
        for result in self.played:
            for lane, trace in result.traces:
                for check in checks_of(result.fixture):
                    if (check in VALUES_LANE) == (lane == "values"):
                        messages += [trace.message(m, self.arguments) for m in trace.of(check, self.row)]
        return messages

    def print(self, partial: bool) -> None:
        asked = self._asked()
        messages = self._messages()
        for message in messages[:20]:
            print("\n" + message)
        if len(messages) > 20:
            print(f"\n20 of {len(messages)} mismatches shown; choose with --fixture, --row and --until")
        stopped = [(r, t) for r in self.played for _, t in r.traces if t.stopped is not None]
        for result, trace in stopped[:5]:
            print(
                f"\nSTOPPED  {result.fixture.name} ({', '.join(trace.options.values())}) at {trace.stopped}"
            )
        green = sum(outcome == "green" for _, _, outcome in asked)
        plays = sum(len(result.traces) for result in self.played)
        compared = sum(sum(trace.compared.values()) for result in self.played for _, trace in result.traces)
        witnessed = set().union(*(result.facts() for result in self.played))
        print(
            f"\nchecks green {green} of {len(asked)} · fixtures {len(self.played)} · plays {plays} · "
            f"comparisons {compared} · facts witnessed {len(witnessed)} of {len(FACTS)}"
        )
        if not partial:
            missing = [fact for fact in FACTS if fact not in witnessed]
            print(f"facts that no fixture witnesses: {', '.join(missing) or 'none'}")
        print("identity holds" if self.good() else "identity does NOT hold")

    def as_json(self) -> dict[str, Any]:
        return {
            "holds": self.good(),
            "fixtures": [
                {
                    "name": result.fixture.name,
                    "proves": result.fixture.proves,
                    "checks": {check: result.outcome(check) for check in checks_of(result.fixture)},
                    "facts": sorted(result.facts()),
                    "plays": [
                        {
                            "lane": lane,
                            "options": trace.options,
                            "stopped": trace.stopped,
                            "compared": dict(trace.compared),
                            "mismatches": [asdict(mismatch) for mismatch in trace.mismatches],
                        }
                        for lane, trace in result.traces
                    ],
                }
                for result in self.played
            ],
        }


def main() -> None:
    """Entry point of `python -m harness.identity` and `rowproof identity`."""
    typer.run(identity)


if __name__ == "__main__":
    main()
