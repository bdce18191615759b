"""SWE-rebench, its V2, SWE-bench Live, Pro and Multilingual: a row's own columns are used, or the row is refused."""

import json
import shlex

import pytest

from agent_server.grading.datasets.base import GRADING_COLUMNS
from agent_server.grading.datasets.registry import dataset_for_row, load_dataset
from agent_server.tasks.catalog import Catalog
from client.errors import ConfigError, GraderError
from tests.agent_server.grading.grading_bench import SOLVE, graded_in_agent_sandbox
from tests.agent_server.grading.sample_rows_by_commands import ALL

NAMES = [make.__name__ for make in ALL]
BREAK_MEAN = "sed -i 's/sum(numbers) . len(numbers)/0/' calc/core.py"


@pytest.mark.parametrize("name", NAMES)
def test_gold_is_resolved_and_nothing_is_not(bench_by_commands, name):
    bench = bench_by_commands(name)
    sandbox = bench.agents()
    bench.dataset.apply_gold(bench.row, bench.task, sandbox)
    solved, lost = bench.grade(bench.patch(SOLVE)), bench.grade("")
    assert solved.resolved, (solved.tests, solved.log)
    assert lost.status == "graded" and not lost.resolved
    assert set(lost.fail_to_pass.values()) == {"FAILED"} and set(lost.pass_to_pass.values()) == {"PASSED"}, lost.log
    broken = bench.grade(bench.patch(f"{SOLVE}; {BREAK_MEAN}"))
    assert not broken.resolved and set(broken.fail_to_pass.values()) == {"PASSED"}, broken.log


@pytest.mark.parametrize("name", NAMES)
def test_also_in_the_agents_own_sandbox(bench_by_commands, name):
    """Its repository has the base commit alone, not the commit of the fix that some rows name."""
    bench = bench_by_commands(name)
    found = graded_in_agent_sandbox(bench, SOLVE)
    assert found.resolved, (found.tests, found.log)
    assert not graded_in_agent_sandbox(bench, "true").resolved


@pytest.mark.parametrize("name", NAMES)
def test_the_rows_tests_are_those_that_run(bench_by_commands, name):
    bench = bench_by_commands(name)
    evil = "\n".join(
        f"printf 'def test_total(): pass\\n' >{shlex.quote(file)}" for file in bench.dataset.test_files(bench.task)
    )
    assert not bench.grade(bench.patch(evil)).resolved
    assert bench.grade(bench.patch(f"{SOLVE}\n{evil}")).resolved


@pytest.mark.parametrize("name", NAMES)
def test_a_test_patch_that_does_not_fit_is_the_rows_fault(bench_by_commands, name):
    bench = bench_by_commands(name)
    row = bench.row | {
        "test_patch": bench.row["test_patch"].replace(" from calc.core import mean", " from calc import mean")
    }
    row["test_patch"] = row["test_patch"].replace("-from calc.core import mean\n", "-from calc import mean\n")
    assert row["test_patch"] != bench.row["test_patch"]
    sandbox = bench.sandbox()
    bench.dataset.set_up(bench.task, sandbox)
    bench.dataset.check_base(bench.task, sandbox)
    with pytest.raises(GraderError, match="its test patch must apply to its base commit"):
        bench.dataset.check_base(bench.dataset.task(row), sandbox)


def test_printed_text_is_believed_only_where_the_author_says_so(bench_by_commands):
    trusting = {name for name in NAMES if (bench := bench_by_commands(name)).dataset.trusts_printed_output(bench.task)}
    assert trusting == {"swerebench_v2_other", "swebench_live_other", "swebench_pro", "swebench_multilingual"}


@pytest.mark.parametrize("name", ["swebench_pro", "swerebench_v2", "swerebench_v2_other"])
@pytest.mark.parametrize("outcome", ["SKIPPED", "XFAIL", "MISSING"])
def test_a_test_that_should_pass_may_not_be_skipped_where_the_harness_says_so(bench_by_commands, name, outcome):
    bench = bench_by_commands(name)
    passed = dict.fromkeys((*bench.task.fail_to_pass, *bench.task.pass_to_pass), "PASSED")
    assert bench.dataset.resolved(bench.task, passed)
    assert not bench.dataset.resolved(bench.task, passed | {bench.task.pass_to_pass[0]: outcome})
    assert not bench.dataset.resolved(bench.task, {})


