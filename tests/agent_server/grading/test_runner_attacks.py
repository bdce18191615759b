"""Attacks on the test runner: plugins, modules and compiled files that a submission plants."""

import pytest

from tests.agent_server.grading.grading_bench import (
    PLANT_CONFTEST,
    solved_and_lost,
    whole_repository,
)


def test_a_row_with_tests_beside_the_code_is_graded(beside_bench):
    solved, lost = solved_and_lost(beside_bench)
    assert solved.resolved and not lost.resolved


@pytest.mark.parametrize(
    "plant",
    [
        (
            "mkdir evil.egg-info && printf '[pytest11]\\nevil = evil\\n' >evil.egg-info/entry_points.txt "
            "&& printf 'Metadata-Version: 2.1\\nName: evil\\nVersion: 1\\n' >evil.egg-info/PKG-INFO "
            f"&& {PLANT_CONFTEST} >evil.py"
        ),
        (
            "mkdir evil-1.dist-info && printf '[pytest11]\\nevil = evil\\n' >evil-1.dist-info/entry_points.t"
            "xt && printf 'Metadata-Version: 2.1\\nName: evil\\nVersion: 1\\n' >evil-1.dist-info/METADATA "
            f"&& {PLANT_CONFTEST} >evil.py"
        ),
        (
            "printf 'import os\\nos._exit(0)' >evil.py && python3 -c \"import py_compile; py_compile.compile"
            "('evil.py', 'pytest.pyc')\" && git add -f pytest.pyc"
        ),
        (
            "printf '[pytest]\\naddopts = -p evil' >.pytest.toml && printf '[pytest]\\naddopts "
            '= ["-p", "evil"]\' >pytest.toml && '
        )
        + f"{PLANT_CONFTEST} >evil.py",
    ],
    ids=["egg-info", "dist-info", "compiled runner", "pytest.toml"],
)
def test_nothing_is_planted_in_the_runner(grading_bench, plant):
    solved, lost = solved_and_lost(whole_repository(grading_bench("swesmith")), plant)
    assert not lost.resolved and (lost.touched or ".pyc" in plant), lost.log
    assert solved.resolved, solved.log


def test_compiled_tests_are_not_run_instead_of_their_source(beside_bench):
    """Python runs a compiled file with an unchecked hash without reading the source."""
    compiled = (
        "printf 'def total(numbers):\\n    return 3\\n\\ndef mean(numbers):\\n    return 2\\n' >/tmp/core.py"
        ' && python3 -c "import importlib.util, py_compile;'
        " py_compile.compile('/tmp/core.py', importlib.util.cache_from_source('calc/core.py'),"
        ' invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"'
        " && git add -f calc/__pycache__"
    )
    solved, lost = solved_and_lost(beside_bench, compiled)
    assert not lost.resolved
    assert solved.resolved, solved.log
