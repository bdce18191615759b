"""SWE-bench Live rows: SWE-bench's columns, and each row's own commands in `rebuild_cmds`, `test_cmds`, `print_cmds`.

Invariant: the script is that of SWE-bench Live's harness (github.com/microsoft/SWE-bench-Live, evaluation/). Rows whose
log_parser is a program are refused: a row must not run code on the server.
"""

from collections.abc import Mapping
from typing import Any

from agent_server.grading.datasets.base import (
    GRADING_COLUMNS,
    IMAGE_COLUMNS,
    REPOSITORY,
    named_image,
    parse_test_ids,
    text,
)
from agent_server.grading.datasets.row_test_patch import apply_command
from agent_server.grading.datasets.swebench import SweBench
from agent_server.grading.datasets.swebench_scripts import END_OUTPUT, START_OUTPUT

PYTEST = "pytest"  # the only log_parser that is a name


class SweBenchLive(SweBench):
    name = "swebench_live"
    identifying_columns = SweBench.identifying_columns | {"test_cmds"}
    read_columns = (
        "instance_id", *IMAGE_COLUMNS, "base_commit", "FAIL_TO_PASS", "rebuild_cmds",
        "test_cmds", "print_cmds", "log_parser", "parser",
    )  # fmt: skip
    text_columns = ("problem_statement", "test_patch")
    unused_columns = GRADING_COLUMNS - {"rebuild_cmds", "test_cmds", "print_cmds", "log_parser", "parser"}

    def reason_ungradable(self, row: Mapping[str, Any]) -> str:
        if not parse_test_ids(row.get("FAIL_TO_PASS")):
            return "its FAIL_TO_PASS is empty"
        for name in ("base_commit", "test_patch"):
            if not text(row.get(name)):
                return f"its {name} is empty"
        if not parse_test_ids(row.get("test_cmds")):
            return "its test_cmds are empty"
        parser = text(row.get("log_parser")) or text(row.get("parser"))
        if parser.strip().lower() != PYTEST:
            return f"its log_parser must be {PYTEST!r}; a program ({parser[:30]!r}...) would run on this server"
        return ""

    def image(self, row: Mapping[str, Any]) -> str:
        if named := named_image(row):
            return named
        instance = text(row.get("instance_id")).lower().replace("__", "_1776_")
        return f"starryzhang/sweb.eval.x86_64.{instance}:latest"

    def parser(self, row: Mapping[str, Any]) -> str:
        return "parse_log_pytest"

    def make_script(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> str:
        rebuild, tests, prints = (
            " ; ".join(parse_test_ids(row.get(name))) for name in ("rebuild_cmds", "test_cmds", "print_cmds")
        )
        # The harness's shell has no options, and reads what is printed at the end.
        before = [f"cd {REPOSITORY}", apply_command(columns["test_patch"]), "set +uxo pipefail", rebuild or ":"]
        start, end = f"echo '{START_OUTPUT}'", f"echo '{END_OUTPUT}'"
        return "\n".join([*before, tests, start, prints, end] if prints else [*before, start, tests, end])
