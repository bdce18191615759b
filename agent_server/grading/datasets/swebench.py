"""SWE-bench rows, new and old, and SWE-Gym's: a repository at a commit, a patch that adds the tests, an evaluation script.

Rows of swebench 5 bring `image, eval_script, log_parser, eval_type`; for older ones and for SWE-Gym's they are made here as the
harness of their time made them (commands: SWE-bench 4's and SWE-Gym's specifications). Parsing, report and resolution are the
official package's.
Invariant: what the official harness calls resolved is resolved here, unless pytest's own report contradicts what was printed.
"""

import shlex
from collections.abc import Mapping
from typing import Any

from agent_server.grading.datasets.base import Dataset, TestRun, confirmed_by_runner, parse_test_ids, runs_pytest, text
from agent_server.tasks.task import Task
from client.errors import GraderError

TEST_PATCH_END = "EOF_114329324912"
NOT_TESTS = (
    ".json",
    ".png",
    "csv",
    ".txt",
    ".md",
    ".jpg",
    ".jpeg",
    ".pkl",
    ".yml",
    ".yaml",
    ".toml",
)  # swebench's NON_TEST_EXTS
ACTIVATE = "source /opt/miniconda3/bin/activate\nconda activate testbed\ncd /testbed"
DJANGO = "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1"
COMMANDS = {  # of repositories that do not run `pytest -rA`
    "astropy/astropy": "pytest -rA -vv -o console_output_style=classic --tb=no",
    "django/django": DJANGO,
    "mwaskom/seaborn": "pytest --no-header -rA",
    "scikit-learn/scikit-learn": "pytest --no-header -rA --tb=no -p no:cacheprovider",
    "sphinx-doc/sphinx": "tox --current-env -epy39 -v --",
    "sympy/sympy": "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose",
    "getmoto/moto": "pytest -n0 -rA",
    "dask/dask": "pytest -n0 -rA --color=no",
    "bokeh/bokeh": "pytest -rA -n0",
    "modin-project/modin": "pytest -n0 -rA",
    "conan-io/conan": "pytest -n0 -rA",
    "pandas-dev/pandas": "pytest -rA --tb=long",
    "facebookresearch/hydra": "pytest -rA --tb=long",
    "iterative/dvc": "pytest -rA --tb=short",
    "pydantic/pydantic": "pytest -rA --tb=short -vv -o console_output_style=classic --no-header",
}


