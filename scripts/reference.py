"""Reference tables of docs/, generated from the code.

    python -m scripts.reference            writes the tables into the pages
    python -m scripts.reference --check    exits 1 where a page differs from the code

A table stands between `<!-- generated: NAME -->` and `<!-- end -->`.
Invariant: the output depends on the code alone, not on the machine.
"""

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from pydantic_core import PydanticUndefined

from agent_server.api.openapi import describe
from agent_server.config import Settings, variable
from trainer.config.schema import REPOSITORY, config_keys

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


TABLES: dict[str, Callable[[], str]] = {"settings": settings_table, "keys": keys_table, "calls": calls_table}
BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rendered(page: str) -> str:
    """The text of a page with its tables as the code has them now."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{TABLES[block[2]]()}\n{block[3]}", page)


def main(arguments: list[str]) -> int:
    stale = [page for page in sorted(DOCS.glob("*.md")) if rendered(page.read_text()) != page.read_text()]
    for page in stale:
        if arguments == ["--check"]:
            print(f"{page.name} differs from the code; run: .venv/bin/python -m scripts.reference", file=sys.stderr)
        else:
            page.write_text(rendered(page.read_text()))
    return 1 if stale and arguments == ["--check"] else 0


def _default(value: object) -> str:
    if value is None or value in ("", (), [], {}):
        return "none"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
