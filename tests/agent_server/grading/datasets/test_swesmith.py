"""SWE-smith rows whose tests are doctests in the code."""

from dataclasses import replace

import pytest

from tests.agent_server.grading.grading_bench import run

IDS = ("calc/core.py::calc.core.total", "calc/other.py::calc.other", "tests/test_total.py::test_mean")


BUG_LINE, FIXED_LINE = "    return sum(numbers[1:])", "    return sum(numbers)"


def change(old, new):
    """A patch of the function with its docstring."""
    return (
        "--- a/calc/core.py\n+++ b/calc/core.py\n@@ -3,6 +3,6 @@\n     >>> total([1, 2])\n     3\n"
        f'     """\n-{old}\n+{new}\n \n \n'
    )


@pytest.fixture
def doctests(grading_bench):
    """The bench of a row with a doctest in the very file that has the bug, and one in another module."""
    bench = grading_bench("swesmith")
    command = "python3 -m pytest -rA --doctest-modules calc tests/test_total.py"
    row = bench.task.row | {"test_cmd": command, "patch": change(FIXED_LINE, BUG_LINE)}
    bench.task = replace(bench.task, fail_to_pass=IDS[:1], pass_to_pass=IDS[1:], row=row)

    def sandbox():
        made = bench.sandbox()
        edit = (
            'sed -i \'s/^def total(numbers):$/&\\n    """\\n    >>> total([1, 2])\\n    3\\n    """/\' calc/core.py'
            ' && printf \'"""\\n>>> 1 + 1\\n2\\n"""\\n\' >calc/other.py && git add -A'
        )
        assert run(made, edit).returncode == 0
        return made

    return bench, sandbox


def test_the_code_with_doctests_is_neither_hidden_nor_protected(doctests):
    bench, _ = doctests
    assert bench.dataset.hidden_paths(bench.task) == ()
    assert bench.dataset.test_files(bench.task) == ("tests/test_total.py",)
    other = replace(bench.task, fail_to_pass=("tests/test_total.py::test_total", "calc/other.py::calc.other"))
    assert bench.dataset.hidden_paths(other) == ("tests/test_total.py",)
    same = replace(bench.task, fail_to_pass=("calc/core.py::test_in_the_code",))
    assert bench.dataset.hidden_paths(same) == () and "calc/core.py" not in bench.dataset.test_files(same)


def test_the_profiles_command_still_runs_all_files(doctests):
    bench, _ = doctests
    task = replace(bench.task, row=bench.task.row | {"test_cmd": ""})
    assert bench.dataset.test_script(task).endswith(" calc/core.py calc/other.py tests/test_total.py")


def test_a_fix_beside_a_doctest_counts(doctests):
    bench, sandbox = doctests
    solved, lost = bench.grade(change(BUG_LINE, FIXED_LINE), sandbox=sandbox()), bench.grade("", sandbox=sandbox())
    assert solved.resolved, (solved.tests, solved.log)
    assert not lost.resolved and lost.fail_to_pass == {IDS[0]: "FAILED"}
