"""Sources served from memory: mutated text to every importer, and no stale bytecode, ever.

`SourceFileLoader.get_code` is patched once in the stem. A file of the project is compiled from its
source in memory and kept there; a mutated file comes from the overlay of the child. Neither reads
nor writes a .pyc file, so a stale one cannot decide a verdict and the tree is never written.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import linecache
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from .codetree import compile_source, source_lines

_Loader: Any = importlib.machinery.SourceFileLoader
_original_get_code: Callable[..., Any] = _Loader.get_code


class Sources:
    """The state of the patch: project root, compiled originals, and this child's overlay."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.compiled: dict[str, CodeType] = {}
        self.overlay: dict[str, str] = {}
        self.served: dict[str, str] = {}
        self.loaded: list[str] = []
        self.noted: Callable[[str, str], None] | None = None

    def install(self) -> None:
        """Patch the source loader of this process."""
        sources = self

        def get_code(loader: Any, fullname: str) -> Any:
            path = os.path.realpath(loader.get_filename(fullname))
            if path in sources.overlay:
                return sources.serve(path, loader.path)
            if sources.project.relative(path) is None:
                return _original_get_code(loader, fullname)
            if path not in sources.loaded:
                sources.loaded.append(path)
            return sources.original(path, loader.path)

        _Loader.get_code = get_code
        sys.dont_write_bytecode = True

    def put(self, overlay: dict[str, str]) -> None:
        """Serve mutated text (by real path) from now on, to importers and to linecache."""
        self.overlay = dict(overlay)
        for path, text in overlay.items():
            # No modification time: linecache then never goes back to the disk.
            linecache.cache[path] = (len(text), None, source_lines(text, keepends=True), path)

    def serve(self, path: str, filename: str) -> CodeType:
        """Compile the overlay's text for `path` and note the digest of what was executed."""
        self.note(path)
        return compile_source(self.overlay[path], filename)

    def note(self, path: str) -> None:
        """The overlay's text for `path` is about to be executed."""
        self.served[path] = digest(self.overlay[path])
        if self.noted is not None:
            self.noted(path, self.served[path])

    def original(self, path: str, filename: str) -> CodeType:
        """The compiled original of a project file, compiled once per server."""
        if path not in self.compiled:
            self.compiled[path] = compile_source(read_source(path), filename)
        return self.compiled[path]


class Project:
    """Which files belong to the project, and which of those hold test assertions."""

    def __init__(self, root: str, tests: list[str], helpers: list[str], mutated: list[str]) -> None:
        self.root = os.path.realpath(root)
        self._mutated = {os.path.realpath(os.path.join(root, name)) for name in mutated}
        self._tests = [os.path.realpath(os.path.join(root, name)) for name in tests]
        self._helpers = [os.path.realpath(os.path.join(root, name)) for name in helpers]
        self._foreign = tuple(os.path.realpath(p) + os.sep for p in {sys.prefix, sys.exec_prefix})
        self._kinds: dict[str, str | None] = {}

    def relative(self, path: str) -> str | None:
        """The path relative to the project root, or None when it is not a file of the project."""
        if not os.path.isabs(path):
            # torch.ops calls its file "_ops.py"; that is no file in the current folder.
            return None
        real = os.path.realpath(path)
        if not real.startswith(self.root + os.sep) or real.startswith(self._foreign):
            return None
        if f"{os.sep}site-packages{os.sep}" in real:
            return None
        return os.path.relpath(real, self.root).replace(os.sep, "/")

    def kind(self, filename: str) -> str | None:
        """`test`, `helper` or `code` for a file of the project, None for any other."""
        if filename not in self._kinds:
            self._kinds[filename] = self._find_kind(filename)
        return self._kinds[filename]

    def holds_tests(self, path: str) -> None:
        """A test was collected from this file, whatever it is called."""
        if self.kind(path) == "code" and os.path.realpath(path) not in self._mutated:
            self._kinds[path] = "test"

    def _find_kind(self, filename: str) -> str | None:
        if filename.startswith("<") or self.relative(filename) is None:
            return None
        real = os.path.realpath(filename)
        if real in self._mutated:
            # Whatever it is called or declared as: what is judged does not judge.
            return "code"
        if any(_holds(p, real) for p in self._helpers):
            return "helper"
        name = os.path.basename(real)
        if name == "conftest.py" or name.startswith("test_") or name.endswith("_test.py"):
            return "test"
        # A test tree that is the whole project, or a package with its tests inside, holds code too; there
        # only the name decides.
        trees = [
            p for p in self._tests if p != self.root and not any(_holds(p, file) for file in self._mutated)
        ]
        return "test" if any(_holds(p, real) for p in trees) else "code"

    def copies(self, files: list[str]) -> dict[str, str]:
        """Which imported modules outside the project look like copies of these files of it, by their paths."""
        imported = [(name, str(getattr(m, "__file__", None) or "")) for name, m in list(sys.modules.items())]
        foreign = [
            (name, path) for name, path in imported if path.endswith(".py") and not self.relative(path)
        ]
        found: dict[str, str] = {}
        for file in files:
            # The longest end of its path that another file shares; a bare name only of a module without package.
            parts = file.split("/")
            ends = ["/".join(parts[n:]) for n in range(len(parts)) if parts[n:] != ["__init__.py"]]
            hits = [
                path
                for end in ends
                for name, path in foreign
                if path.endswith(f"/{end}") and ("/" in end or "." not in name)
            ]
            if hits:
                found[file] = hits[0]
        return found


def _holds(path: str, real: str) -> bool:
    """True when a file is `path` itself or lies below it."""
    return real == path or real.startswith(path + os.sep)


def digest(text: str) -> str:
    """sha256 of a source text."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_source(path: str) -> str:
    """Read Python source as the compiler would decode it, line ends untouched."""
    import tokenize

    with Path(path).open("rb") as handle:
        encoding, _ = tokenize.detect_encoding(handle.readline)
    with Path(path).open(encoding=encoding, newline="") as handle:
        return handle.read()
