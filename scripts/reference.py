"""Generates the reference tables and lists of docs/ from the code.

    python -m scripts.reference            writes the tables into the pages
    python -m scripts.reference --check    exits 1 if a page differs from the code

A table or list stands between `<!-- generated: NAME -->` and `<!-- end -->`.
Invariant: the output depends on the code alone, not on the machine.
"""

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from pydantic_core import PydanticUndefined

from agent_server.api.openapi import describe
from agent_server.config import Settings, variable
from agent_server.grading import protected_paths
from trainer.config.schema import REPOSITORY, AgentServer, config_keys

DOCS = Path(__file__).resolve().parents[1] / "docs"
MACHINE_DEFAULTS = {"sandbox_starts": "cores", "gradings": "half the cores"}


def settings_table() -> str:
    """The agent server's environment variables."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = "required" if field.is_required() else MACHINE_DEFAULTS.get(name) or _default(field.default)
        rows.append((f"`{variable(name)}`", default, field.description or ""))
    return _table(("variable", "default", "meaning"), rows)


def keys_table() -> str:
    """The trainer's configuration keys."""
    rows = []
    for key, field in config_keys():
        default = field.get_default(call_default_factory=True)
        shown = "required" if default is PydanticUndefined else _default(default).replace(f"{REPOSITORY}/", "")
        rows.append((f"`{key}`", shown, field.description or ""))
    return _table(("key", "default", "meaning"), rows)


def calls_table() -> str:
    """Every call of the agent server, from its OpenAPI document."""
    rows = []
    for path, methods in describe()["paths"].items():
        for method, call in methods.items():
            successes = [status for status in call["responses"] if int(status) < 400]
            errors = [status for status in call["responses"] if int(status) >= 400]
            token = "no" if call.get("security") == [] else "yes"
            rows.append(
                (f"`{method.upper()} {path}`", call["summary"], ", ".join(successes), ", ".join(sorted(errors)), token)
            )
    return _table(("call", "meaning", "success", "errors", "token"), rows)


def server_defaults_table() -> str:
    """Settings of the agent server whose default differs where the trainer starts it."""
    rows = [
        (f"`agent_server.{name}`", _default(field.default), _default(Settings.model_fields[name].default))
        for name, field in AgentServer.model_fields.items()
        if name in Settings.model_fields and field.default not in (None, Settings.model_fields[name].default)
    ]
    return _table(("key", "started by the trainer", "started alone"), rows)


def protected_list() -> str:
    """The files that a submission may not change."""
    paths = protected_paths
    shadows = [f"{name}{suffix}" for name in paths.RUNNER_MODULES for suffix in ("", ".*")]
    entries = (
        f"the task's tests, and a folder {_names(paths.TEST_FOLDERS, ' or ')} that holds them, whole",
        "tests and shell scripts that the row's script names",
        f"if that script calls make: {_names(paths.MAKEFILES)}",
        f"anywhere: {_names(paths.NAMES)}",
        f"everything in {_names(paths.FOLDERS)}",
        f"at the top, what Python would import instead of the test runner: {_names(shadows)}",
        f"compiled files (`*{paths.COMPILED}`) outside `site-packages`",
    )
    return "".join(f"- {entry};\n" for entry in entries[:-1]) + f"- {entries[-1]}.\n"


TABLES: dict[str, Callable[[], str]] = {
    "settings": settings_table,
    "keys": keys_table,
    "calls": calls_table,
    "server_defaults": server_defaults_table,
    "protected": protected_list,
}
BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def render(page: str) -> str:
    """The text of a page with its tables as the code has them now."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{TABLES[block[2]]()}\n{block[3]}", page)


def main(arguments: list[str]) -> int:
    stale = [page for page in sorted(DOCS.glob("*.md")) if render(page.read_text()) != page.read_text()]
    for page in stale:
        if arguments == ["--check"]:
            print(f"{page.name} differs from the code; run: .venv/bin/python -m scripts.reference", file=sys.stderr)
        else:
            page.write_text(render(page.read_text()))
    return 1 if stale and arguments == ["--check"] else 0


def _default(value: object) -> str:
    if value is None or value in ("", (), [], {}):
        return "none"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _names(names: Iterable[str], separator: str = ", ") -> str:
    return separator.join(f"`{name}`" for name in names)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
