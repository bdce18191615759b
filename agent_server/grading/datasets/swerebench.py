"""SWE-rebench rows: SWE-bench's columns, and the commands of each row in its `install_config`.

Invariant: the script is that of SWE-rebench's own harness (github.com/SWE-rebench/SWE-bench-fork), made of the row's
`install`, `eval_commands` and `test_cmd`; nothing is looked up by repository.
"""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from agent_server.grading.datasets.base import GRADING_COLUMNS, IMAGE_COLUMNS, named_image, parse_test_ids, text
from agent_server.grading.datasets.swebench import SweBench
from agent_server.grading.datasets.swebench_parsers import is_pythons
from agent_server.grading.datasets.swebench_scripts import python_script
from agent_server.grading.datasets.swebench_specifications import Commands

COMMANDS = ("install", "eval_commands", "test_cmd")


class SweRebench(SweBench):
    name = "swerebench"
    identifying_columns = SweBench.identifying_columns | {"install_config"}
    read_columns: ClassVar[tuple[str, ...]] = (
        "instance_id", *IMAGE_COLUMNS, "repo", "version", "base_commit", "install_config",
    )  # fmt: skip
    text_columns: ClassVar[tuple[str, ...]] = ("problem_statement", "test_patch")
    unused_columns = GRADING_COLUMNS - {"install_config"}

    def reason_ungradable(self, row: Mapping[str, Any]) -> str:
        if not parse_test_ids(row.get("FAIL_TO_PASS")):
            return "its FAIL_TO_PASS is empty"
        for name in ("base_commit", "test_patch"):
            if not text(row.get(name)):
                return f"its {name} is empty"
        if not self.image(row):
            return f"it names no image: {', '.join(IMAGE_COLUMNS)} are empty"
        listed = {name: commands(row, name) for name in COMMANDS}
        if not listed["test_cmd"]:
            return "its install_config has no test_cmd"
        return self.reason_unknown_parser(row)

    def reason_unknown_parser(self, row: Mapping[str, Any]) -> str:
        """Why the log cannot be read; "" where it can."""
        if is_pythons(parser := self.parser(row)):
            return ""
        return f"the log_parser {parser!r} of its install_config is not one of swebench's for Python"

    def image(self, row: Mapping[str, Any]) -> str:
        return named_image(row)

    def parser(self, row: Mapping[str, Any]) -> str:
        return text(install_config(row).get("log_parser")) or "parse_log_pytest"

    def make_script(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> str:
        install = " && ".join(commands(row, "install"))
        tests = ("; ".join(commands(row, "test_cmd")),)
        return python_script(columns, Commands(tests, setup=commands(row, "eval_commands"), install=install))


def install_config(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row's `install_config`, a struct or its JSON text."""
    value = row.get("install_config")
    if isinstance(value, str):
        value = json.loads(value) if value.strip() else {}
    return value if isinstance(value, Mapping) else {}


def commands(row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The commands under this name in the row's `install_config`: a text, or a list of them. Raises ValueError."""
    value = install_config(row).get(name)
    listed = [value] if isinstance(value, str) else value or []
    if not isinstance(listed, list | tuple):
        raise ValueError(f"{name} of its install_config is neither a text nor a list of them: {value!r:.80}")
    return tuple(command for command in map(text, listed) if command.strip())
