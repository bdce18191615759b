"""No submission is rewarded without solving, whatever it plants."""

import json
import shlex
from dataclasses import replace

import pytest

from agent_server.grading import repository
from agent_server.grading.datasets.base import TestRun
from agent_server.grading.protected_paths import paths_in_script
from agent_server.validate.hostile import CONFTEST
from tests.agent_server.grading.grading_bench import (
    HARMLESS,
    IDENTITY,
    SOLVE,
    GradingBench,
    graded_in_agent_sandbox,
    run,
    solves,
)
from tests.agent_server.grading.sample_rows import (
    BUGGY,
    FIXED,
    PACKAGE,
    SOURCE_PATCH_PATH,
    STATEMENT,
    Images,
    Made,
    diff,
    save,
)

PLANT = f"printf %s {shlex.quote(CONFTEST)}"
WHOLE_REPOSITORY = {"test_cmd": "python3 -m pytest -rA"}
OLD = "from calc.core import mean, total\n\n\ndef test_mean():\n    assert mean([1, 3]) == 2\n\n\ndef test_total():\n    assert total([1, 2]) == 2\n"
NEW = OLD.replace("[1, 2]) == 2", "[1, 2]) == 3")


@pytest.fixture(scope="session")
def beside(sample_rows, tmp_path_factory):
    """A row of SWE-bench's whose tests lie beside the code; as they were, they hold for the bug."""
    images, folder = sample_rows[0], tmp_path_factory.mktemp("beside")
    name = "swebench/sweb.eval.x86_64.calc_1776_calc-2:latest"
    files = {path: text for path, text in PACKAGE.items() if "test" not in path} | {"calc/test_core.py": OLD}
    _, base = Images(images.parent / "root", images).make(name, files)
    tests = {"calc/test_core.py": NEW, "calc/checks/test_more.py": "def test_more():\n    assert True\n"}
    test_patch = diff({"calc/test_core.py": OLD}, tests, folder / "diff")
    row = {
        "instance_id": "calc__calc-2", "repo": "calc/calc", "version": "1.0", "base_commit": base, "image": name, "problem_statement": STATEMENT,
        "patch": diff({SOURCE_PATCH_PATH: BUGGY}, {SOURCE_PATCH_PATH: FIXED}, folder / "diff"), "test_patch": test_patch, "log_parser": "parse_log_pytest_v2",
        "FAIL_TO_PASS": json.dumps(["calc/test_core.py::test_total"]), "PASS_TO_PASS": json.dumps(["calc/test_core.py::test_mean"]),
    }  # fmt: skip
    return images, Made(save(folder, "beside", row), "swebench", row["instance_id"])


@pytest.fixture
def beside_bench(beside, tmp_path):
    bench = GradingBench(beside[0], tmp_path, beside[1])
    yield bench
    bench.close()


def whole(bench):
    """The same row, its tests looked for in the whole repository."""
    bench.task = replace(bench.task, row=bench.task.row | WHOLE_REPOSITORY)
    return bench


# --- rewarded without solving -----------------------------------------------------------------------------------------------


def test_the_row_beside_the_code_is_a_row(beside_bench):
    solved, lost = solves(beside_bench)
    assert solved.resolved and not lost.resolved


@pytest.mark.parametrize(
    "trick",
    [
        "echo 'calc/test_core.py working-tree-encoding=UTF-16' >.gitattributes",
        "echo 'nothing' >calc/checks",
        "mkdir -p calc/checks/test_more.py && echo x >calc/checks/test_more.py/x",
        "ln -s / calc/checks",
        "mkdir -p x && git mv calc/test_core.py x/ && mkdir calc/test_core.py && echo x >calc/test_core.py/x",
    ],
    ids=[
        "attributes",
        "a file for its folder",
        "a folder for its file",
        "a link for its folder",
        "a folder for an old file",
    ],
)
def test_the_tests_cannot_be_kept_from_being_put_in_place(beside_bench, trick):
    solved, lost = solves(beside_bench, trick)
    assert not lost.resolved, lost.log
    assert solved.resolved, (solved.touched, solved.log)


@pytest.mark.parametrize(
    "folder",
    ["a\nb", "a  b", "a b", "-a", "a'b", 'a"b', "\u00e9", "a\\b", "a*"],
    ids=["newline", "two spaces", "space", "dash", "quote", "double quote", "accent", "backslash", "star"],
)
def test_no_name_hides_a_protected_file(grading_bench, folder):
    swesmith = whole(grading_bench("swesmith"))
    where = shlex.quote(f"./{folder}")
    solved, lost = solves(
        swesmith, f"mkdir {where} && {PLANT} >{where}/conftest.py && echo 'def test_x(): pass' >{where}/test_x.py"
    )
    assert not lost.resolved and lost.touched == (f"./{folder}/conftest.py",), lost.touched
    assert solved.resolved, solved.log


