"""Reads the documents and the tree for the tests beside it."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "DESIGN.md")]


@dataclass(frozen=True)
class Fence:
    """One fenced block of a document; `words` is what follows the opening backticks."""

    document: str
    line: int
    words: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def fences(*words: str) -> list[Fence]:
    """All fenced blocks of the documents whose first words are these, in reading order."""
    found = []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"^( *)```(.*)\n((?s:.*?))^\1```$", text, re.MULTILINE):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Fence(path.name, line, tuple(match[2].split()), match[3]))
    return [fence for fence in found if fence.words[: len(words)] == words]


def commands(*words: str) -> list[str]:
    """The command lines of those blocks, without their comments."""
    lines = [re.sub(r"(^| +)#.*", "", line) for fence in fences(*words) for line in fence.text.splitlines()]
    return [line for line in lines if line.strip()]


def promised_exits(*words: str) -> dict[str, int]:
    """The same commands with the exit code that their comment promises (`# exit 1`), 0 where it promises none."""
    lines = [line for fence in fences(*words) for line in fence.text.splitlines()]
    promises = {re.sub(r"(^| +)#.*", "", line): re.search(r"#.*\bexit (\d+)", line) for line in lines}
    return {
        command: int(promise[1]) if promise else 0 for command, promise in promises.items() if command.strip()
    }


def tracked_files() -> list[str]:
    """What git tracks and the working tree still has, as paths relative to the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
