"""Search for a history that breaks row identity, and write the shortest one as a fixture of its own."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import seed as at_seed
from hypothesis.stateful import run_state_machine_as_test

from harness.rows.facts import FACTS, FACTS_OF_STORAGE
from harness.rows.fixture import dump, load
from harness.rows.machine import STEPS_MAX, Failed, RowMachine
from harness.rows.play import play
from harness.rows.schedule import Fixture
from harness.rows.subject import Oracle, Subject
from harness.rows.trace import Trace
from harness.rows.verdict import PlayAborted

# Explaining a failure replays it under a tracer, and says nothing that the message in tokens does not.
_PHASES = (Phase.generate, Phase.shrink)


@dataclass(frozen=True)
class Found:
    """A history that breaks row identity.

    path     : the fixture file, red on its own
    trace    : the play of what that file holds
    examples : how many histories were played until one broke it first
    message  : the mismatch in tokens, the file, and the command that plays it again
    """

    path: Path
    trace: Trace
    examples: int
    message: str


@dataclass
class _Log:
    """What the machine reports while Hypothesis drives it."""

    examples: int = 0
    first: int = 0
    last: tuple[Fixture, Trace] | None = None

    def failed(self, fixture: Fixture, trace: Trace) -> None:
        """Hypothesis ends by playing the shortest failure once more, so the last one is the one to keep."""
        self.first = self.first or self.examples
        self.last = fixture, trace


def search(
    subject: Subject,
    oracle: Oracle,
    folder: Path,
    *,
    examples: int,
    seed: int = 0,
    arguments: str = "",
) -> Found | None:
    """Play up to `examples` random histories; the first that breaks row identity is shrunk and written to `folder`.

    arguments: what the replay line needs besides the folder, e.g. " --subject package.module:name".
    Shrinking is left out where the current Hypothesis profile leaves it out.
    """
    log = _Log()

    def machine() -> RowMachine:
        log.examples += 1
        return RowMachine(subject, oracle, log.failed)

    how = settings(
        max_examples=examples,
        stateful_step_count=STEPS_MAX,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[phase for phase in _PHASES if phase in settings.default.phases],  # type: ignore[union-attr]
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        print_blob=False,
    )
    with _unsteered():
        try:
            run_state_machine_as_test(cast(Any, at_seed(seed)(machine)), settings=how)
        except Failed:
            assert log.last is not None
            return _write(*log.last, folder, subject, oracle, log.first, arguments)
    return None


def require_nothing(found: Found | None) -> None:
    """Raise AssertionError if a check is red, PlayAborted if the play only stopped."""
    if found is not None:
        if not found.trace.mismatches:
            raise PlayAborted(found.message)
        raise AssertionError(found.message)


def _write(
    fixture: Fixture,
    trace: Trace,
    folder: Path,
    subject: Subject,
    oracle: Oracle,
    examples: int,
    arguments: str,
) -> Found:
    red = list(dict.fromkeys(mismatch.check for mismatch in trace.mismatches))
    holds = f"{' and '.join(red)} hold" if red else "the play goes on"
    facts = [fact for fact in FACTS if fact in trace.facts and fact not in FACTS_OF_STORAGE]
    fixture = Fixture(
        **{
            **vars(fixture),
            "proves": f"Found by search: {holds} through {trace.steps[-1]}, the last of {len(trace.steps)} steps.",
            # The deepest depth that is probed after every step is refused, whatever the history.
            "facts": tuple(facts or ["depth_refused"]),
        }
    )
    text = dump(fixture)
    path = folder / f"found_{hashlib.sha256(text.encode()).hexdigest()[:10]}.toml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    again = play(load(path), subject, oracle, trace.options)
    if not again.mismatches and again.stopped is None:
        raise RuntimeError(f"{path} is green on its own; the play depends on something its steps do not hold")
    arguments = f" --fixtures {shlex.quote(str(folder))}{arguments}"
    said = [again.message(again.mismatches[0], arguments)] if again.mismatches else []
    if again.stopped is not None:
        said.append(again.stop_message(arguments))
    replay = f"python -m harness.identity{arguments} --fixture {path.stem}"
    said.append(f"\nfound after {examples} histories, written to {path}\nreplay: {replay}")
    return Found(path, again, examples, "\n".join(said))


@contextmanager
def _unsteered() -> Iterator[None]:
    """Keep constants of the modules that happen to be loaded out of what is drawn.

    Hypothesis collects them, caches them in a folder called .hypothesis, and draws them now and then. Any
    edit of a source file would make a fixed seed another search.
    """
    from hypothesis.internal.conjecture.providers import HypothesisProvider

    name = "_maybe_draw_constant"
    original = getattr(HypothesisProvider, name, None)
    if original is None:
        yield
        return
    setattr(HypothesisProvider, name, lambda *_, **__: None)
    try:
        yield
    finally:
        setattr(HypothesisProvider, name, original)