def test_no_undecodable_name_hides_a_protected_file(grading_bench):
    swesmith = whole(grading_bench("swesmith"))
    where = "$(printf 'a\\xffb')"
    solved, lost = solves(swesmith, f"mkdir {where} && {PLANT} >{where}/conftest.py")
    assert not lost.resolved and len(lost.touched) == 1, lost.touched
    assert json.dumps(lost.as_dict()).encode() and solved.resolved, solved.log


def test_a_links_target_cannot_speak_for_another_file(grading_bench):
    swesmith = whole(grading_bench("swesmith"))
    image = swesmith.sandbox()
    digest = run(image, "sha1sum <setup.cfg").output.split()[0]
    target = f"a\n{digest}  ./setup.cfg\nb"
    evil = f"printf '[tool:pytest]\\naddopts = -p evil' >setup.cfg && {PLANT} >evil.py && mkdir z && ln -s {shlex.quote(target)} z/conftest.py"
    _, lost = solves(swesmith, evil)
    assert not lost.resolved and "./setup.cfg" in lost.touched, lost.touched


@pytest.mark.parametrize(
    "plant",
    [
        f"mkdir evil.egg-info && printf '[pytest11]\\nevil = evil\\n' >evil.egg-info/entry_points.txt && printf 'Metadata-Version: 2.1\\nName: evil\\nVersion: 1\\n' >evil.egg-info/PKG-INFO && {PLANT} >evil.py",
        f"mkdir evil-1.dist-info && printf '[pytest11]\\nevil = evil\\n' >evil-1.dist-info/entry_points.txt && printf 'Metadata-Version: 2.1\\nName: evil\\nVersion: 1\\n' >evil-1.dist-info/METADATA && {PLANT} >evil.py",
        "printf 'import os\\nos._exit(0)' >evil.py && python3 -c \"import py_compile; py_compile.compile('evil.py', 'pytest.pyc')\" && git add -f pytest.pyc",
        "printf '[pytest]\\naddopts = -p evil' >.pytest.toml && printf '[pytest]\\naddopts = [\"-p\", \"evil\"]' >pytest.toml && "
        + f"{PLANT} >evil.py",
    ],
    ids=["egg-info", "dist-info", "compiled runner", "pytest.toml"],
)
def test_nothing_is_planted_in_the_runner(grading_bench, plant):
    solved, lost = solves(whole(grading_bench("swesmith")), plant)
    assert not lost.resolved and (lost.touched or ".pyc" in plant), lost.log
    assert solved.resolved, solved.log


def test_compiled_tests_are_not_run_instead_of_their_source(beside_bench):
    """Python believes a compiled file that says it need not be checked."""
    compiled = (
        "printf 'def total(numbers):\\n    return 3\\n\\ndef mean(numbers):\\n    return 2\\n' >/tmp/core.py && python3 -c \"import importlib.util, py_compile;"
        " py_compile.compile('/tmp/core.py', importlib.util.cache_from_source('calc/core.py'), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)\""
        " && git add -f calc/__pycache__"
    )
    solved, lost = solves(beside_bench, compiled)
    assert not lost.resolved
    assert solved.resolved, solved.log


QUOTED = """diff --git "a/\\056git/hooks/post-checkout" "b/\\056git/hooks/post-checkout"
new file mode 100755
--- /dev/null
+++ "b/\\056git/hooks/post-checkout"
@@ -0,0 +1,2 @@
+#!/bin/sh
+touch /tmp/was-here
"""
INDEX = "Index: .git/description\n@@ -1 +1 @@\n-Unnamed repository; edit this file 'description' to name the repository.\n+evil\n"
ED = "@@ nothing\n--- calc/core.py\n+++ calc/core.py\n0a\nx\n.\n!touch /tmp/was-here\n"


@pytest.mark.parametrize("patch", [QUOTED, INDEX, ED], ids=["quoted", "index line", "ed"])
def test_no_spelling_reaches_into_git_or_runs(beside_bench, patch):
    sandbox = beside_bench.sandbox()
    assert not beside_bench.grade(patch, sandbox=sandbox).resolved
    assert (
        run(sandbox, "ls /tmp/was-here .git/hooks/post-checkout 2>/dev/null; grep -c evil .git/description").output
        == "0\n"
    )


