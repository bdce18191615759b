"""SWE-bench Live rows: SWE-bench's columns, and each row's own commands in `rebuild_cmds`, `test_cmds`, `print_cmds`.

Invariant: the script is that of SWE-bench Live's harness (github.com/microsoft/SWE-bench-Live, evaluation/). A
log_parser is `pytest`, or a program with a function `parser`. This runs in the sandbox: the code under test can forge
its outcomes.
"""

from collections.abc import Mapping
from typing import Any

from agent_server.grading.datasets.base import (
    GRADING_COLUMNS,
    IMAGE_COLUMNS,
    REPOSITORY,
    TestRun,
    named_image,
    parse_test_ids,
    run_checked,
    text,
)
from agent_server.grading.datasets.parser_programs import print_result, read_result
from agent_server.grading.datasets.row_test_patch import apply_command, here_document
from agent_server.grading.datasets.swebench import DEFAULT_PARSER, SweBench
from agent_server.grading.datasets.swebench_scripts import END_OUTPUT, START_OUTPUT
from agent_server.grading.outcomes import short_unittest_id
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task

COMMANDS = ("rebuild_cmds", "test_cmds", "print_cmds")
PYTEST = "pytest"  # the only log_parser that is a name
WORDS = {"pass": "PASSED", "fail": "FAILED", "skip": "SKIPPED"}
RUN_PARSER = """import json, sys
folder = sys.argv[1]
space = {"__name__": "parser"}
exec(open(folder + "/parser.py").read(), space)
outcomes = space["parser"](open(folder + "/log", errors="replace").read())
json.dump(outcomes, open(folder + "/outcomes.json", "w"))
"""


class SweBenchLive(SweBench):
    name = "swebench_live"
    identifying_columns = SweBench.identifying_columns | {"test_cmds"}
    read_columns = (
        "instance_id", *IMAGE_COLUMNS, "base_commit", *COMMANDS, "repo", "version", "log_parser",
        "parser",
    )  # fmt: skip
    text_columns = ("problem_statement", "test_patch")
    unused_columns = GRADING_COLUMNS - {"rebuild_cmds", "test_cmds", "print_cmds", "log_parser", "parser"}

    def reason_ungradable(self, row: Mapping[str, Any]) -> str:
        if not parse_test_ids(row.get("FAIL_TO_PASS")):
            return "its FAIL_TO_PASS is empty"
        for name in ("base_commit", "test_patch"):
            if not text(row.get(name)):
                return f"its {name} is empty"
        listed = {name: parse_test_ids(row.get(name)) for name in COMMANDS}
        if not listed["test_cmds"]:
            return "its test_cmds are empty"
        if not (program := parser_program(row)) or "def parser" in program:
            return ""
        return f"its log_parser must be {PYTEST!r} or a program with a function `parser`, not {program[:30]!r}"

    def image(self, row: Mapping[str, Any]) -> str:
        if named := named_image(row):
            return named
        instance = text(row.get("instance_id")).lower().replace("__", "_1776_")
        return f"starryzhang/sweb.eval.x86_64.{instance}:latest"

    def parser(self, row: Mapping[str, Any]) -> str:
        return DEFAULT_PARSER

    def task(self, row: Mapping[str, Any]) -> Task:
        task = super().task(row)
        task.row["parser_program"] = parser_program(row)
        return task

    def check_base(self, task: Task, sandbox: Sandbox) -> None:
        super().check_base(task, sandbox)
        if self.trusts_printed_output(task):
            run_checked(sandbox, task, "command -v python3 # which runs the row's log_parser", cwd="/")

    def make_script(self, row: Mapping[str, Any], columns: Mapping[str, str]) -> str:
        rebuild, tests, prints = (" ; ".join(parse_test_ids(row.get(name))) for name in COMMANDS)
        # The harness's shell has no options, and reads what is printed at the end.
        before = [f"cd {REPOSITORY}", apply_command(columns["test_patch"]), "set +uxo pipefail", rebuild or ":"]
        if program := parser_program(row):
            work = ["work=$(mktemp -d)", f'cat >"$work/parser.py" {here_document(program)}']
            printed = ["{", prints or tests, '} 2>&1 | tee "$work/log"']
            parse = [f'python3 - "$work" {here_document(RUN_PARSER)}', print_result('"$work/outcomes.json"')]
            return "\n".join([*before, tests if prints else ":", *work, *printed, *parse])
        start, end = f"echo '{START_OUTPUT}'", f"echo '{END_OUTPUT}'"
        return "\n".join([*before, tests, start, prints, end] if prints else [*before, start, tests, end])

    def trusts_printed_output(self, task: Task) -> bool:
        return bool(task.row["parser_program"])

    def outcomes(self, task: Task, run: TestRun) -> dict[str, str]:
        """As the runners reported them; by the row's own parser where it is a program."""
        if not self.trusts_printed_output(task):
            return super().outcomes(task, run)
        found = read_result(run.log)
        if not isinstance(found, dict):
            return {}
        return {short_unittest_id(test): WORDS[word] for test, word in found.items() if word in WORDS}


def parser_program(row: Mapping[str, Any]) -> str:
    """The row's log_parser, if it is a program; "" for pytest's."""
    parser = text(row.get("log_parser")) or text(row.get("parser"))
    return "" if parser.strip().lower() == PYTEST else parser