@pytest.mark.parametrize("as_text", [False, True])
def test_an_install_config_may_be_json_text(bench_by_commands, as_text):
    bench = bench_by_commands("swerebench")
    config = bench.row["install_config"]
    row = bench.row | {"install_config": json.dumps(config) if as_text else config}
    assert bench.dataset.reason_ungradable(row) == "" and bench.dataset.task(row) == bench.task
    script = bench.task.row["eval_script"].splitlines()
    assert f"{config['test_cmd']} tests/test_core.py" in script and config["install"] in script


@pytest.mark.parametrize(
    "name, change, reason",
    [
        ("swerebench", {"docker_image": None}, "it names no image"),
        ("swerebench", {"install_config": {"test_cmd": ""}}, "its install_config has no test_cmd"),
        ("swerebench", {"install_config": None}, "its install_config has no test_cmd"),
        ("swerebench", {"install_config": {"test_cmd": "x", "log_parser": "parse_log_gotest"}}, "'parse_log_gotest'"),
        ("swerebench", {"install_config": {"test_cmd": "x", "log_parser": "mine"}}, "'mine' of its install_config"),
        ("swerebench", {"test_patch": ""}, "its test_patch is empty"),
        ("swerebench", {"eval_script": "true"}, "its eval_script says how to grade it, and swerebench does not use"),
        ("swerebench_v2_other", {"install_config": {"test_cmd": "x", "log_parser": "mine"}}, "set PYTHONPATH to a"),
        ("swerebench_v2", {"test_cmds": ["x"]}, "its test_cmds says how to grade it"),
        ("swebench_live", {"test_cmds": []}, "its test_cmds are empty"),
        ("swebench_live", {"log_parser": "parse_log_pytest"}, "its log_parser must be 'pytest' or a program with"),
        ("swebench_live", {"log_parser": "os:system"}, "not 'os:system'"),
        ("swebench_live", {"install_config": {"a": 1}}, "its install_config says how to grade it"),
        ("swebench_pro", {"run_script": "", "parser_script": ""}, "it has no run_script and no parser_script; fill"),
        ("swebench_pro", {"fail_to_pass": "[]"}, "its fail_to_pass is empty"),
        ("swebench_pro", {"selected_test_files_to_run": "x("}, "is no list"),
        ("swebench_multilingual", {"version": "1"}, "the harness knows no test command of gin-gonic/gin '1'"),
        ("swebench_multilingual", {"install_config": {"a": 1}}, "its install_config says how to grade it"),
    ],
)  # fmt: skip
def test_what_a_class_cannot_use_is_refused_by_name(bench_by_commands, tmp_path, name, change, reason):
    bench = bench_by_commands(name)
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(bench.row | change) + "\n")
    with pytest.raises(ConfigError) as refused:
        Catalog(path, bench.dataset.name)
    assert reason in str(refused.value)


@pytest.mark.parametrize("name", ["swebench_old", "swebench_new", "swesmith", "r2e_a", "eval_script"])
@pytest.mark.parametrize("column", sorted(GRADING_COLUMNS))
def test_every_dataset_refuses_columns_that_say_how_to_grade_and_that_it_does_not_use(
    grading_bench, tmp_path, name, column
):
    bench = grading_bench(name)
    if column not in bench.dataset.unused_columns:
        return
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(bench.row | {column: "x"}) + "\n")
    with pytest.raises(ConfigError, match=f"its {column} says how to grade it, and {bench.dataset.name} does not use"):
        Catalog(path, bench.dataset.name)
    path.write_text("".join(json.dumps(bench.row | {column: empty}) + "\n" for empty in (None,)))
    assert Catalog(path, bench.dataset.name).ids("train")


@pytest.mark.parametrize("name", NAMES)
def test_the_columns_tell_the_kind(bench_by_commands, name):
    bench = bench_by_commands(name)
    assert dataset_for_row(bench.row, "here").name == bench.dataset.name
    assert load_dataset(bench.dataset.name).task(bench.row) == bench.task
