"""The form of one demo function: good source, the one-line bug, and the calls that its tests make.

Invariant: replacing `good` by `bad` changes one place of the source, and `sed s/bad/good/` changes it back. So `good` and `bad` stand once in
their source, hold no `/` or `&`, and `bad` is its own basic regular expression (no `*`, `[`, `^`, `$`, backslash).
"""

import re
import sys
from dataclasses import dataclass
from textwrap import dedent

KINDS = ("operator", "comparison", "constant", "name", "off_by_one")


@dataclass(frozen=True)
class Function:
    kind: str  # one of KINDS: what the bug got wrong
    good: str  # snippet of the right source
    bad: str  # what the bug makes of it
    calls: tuple[str, ...]  # argument lists as source, e.g. "[1, 2], 3"; one test each, the simplest first
    source: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", dedent(self.source).lstrip("\n"))
        assert self.kind in KINDS, f"{self.name}: kind {self.kind!r} is none of {KINDS}"
        assert self.source.count(self.good) == 1, (
            f"{self.name}: {self.good!r} must stand exactly once in the good source"
        )
        assert self.buggy_source.count(self.bad) == 1, (
            f"{self.name}: {self.bad!r} must stand exactly once in the buggy source"
        )
        assert self.name not in sys.stdlib_module_names, (
            f"{self.name}: a module of this name would hide Python's own from pytest"
        )
        assert not re.search(r"[/&]", self.good + self.bad), f"{self.name}: '/' and '&' mean something else to sed"
        assert not re.search(r"[*\[^$\\]", self.bad), (
            f"{self.name}: {self.bad!r} means something else as a regular expression"
        )

    @property
    def name(self) -> str:
        return re.match(r"def (\w+)\(", self.source).group(1)

    @property
    def file(self) -> str:
        return f"{self.name}.py"

    @property
    def test_file(self) -> str:
        return f"tests/test_{self.name}.py"

    @property
    def buggy_source(self) -> str:
        return self.source.replace(self.good, self.bad)

    @property
    def fix_command(self) -> str:
        return f"sed -i 's/{self.bad}/{self.good}/' {self.file}"
