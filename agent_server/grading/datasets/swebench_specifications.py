"""How older rows' tests are run: facts of SWE-bench's and SWE-Gym's harnesses by repository and version.

`swebench_specifications.json` is made by scripts/swebench_specifications.py from swebench 4.1.0.
`swegym_specifications.json` holds the same facts of SWE-Gym's fork of it, for its own repositories.
Invariant: loaded on first use, and once.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SWEBENCH = Path(__file__).with_name("swebench_specifications.json")
SWEGYM = Path(__file__).with_name("swegym_specifications.json")
PYTHON = "py"


@dataclass(frozen=True, slots=True)
class Commands:
    """What a script runs for one version. `test`: commands, of which Python's get the files of the test patch. `setup`:
    before anything else. `install`: the package, after the submission is applied. `build`: after the test patch."""

    test: tuple[str, ...]
    setup: tuple[str, ...] = ()
    install: str = ""
    build: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Repository:
    """`language`: as swebench abbreviates it (`py`, `go`, ...). `log_parser` and `eval_type`: as in new rows. `gym`:
    whether it is one of SWE-Gym's. `commands`: by version."""

    language: str
    log_parser: str
    eval_type: str
    gym: bool
    commands: dict[str, Commands]


def specification(repository: str) -> Repository | None:
    """The facts of a repository (`owner/name`, in any case); None for one that neither harness knows."""
    return _load().get(repository.lower())


@cache
def _load() -> dict[str, Repository]:
    found = {}
    for path in (SWEGYM, SWEBENCH):
        for name, facts in json.loads(path.read_text())["repositories"].items():
            by_version = {version: _commands(group) for group in facts["commands"] for version in group["versions"]}
            kind = (facts["language"], facts["log_parser"], facts["eval_type"])
            found[name.lower()] = Repository(*kind, gym=path is SWEGYM, commands=by_version)
    return found


def _commands(group: dict[str, Any]) -> Commands:
    return Commands(
        test=_as_tuple(group["test_cmd"]),
        setup=_as_tuple(group.get("eval_commands", ())),
        install=group.get("install", ""),
        build=_as_tuple(group.get("build", ())),
    )


def _as_tuple(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)
