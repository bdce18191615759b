"""Grades: reward commands, time-outs, rows that do not fit, and outcomes that the runner must confirm."""

import shlex
from dataclasses import replace

import pytest

from agent_server.grading import repository
from agent_server.grading.grade import GradingConfig, grade
from agent_server.grading.placement import FreshSandbox
from agent_server.validate import attacks
from client.errors import GraderError, GraderTimeout
from tests.agent_server.grading.grading_bench import CONFIG, PATCH, SOLVE, solved_and_lost


def test_a_reward_command_replaces_the_tests(grading_bench, tmp_path):
    script = grading_bench("eval_script")
    patch, log = script.patch(SOLVE), tmp_path / "tests.log"
    found = script.grade(
        patch,
        replace(CONFIG, reward_command="echo measured; grep -c 'sum(numbers)' calc/core.py | sed 's/.*/0.25/'"),
        log_file=log,
    )
    assert (found.given_reward, found.resolved, found.status) == (0.25, False, "graded")
    assert log.read_text() == "measured\n0.25\n" and found.log_path == str(log)
    for command in ("echo 2", "echo one", "echo 1; exit 3", "true"):
        with pytest.raises(
            GraderError, match="AGENT_SERVER_REWARD_COMMAND must end with 0 and print a number from 0 to 1"
        ):
            script.grade(patch, replace(CONFIG, reward_command=command))


def test_tests_that_do_not_end_are_a_failure_not_a_zero(grading_bench, tmp_path):
    script = grading_bench("eval_script")
    script.task = replace(script.task, row=script.task.row | {"eval_script": "echo began; sleep 100"})
    with pytest.raises(GraderTimeout, match="AGENT_SERVER_GRADING_TIMEOUT_S.*\n?.*began"):
        script.grade(PATCH, GradingConfig(timeout_s=1.0), log_file=tmp_path / "tests.log")
    assert (tmp_path / "tests.log").read_text() == "began\n"


def test_a_row_that_does_not_fit_its_image_is_a_failure(grading_bench):
    swesmith = grading_bench("swesmith")
    misfit = replace(swesmith.task, row=swesmith.task.row | {"patch": PATCH})
    with pytest.raises(GraderError, match="its image and its columns do not fit"):
        grade(swesmith.dataset, misfit, PATCH, swesmith.sandbox(), FreshSandbox(), CONFIG)
    bench = grading_bench("swebench_new")
    nowhere = replace(bench.task, row=bench.task.row | {"base_commit": "0" * 40})
    with pytest.raises(GraderError, match="do not fit"):
        repository.prepare(bench.dataset, nowhere, bench.sandbox())


def test_a_broken_environment_is_a_failure_by_the_harness_rule(grading_bench):
    bench = grading_bench("swebench_new")
    broken = replace(bench.task, row=bench.task.row | {"eval_script": "echo 'bash: fork: Cannot allocate memory'"})
    with pytest.raises(GraderError, match=r"a broken environment \(out_of_memory\)"):
        grade(bench.dataset, broken, PATCH, bench.sandbox(), FreshSandbox(), CONFIG)
    silent = replace(bench.task, row=bench.task.row | {"eval_script": "echo nothing"})
    assert not grade(bench.dataset, silent, PATCH, bench.sandbox(), FreshSandbox(), CONFIG).resolved


def test_printed_passes_need_the_report_of_pytest(grading_bench):
    bench = grading_bench("swebench_new")
    names = [*bench.task.fail_to_pass, *bench.task.pass_to_pass]
    passes = "".join(f"PASSED {name}\n" for name in names).encode()
    fake = attacks.PRINT_AND_EXIT.replace("{passes}", repr(passes))
    found = bench.grade(bench.patch(f"printf %s {shlex.quote(fake)} >>calc/core.py"))
    assert not found.resolved and set(found.tests.values()) == {"MISSING"} and "PASSED tests/test_core.py" in found.log


def test_printed_passes_need_the_report_of_unittest(grading_bench):
    django = grading_bench("swebench_old")
    fake = "import os\n" + "".join(
        f"os.write(1, {f'{name} ... ok{chr(10)}'.encode()!r})\n"
        for name in (*django.task.fail_to_pass, *django.task.pass_to_pass)
    )
    forged = django.grade(django.patch(f"printf %s {shlex.quote(fake + 'os._exit(0)')} >>calc/core.py"))
    assert "... ok" in forged.log and not forged.resolved
    assert django.grade(django.patch(SOLVE)).resolved


def test_pytest_that_ended_without_a_report_has_not_passed(grading_bench):
    script = grading_bench("eval_script")
    script.task = replace(
        script.task,
        row=script.task.row
        | {
            "eval_script": (
                "echo 'from calc.core import total\ndef test_it(): assert total([1, 2]) == 3' >tests/test_it.py;"
                " python3 -m pytest -q tests/test_it.py"
            )
        },
    )
    solved, lost = (
        solved_and_lost(script, "true"),
        solved_and_lost(script, "printf '\\nimport os\\nos._exit(0)\\n' >>calc/core.py"),
    )
    assert solved[0].resolved and not solved[1].resolved
    assert not lost[1].resolved


def test_an_aborted_run_has_not_passed_under_fail_only(beside_bench):
    row = beside_bench.row | {"eval_type": "fail_only"}
    beside_bench.task = beside_bench.dataset.task(row)
    solved, lost = (
        solved_and_lost(beside_bench, "true"),
        solved_and_lost(beside_bench, "sed -i '1i raise ValueError' calc/core.py"),
    )
    assert solved[0].resolved and not solved[1].resolved and not lost[1].resolved
