"""Fenced code blocks of the documentation, and the commands in them."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / f"{name}.md" for name in ("README", "AGENTS", "CONTRIBUTING", "CHANGELOG")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"(^|\s\s+)# .*$")


def code_blocks(page: Path, *languages: str) -> list[str]:
    """The blocks of a page that are marked with one of these languages."""
    return [code for language, code in FENCE.findall(page.read_text()) if language in languages]


def commands(page: Path) -> Iterator[str]:
    """The shell commands of a page: continued lines joined, comments removed."""
    for block in code_blocks(page, "bash", "console", "sh", "shell"):
        for line in re.sub(r"\s*\\\n\s*", " ", block).splitlines():
            if command := COMMENT.sub("", line).removeprefix("$ ").strip():
                yield command


def all_commands() -> set[str]:
    return {command for page in PAGES for command in commands(page)}