class SweBench(Dataset):
    name = "swebench"
    identifying_columns = frozenset(
        {"instance_id", "base_commit", "patch", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS"}
    )
    read_columns = (
        "instance_id",
        "image",
        "image_name",
        "repo",
        "version",
        "base_commit",
        "FAIL_TO_PASS",
        "log_parser",
        "eval_type",
    )
    text_columns = ("problem_statement", "test_patch", "eval_script")
    task_columns = ("repo", "version", "base_commit", "test_patch", "eval_script", "log_parser", "eval_type")

    def recognises(self, row: Mapping[str, Any]) -> bool:
        return super().recognises(row) and bool(row.get("base_commit"))

    def reason_ungradable(self, row: Mapping[str, Any]) -> str:
        if not parse_test_ids(row.get("FAIL_TO_PASS")):
            return "its FAIL_TO_PASS is empty"
        if not text(row.get("base_commit")):
            return "its base_commit is empty"
        if not row.get("eval_script") and not row.get("test_patch"):
            return "it has neither an eval_script nor a test_patch to make one of"
        if (parser := text(row.get("log_parser"))) and parser not in parsers():
            return f"swebench has no log_parser {parser!r}"
        return ""

    def image(self, row: Mapping[str, Any]) -> str:
        """The row's, or by the names that SWE-bench and SWE-Gym publish theirs under."""
        given = text(row.get("image")) or text(row.get("image_name"))
        if given:
            return given
        instance = text(row.get("instance_id")).lower()
        if self._is_gym(row):
            return f"xingyaoww/sweb.eval.x86_64.{instance.replace('__', '_s_')}:latest"
        return f"swebench/sweb.eval.x86_64.{instance.replace('__', '_1776_')}:latest"

    @staticmethod
    def _is_gym(row: Mapping[str, Any]) -> bool:
        """SWE-Gym's rows have the old rows' columns; their repositories are not SWE-bench's."""
        return not text(row.get("log_parser")) and text(row.get("repo")) not in _parser_of_repository()

    def task(self, row: Mapping[str, Any]) -> Task:
        task = super().task(row)
        columns = task.row
        columns["log_parser"] = columns["log_parser"] or _parser_of_repository().get(
            columns["repo"], "parse_log_pytest"
        )
        columns["eval_type"] = columns["eval_type"] or "pass_and_fail"
        columns["eval_script"] = columns["eval_script"] or eval_script(columns)
        return task

    def preload(self, task: Task) -> None:
        import swebench.harness.grading  # noqa: F401

    def test_files(self, task: Task) -> tuple[str, ...]:
        """Those that the test patch touches; the evaluation script restores and patches them."""
        return paths_in(task.row["test_patch"])

    def test_script(self, task: Task) -> str:
        """With the test command's own exit status recorded, as the harness does."""
        from swebench.harness.utils import parse_eval_script, record_test_exit_code

        return "\n".join(["set -uxo pipefail", *record_test_exit_code(parse_eval_script(task.row["eval_script"]))])

    def outcomes(self, task: Task, run: TestRun) -> dict[str, str]:
        """By the row's parser, between the script's markers. Where the tests run under pytest, what it did not report itself is
        not believed, and what it reported as failed has failed."""
        from swebench.harness.constants import END_TEST_OUTPUT, START_TEST_OUTPUT
        from swebench.harness.grading import parse_test_exit_code

        found = {}
        if START_TEST_OUTPUT in run.log and END_TEST_OUTPUT in run.log:
            between = run.log.split(START_TEST_OUTPUT)[1].split(END_TEST_OUTPUT)[0]
            found = parsed(task.row["log_parser"], between, _spec(task))
        if START_TEST_OUTPUT not in run.log:  # from there on the submission's code may print such signs itself
            _refuse_broken_environment(task, run.log)
        failures = {"FAILED", "ERROR"}
        if parse_test_exit_code(run.log) not in (None, 0) and found and not failures & set(found.values()):
            return {}  # the harness's rule: a runner that failed and reports no failure was not the one that printed this
        return confirmed_by_runner(
            found, (*task.fail_to_pass, *task.pass_to_pass), _command(task.row["eval_script"]), run
        )

    def resolved(self, task: Task, outcomes: Mapping[str, str]) -> bool:
        """The harness's rule, ids that were cut short in the dataset included."""
        from swebench.harness.constants import EvalType, ResolvedStatus
        from swebench.harness.grading import get_eval_tests_report, get_resolution_status

        if not outcomes:
            return False
        gold = {"FAIL_TO_PASS": list(task.fail_to_pass), "PASS_TO_PASS": list(task.pass_to_pass)}
        # fail_only takes what no runner named for passed. Where pytest reports, a test that did not run is known not to have.
        eval_type = (
            EvalType.PASS_AND_FAIL
            if runs_pytest(_command(task.row["eval_script"]))
            else EvalType(task.row["eval_type"])
        )
        report = get_eval_tests_report(dict(outcomes), gold, eval_type=eval_type)
        return get_resolution_status(report) == ResolvedStatus.FULL.value


def _refuse_broken_environment(task: Task, log: str) -> None:
    """The harness's rule for a log without any outcome: some signs can only come from the environment. Raises GraderError."""
    from swebench.harness.infra_failure import TIER_ENVIRONMENT, classify_text

    reason, tier = classify_text(log) or ("", "")
    if tier == TIER_ENVIRONMENT:
        raise GraderError(
            f"row {task.task_id}: no test ran, and what was printed shows a broken environment ({reason}): {log[-1000:]}"
        )


def eval_script(row: Mapping[str, str]) -> str:
    """For an older row: the tests as the test patch has them, the repository's command on their files, the tests as they were."""
    files = paths_in(row["test_patch"])
    tests = [file for file in files if not file.endswith(NOT_TESTS)]
    command = COMMANDS.get(row["repo"], "pytest -rA")
    if command is DJANGO:
        tests = [file.removesuffix(".py").removeprefix("tests/").replace("/", ".") for file in tests]
    restore = f"git checkout {row['base_commit']} -- " + " ".join(map(shlex.quote, files))
    restore = f"{restore} 2>/dev/null || true"  # files that the patch makes are not there
    return "\n".join(
        [
            ACTIVATE,
            restore,
            f"git apply -v - <<'{TEST_PATCH_END}'\n{row['test_patch'].rstrip()}\n{TEST_PATCH_END}",
            ": '>>>>> Start Test Output'",
            f"{command} {' '.join(map(shlex.quote, tests))}",
            ": '>>>>> End Test Output'",
            restore,
        ]
    )


def paths_in(patch: str) -> tuple[str, ...]:
    """The files that a diff of git's touches, by their new names, or their old ones where they go."""
    heads = [line for line in patch.splitlines() if line.startswith("diff --git ")]
    return tuple(sorted({head.rpartition(" b/")[2] for head in heads}))


def _command(script: str) -> str:
    """What stands between the markers."""
    lines = script.splitlines()
    marks = [
        number
        for number, line in enumerate(lines)
        if ">>>>> Start Test Output" in line or ">>>>> End Test Output" in line
    ]
    return "\n".join(lines[marks[0] + 1 : marks[1]]) if len(marks) == 2 else script


def _spec(task: Task) -> Any:
    from swebench.harness.utils import make_test_spec

    lists = {"FAIL_TO_PASS": list(task.fail_to_pass), "PASS_TO_PASS": list(task.pass_to_pass)}
    return make_test_spec(task.row | lists | {"instance_id": task.task_id, "image": task.image_name})


def parsed(parser: str, log: str, spec: Any) -> dict[str, str]:
    """Outcomes by swebench's parser of that name; none where it stumbles over what was printed, which is the tests' doing."""
    try:
        return parsers()[parser](log, spec)
    except (LookupError, ValueError, AttributeError, TypeError):
        return {}


def parsers() -> Mapping[str, Any]:
    """swebench's log parsers, by name."""
    from swebench.harness.log_parsers import PARSER_REGISTRY

    return PARSER_REGISTRY


def _parser_of_repository() -> Mapping[str, str]:
    """Of SWE-bench's Python repositories: the parser's name in the registry."""
    from swebench.harness.log_parsers.python import MAP_REPO_TO_PARSER_PY

    return {repository: parser.__name__ for repository, parser in MAP_REPO_TO_PARSER_PY.items()}