@pytest.mark.parametrize("command", ["python3 -m pytest -rA tests/test_core.py", "python3 -m pytest", "bash check.sh"])
def test_an_exit_code_is_of_the_rows_own_tests(grading_bench, command):
    """Rows without a parser, whose tests and script lie in the repository."""
    script = grading_bench("eval_script")
    script.task = replace(script.task, row=script.task.row | {"eval_script": command})
    new = "from calc.core import total\n\n\ndef test_total():\n    assert total([1, 2]) == 3\n"
    tests = f"printf %s {shlex.quote(new)} >tests/test_core.py; echo 'python3 -m pytest tests/test_core.py' >check.sh; git add -A; git -c user.name=a -c user.email=a@b commit -qm tests"

    def graded(edit):
        agents, fresh = script.sandbox(), script.sandbox()
        assert run(fresh, tests).returncode == 0
        assert run(agents, f"{tests}; {edit}").returncode == 0
        return script.grade(repository.collect_diff(agents), sandbox=fresh)

    evil = "echo 'def test_total(): pass' >tests/test_core.py; echo true >check.sh"
    assert not graded(evil).resolved
    assert graded(SOLVE).resolved
    assert graded(f"{SOLVE}; {evil}").resolved


def test_what_a_script_names_of_tests():
    script = "cd /testbed\ngit apply - <<'EOF_1'\n+++ b/django/test/x.py\nEOF_1\n./tests/runtests.py --v 2 core && bin/test 'sub/a test/x.py::test_y'; make check; bash /testbed/run.sh -k test calc/core.py"
    assert list(paths_in_script(script)) == [
        "tests/runtests.py",
        "bin/test",
        "test/x.py",
        "run.sh",
        "test",
        "Makefile",
        "makefile",
        "GNUmakefile",
    ]


def test_pytest_that_ended_without_a_report_has_not_passed(grading_bench):
    script = grading_bench("eval_script")
    script.task = replace(
        script.task,
        row=script.task.row
        | {
            "eval_script": "echo 'from calc.core import total\ndef test_it(): assert total([1, 2]) == 3' >tests/test_it.py; python3 -m pytest -q tests/test_it.py"
        },
    )
    solved, lost = solves(script, "true"), solves(script, "printf '\\nimport os\\nos._exit(0)\\n' >>calc/core.py")
    assert solved[0].resolved and not solved[1].resolved
    assert not lost[1].resolved


def test_of_two_tests_of_one_name_the_worse_counts(grading_bench):
    dataset = grading_bench("r2e_a").dataset
    row = {"docker_image": "x", "problem_statement": "x", "expected_output_json": json.dumps({"test_a": "PASSED"})}
    ran = TestRun("", 0, {"r2e_tests/test_1.py::test_a": "FAILED", "r2e_tests/test_2.py::test_a": "PASSED"})
    assert not dataset.resolved(dataset.task(row), dataset.outcomes(dataset.task(row), ran))


def test_under_fail_only_a_run_that_broke_off_has_not_passed(beside_bench):
    row = beside_bench.row | {"eval_type": "fail_only"}
    beside_bench.task = beside_bench.dataset.task(row)
    solved, lost = solves(beside_bench, "true"), solves(beside_bench, "sed -i '1i raise ValueError' calc/core.py")
    assert solved[0].resolved and not solved[1].resolved and not lost[1].resolved


# --- in the agent's own sandbox --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trick",
    [
        f"{IDENTITY}; git checkout -q --orphan mine; {PLANT} >conftest.py; git add -A; git commit -qm mine",
        f"{PLANT} >conftest.py; echo conftest.py >>.git/info/exclude",
        f"mkdir -p build; {PLANT} >build/conftest.py; {PLANT} >conftest.py; echo conftest.py >>~/.ignored; git config --global core.excludesFile ~/.ignored",
        f"{IDENTITY}; {PLANT} >conftest.py; git add conftest.py; git commit -qm mine; git replace $(git rev-list --max-parents=0 HEAD | tail -n 1) HEAD",
        f"{IDENTITY}; {PLANT} >conftest.py; git add -f conftest.py; git commit -qm x; rm -rf .git; git init -q; git add -A; git commit -qm base",
        f"{PLANT} >conftest.py; rm -rf .git",
        f"for number in 0 1 2; do mkdir -p /tmp/.aside/$number; {PLANT} >/tmp/.aside/$number/conftest.py; done",
        f"{PLANT} >tests/conftest.py; echo '*' >tests/.gitignore",
        "mkdir /tmp/.gitconfig /tmp/.git.aside; ln -s / /tmp/.protected.tar",
        "head -c 255M /dev/zero >/tmp/full; true",
        f"{PLANT} >conftest.py; git config core.worktree /tmp",
        f"{PLANT} >conftest.py; mkdir mine; mv conftest.py mine/; git init -q mine; cd mine; {IDENTITY}; git add -A; git commit -qm x",
    ],
    ids=[
        "orphan",
        "excluded",
        "global ignore",
        "replaced",
        "another repository",
        "no repository",
        "set aside",
        "ignores itself",
        "names in /tmp",
        "full",
        "worktree",
        "nested repository",
    ],
)
def test_what_was_left_in_the_repository_gains_nothing(grading_bench, trick):
    found = graded_in_agent_sandbox(whole(grading_bench("swesmith")), trick, HARMLESS)
    assert not found.resolved, found.log
