"""The lens for a reader: which data shows which fault, as tables and sentences. Nothing here decides anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Table = tuple[str, list[str], list[list[str]]]
_MARKS = ("○", "◐", "●")
_SHORT = {
    "zeros": "zeros",
    "constant": "constant",
    "shared_ramp": "shared ramp",
    "per_row_ramp": "per-row ramp",
    "disjoint_ramps": "disjoint ramps",
    "random_by_position": "random by position",
    "random_by_event": "random by event",
    "token_identity": "token identity",
}


def tables(data: Mapping[str, Any]) -> list[Table]:
    """The tables of the report, each with its title, headings and rows."""
    found = [_pairs(data)]
    if data["entries"]:
        found += [_summary(data), _entries(data)]
    return found


def _mark(caught: int, of: int) -> str:
    return _MARKS[0] if not caught else _MARKS[2] if caught == of else _MARKS[1]


def _pairs(data: Mapping[str, Any]) -> Table:
    pairs = data["pairs"]
    lanes = pairs["lanes"]
    title = (
        f"State pairs: {pairs['pairs']} from {pairs['fixtures']} of {pairs['of']} fixtures. One mark per lane "
        f"({', '.join(lanes)}): ● all pairs caught, ◐ some, ○ blind; the number is the float32 margin"
    )
    rows = []
    for name, fault in sorted(pairs["faults"].items(), key=lambda item: (item[1]["theme"], item[0])):
        cells = fault["streams"]
        count = max((cell["exact"]["of"] for cell in cells.values()), default=0)
        rows.append([fault["theme"], name, str(count), *(_pair_cell(cells[s], lanes) for s in cells)])
    streams = list(next(iter(pairs["faults"].values()))["streams"])
    return title, ["theme", "fault", "pairs", *(_SHORT[stream] for stream in streams)], rows


def _pair_cell(lanes: Mapping[str, Any], order: Sequence[str]) -> str:
    marks = "".join(_mark(lanes[lane]["caught"], lanes[lane]["of"]) for lane in order)
    return f"{marks} {_short(lanes['float32']['margin'])}"


def _short(margin: float) -> str:
    """A margin in at most five characters."""
    if margin >= 1000:
        return f"{margin:.0e}".replace("e+0", "e")
    return f"{margin:.2g}" if margin < 10 else f"{margin:.0f}"


def _summary(data: Mapping[str, Any]) -> Table:
    entries = data["entries"]
    visible, total = [e for e in entries.values() if shown_by_data(e)], len(entries)
    rows = []
    for stream, says in data["streams"].items():
        dies = sum(entry["data"][stream] is not None for entry in visible)
        beside = sum(e["data"][stream] is not None or e["promises"] is not None for e in entries.values())
        rows.append([stream, says, f"{dies} of {len(visible)}", f"{beside} of {total}"])
    return (
        f"The catalogue on each stream: {total} of {data['catalogue']} entries, {len(visible)} of them shown by data at all",
        ["stream", "what is fed", "die by data alone", "with counts and promises"],
        rows,
    )


def _entries(data: Mapping[str, Any]) -> Table:
    rows = []
    for name, entry in sorted(data["entries"].items(), key=lambda item: (item[1]["theme"], item[0])):
        marks = [_MARKS[2] if entry["data"][stream] is not None else _MARKS[0] for stream in data["streams"]]
        rows.append([entry["theme"], name, *marks, _MARKS[2] if entry["promises"] is not None else _MARKS[0]])
    return (
        "Entry by entry: ● dies, ○ survives",
        ["theme", "entry", *(_SHORT[stream] for stream in data["streams"]), "counts, promises"],
        rows,
    )


def shown_by_data(entry: Mapping[str, Any]) -> bool:
    """Whether data that is unique to each append shows the entry."""
    return any(entry["data"][stream] is not None for stream in ("random_by_event", "token_identity"))


def sentences(data: Mapping[str, Any]) -> list[str]:
    """What the tables do not say: what was played, what no data can show, which claims hold."""
    lines = [
        f"{theme}: {says}; no data differs, only base and refusal show it"
        for theme, says in data["pairs"]["promises"].items()
    ]
    if data["elsewhere"]:
        lines.append(
            f"{len(data['elsewhere'])} of {len(data['elsewhere']) + len(data['entries'])} entries were not asked: other "
            "checks than row identity of production are named for them"
        )
    if not data["entries"]:
        return [*lines, "no mutant was run: these are pairs of states"]
    played = data["played"]
    lines.append(
        f"played for each entry: {len(played['fixtures'])} of {played['of']} fixtures (those that some entry names), "
        f"{len(played['options'])} of 4 combinations ({', '.join(played['options'])}), dead memory not poisoned"
    )
    asked = sum(entry["values"] for entry in data["entries"].values())
    lines.append(
        f"values lane: {len(played['values'])} fixtures, for the {asked} entries that name a values check; "
        "each answer was judged once, so it is no verdict"
    )
    only = [n for n, e in data["entries"].items() if not shown_by_data(e) and e["promises"] is not None]
    neither = [n for n, e in data["entries"].items() if not shown_by_data(e) and e["promises"] is None]
    numerics = [n for n, e in data["entries"].items() if shown_by_data(e) and not e["data"]["token_identity"]]
    if numerics:
        lines.append(
            f"{len(numerics)} entries are arithmetic that ids do not disturb (a real compressor is fed them as signs); "
            f"random values show them: {', '.join(numerics)}"
        )
    lines.append(
        f"{len(only)} entries are shown by no data; counts, shapes and promises see them: {', '.join(only) or 'none'}"
    )
    lines.append(
        f"{len(neither)} entries are seen by nothing that was played: {', '.join(neither) or 'none'}"
    )
    return [*lines, *_claims(data["entries"])]


def _claims(entries: Mapping[str, Any]) -> Iterator[str]:
    made = [(name, stream) for name, entry in entries.items() for stream in entry["survives_under"]]
    hold = [(name, stream) for name, stream in made if entries[name]["data"][stream] is None]
    told = ", ".join(f"{name} under {stream}" for name, stream in hold)
    yield f"survives_under: {len(hold)} of {len(made)} claims hold{': ' if told else ''}{told}"


def markdown(data: Mapping[str, Any]) -> str:
    """reports/lens.md: the same tables and sentences."""
    lines = ["# What the data can see", ""]
    if data["findings"]:
        lines += ["## Findings", "", *(f"- exit {f['exit']}: {f['sentence']}" for f in data["findings"]), ""]
    for title, headings, rows in tables(data):
        lines += [
            f"## {title.partition(':')[0]}",
            "",
            title + ".",
            "",
            _row(headings),
            _row(["---"] * len(headings)),
        ]
        lines += [*map(_row, rows), ""]
    faults = data["pairs"]["faults"]
    lines += [
        "## Faults of the state pairs",
        "",
        *(f"- `{n}`: {f['says']}" for n, f in sorted(faults.items())),
        "",
    ]
    return "\n".join([*lines, "## Notes", "", *(f"- {line}" for line in sentences(data))]) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
