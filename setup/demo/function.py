"""One demo function: its correct source, a one-line bug, and the calls of its tests.

Invariant: replacing `good` by `bad` changes one place of the source, and `sed s/bad/good/` reverts it. So `good`
and `bad` occur once in their source, contain no `/` or `&`, and `bad` is its own basic regular expression (no `*`,
`[`, `^`, `$`, backslash).
"""

import re
import sys
from dataclasses import dataclass
from textwrap import dedent

KINDS = ("operator", "comparison", "constant", "name", "off_by_one")


@dataclass(frozen=True)
class Function:
    kind: str  # of the bug; one of KINDS
    good: str  # part of the correct source
    bad: str  # its replacement in the buggy source
    calls: tuple[str, ...]  # argument lists as source, e.g. "[1, 2], 3", simplest first; one test each
    source: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", dedent(self.source).lstrip("\n"))
        assert self.kind in KINDS, f"{self.name}: kind {self.kind!r} is none of {KINDS}"
        assert self.source.count(self.good) == 1, (
            f"{self.name}: {self.good!r} must occur exactly once in the good source"
        )
        assert self.buggy_source.count(self.bad) == 1, (
            f"{self.name}: {self.bad!r} must occur exactly once in the buggy source"
        )
        assert self.name not in sys.stdlib_module_names, (
            f"{self.name}: a module of this name would hide Python's own from pytest"
        )
        assert not re.search(r"[/&]", self.good + self.bad), f"{self.name}: '/' and '&' have a special meaning in sed"
        assert not re.search(r"[*\[^$\\]", self.bad), (
            f"{self.name}: {self.bad!r} has a special meaning as a regular expression"
        )

    @property
    def name(self) -> str:
        match = re.match(r"def (\w+)\(", self.source)
        assert match, f"no function definition in {self.source!r}"
        return match.group(1)

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
