"""SWE-bench Pro rows: commands of each row, and a run script and a parser that its repository has for each.

The hub's rows lack the last two: the columns `run_script` and `parser_script` hold the text of `run_script.sh` and
`parser.py` in `run_scripts/INSTANCE_ID/` of github.com/scaleapi/SWE-bench_Pro-os.
Invariant: the parser reads what the runner prints, and runs in the sandbox, as in SWE-bench Pro's own harness. So the
code under test can forge outcomes, in every language.
"""

import ast
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agent_server.grading.datasets.base import (
    GRADING_COLUMNS,
    IMAGE_COLUMNS,
    REPOSITORY,
    Dataset,
    TestRun,
    named_image,
    parse_test_ids,
    run_checked,
    text,
)
from agent_server.grading.datasets.parser_programs import print_result, read_result
from agent_server.grading.datasets.row_test_patch import (
    STOP_WHERE_A_PATCH_FAILS,
    apply_command,
    check_fits,
    here_document,
)
from agent_server.grading.outcomes import all_passed, short_unittest_id
from agent_server.grading.patches import paths_in
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task

FOLDER = "/app"  # of the repository in the images
SCRIPTS = "https://github.com/scaleapi/SWE-bench_Pro-os/tree/main/run_scripts"
FILES = ("run_script", "parser_script")


class SweBenchPro(Dataset):
    name = "swebench_pro"
    identifying_columns = frozenset(
        {"instance_id", "base_commit", "test_patch", "before_repo_set_cmd", "selected_test_files_to_run"}
    )
    read_columns = (
        "instance_id", *IMAGE_COLUMNS, "dockerhub_tag", "base_commit", "selected_test_files_to_run",
    )  # fmt: skip
    list_columns = ("fail_to_pass", "pass_to_pass", *Dataset.list_columns)
    text_columns = ("problem_statement", "test_patch", *FILES)
    task_columns = ("base_commit", "test_patch", "before_repo_set_cmd", "selected_test_files_to_run", *FILES)
    unused_columns = GRADING_COLUMNS - {"before_repo_set_cmd", "selected_test_files_to_run", *FILES}

    def reason_ungradable(self, row: Mapping[str, Any]) -> str:
        if not self.tests(row)[0]:
            return "its fail_to_pass is empty"
        for name in ("base_commit", "test_patch"):
            if not text(row.get(name)):
                return f"its {name} is empty"
        if not self.image(row):
            return "it names no image: its dockerhub_tag is empty"
        if not parse_listed(row.get("selected_test_files_to_run")):
            return "its selected_test_files_to_run is empty"
        lacking = [name for name in FILES if not row.get(name)]
        return f"it has no {' and no '.join(lacking)}; fill the columns from {SCRIPTS}" if lacking else ""

    def image(self, row: Mapping[str, Any]) -> str:
        if named := named_image(row):
            return named
        tag = text(row.get("dockerhub_tag"))
        return f"jefzda/sweap-images:{tag}" if tag else ""

    def tests(self, row: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return _tests(row, "fail_to_pass"), _tests(row, "pass_to_pass")

    def task(self, row: Mapping[str, Any]) -> Task:
        """Its statement includes the requirements and interfaces, without which the tests cannot be met."""
        task = super().task(row)
        parts = [task.problem_statement]
        for title, column in (("Requirements", "requirements"), ("New interfaces introduced", "interface")):
            if value := text(row.get(column)):
                parts.append(f"{title}:\n{value}")
        return replace(task, problem_statement="\n\n".join(parts))

    def set_up(self, task: Task, sandbox: Sandbox) -> None:
        """Put the repository at its base, as the harness does, and where it is looked for."""
        base = task.row["base_commit"]
        link = f"[ -e {REPOSITORY} ] || ln -s {FOLDER} {REPOSITORY}"
        reset = f"cd {REPOSITORY} && git reset -q --hard {base} && git checkout -q {base}"
        run_checked(sandbox, task, f"{link}; {reset}", cwd="/")

    def check_base(self, task: Task, sandbox: Sandbox) -> None:
        check_fits(task, sandbox, task.row["test_patch"], task.row["base_commit"])

    def test_files(self, task: Task) -> tuple[str, ...]:
        return paths_in(task.row["test_patch"])

    def test_script(self, task: Task) -> str:
        """Bring in the tests, run them, and print what the row's parser makes of their output."""
        # Its other lines go back to the base. The commit that it names is not in every sandbox; the patch is the same.
        bring_in = task.row["before_repo_set_cmd"].strip().rpartition("\n")[2] or "false"
        files = ",".join(parse_listed(task.row["selected_test_files_to_run"]))
        return "\n".join(
            [
                STOP_WHERE_A_PATCH_FAILS,
                f"cd {FOLDER} 2>/dev/null || cd {REPOSITORY}",
                f"{{ {bring_in}; }} || {apply_command(task.row['test_patch'])}",
                "work=$(mktemp -d)",
                *(f'cat >"$work/{name}" {here_document(task.row[name])}' for name in FILES),
                f'bash "$work/run_script" {shlex.quote(files)} >"$work/stdout" 2>"$work/stderr"',
                'cat "$work/stdout" "$work/stderr"',
                "python=$(command -v python || command -v python3)",
                '"$python" "$work/parser_script" "$work/stdout" "$work/stderr" "$work/output.json"',
                print_result('"$work/output.json"'),
            ]
        )

    def trusts_printed_output(self, task: Task) -> bool:
        return True

    def outcomes(self, task: Task, run: TestRun) -> dict[str, str]:
        """By the row's parser; empty where it left none."""
        try:
            return {short_unittest_id(test["name"]): test["status"] for test in read_result(run.log)["tests"]}
        except (LookupError, TypeError):
            return {}

    def resolved(self, task: Task, outcomes: Mapping[str, str]) -> bool:
        """The harness's rule: all expected tests passed, and none was skipped."""
        return all_passed((*task.fail_to_pass, *task.pass_to_pass), outcomes)


def parse_listed(value: Any) -> tuple[str, ...]:
    """A list of texts, or its text in JSON or Python. Raises ValueError for other text."""
    if isinstance(value, str) and value.strip():
        try:
            return parse_test_ids(value)
        except ValueError:
            try:
                return parse_test_ids(ast.literal_eval(value))
            except (SyntaxError, TypeError, MemoryError, RecursionError) as invalid:
                raise ValueError(f"{value[:80]!r} is no list") from invalid
    return parse_test_ids(value)


def _tests(row: Mapping[str, Any], column: str) -> tuple[str, ...]:
    return parse_listed(row.get(column)) or parse_listed(row.get(column.upper()))
