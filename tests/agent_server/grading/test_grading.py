"""A grade means: this submission, on the untouched repository, makes exactly the tests pass that should."""

import shlex
from dataclasses import replace

import pytest

from agent_server.grading import repository
from agent_server.grading.datasets.registry import load_dataset
from agent_server.grading.grade import GradingConfig, grade
from agent_server.grading.patches import is_patch, statistics
from agent_server.grading.placement import AgentSandbox, FreshSandbox
from agent_server.tasks.task import Task
from agent_server.validate import hostile
from client.errors import GraderError, GraderTimeout
from tests.agent_server.grading.grading_bench import CONFIG, SOLVE, run
from tests.agent_server.grading.sample_rows import F2P, NEW_TESTS, STATEMENT

WORD = "two of them - a: b"
PLANT = f"{SOLVE} && echo 'raise SystemExit(0)' >conftest.py && echo '[pytest]' >pytest.ini && sed -i s/calc/evil/ setup.cfg && mkdir -p .github/workflows && echo x >.github/workflows/ci.yml && echo 'assert 0' >tests/test_core.py"
PLANTED = ("./.github/workflows/ci.yml", "./conftest.py", "./pytest.ini", "./setup.cfg", "./tests/test_core.py")


def test_protected_paths_are_stripped_and_the_rest_counts(grading_bench):
    swesmith = grading_bench("swesmith")
    found = swesmith.grade(swesmith.patch(PLANT))
    assert (found.resolved, found.status, found.touched, found.policy) == (True, "graded", PLANTED, "strip")
    assert (
        found.patch == {"files": 6, "added_lines": 6, "removed_lines": 7, "bytes": found.patch["bytes"]}
        and found.applied_by == "git apply"
    )


def test_protected_paths_may_be_a_reason_to_reject(grading_bench):
    swesmith = grading_bench("swesmith")
    found = swesmith.grade(swesmith.patch(PLANT), replace(CONFIG, protected_paths="reject"))
    assert (found.resolved, found.status, found.touched, found.tests) == (False, "rejected", PLANTED, {})
    assert swesmith.grade(swesmith.patch(SOLVE), replace(CONFIG, protected_paths="reject")).resolved


def test_under_allow_the_rows_own_tests_are_restored_all_the_same(grading_bench):
    swesmith = grading_bench("swesmith")
    allow = replace(CONFIG, protected_paths="allow")
    assert not swesmith.grade(swesmith.patch(PLANT), allow).resolved  # its conftest ends pytest
    found = swesmith.grade(swesmith.patch(f"{SOLVE} && echo 'assert 0' >tests/test_core.py"), allow)
    assert found.resolved and found.touched == ("./tests/test_core.py",)


@pytest.mark.parametrize(
    "trick",
    [
        "mkdir evil && cp tests/* evil/ && rm -r tests && ln -s evil tests",
        "rm -r tests && ln -s calc tests && echo 'def test_mean(): pass' >calc/test_core.py",
        "echo '*' >.gitignore && git add -f .gitignore && echo 'raise SystemExit(0)' >conftest.py && git add -f conftest.py",
        "mkdir -p pytest && echo 'raise SystemExit(0)' >pytest/__init__.py && echo 'raise SystemExit(0)' >sitecustomize.py",
        "ln -s /etc/hostname conftest.py",
    ],
    ids=["tests moved", "tests are a link", "hidden by gitignore", "another pytest", "conftest is a link"],
)
def test_tricks_with_paths_gain_nothing_and_cost_nothing(grading_bench, trick):
    swesmith = grading_bench("swesmith")
    lost, solved = swesmith.grade(swesmith.patch(trick)), swesmith.grade(swesmith.patch(f"{SOLVE}; {trick}"))
    assert not lost.resolved and lost.touched
    assert solved.resolved, solved.log


def test_what_reaches_into_git_is_no_patch(grading_bench):
    hook = "diff --git a/.git/hooks/post-checkout b/.git/hooks/post-checkout\nnew file mode 100755\n--- /dev/null\n+++ b/.git/hooks/post-checkout\n@@ -0,0 +1 @@\n+echo hi\n"
    found = grading_bench("swesmith").grade(hook)
    assert (found.resolved, found.status, found.log) == (False, "patch_failed", "the patch changes files of .git")


PATCH = """--- a/calc/core.py
+++ b/calc/core.py
@@ -1,5 +1,5 @@
 def total(numbers):
-    return sum(numbers[1:])
+    return sum(numbers)
 
 
 def mean(numbers):
"""


@pytest.mark.parametrize(
    "patch, step",
    [
        (PATCH, "git apply"),
        (PATCH.rstrip("\n"), "git apply"),
        (PATCH.replace(" def total(numbers):", " def  total(numbers):"), "git apply, whitespace ignored"),
        (PATCH.replace("@@ -1,5 +1,5 @@", "@@ -1,9 +1,7 @@"), "git apply, whitespace ignored"),
        (PATCH.replace(" def mean(numbers):", " def mean_of(numbers):"), "patch -p1"),
    ],
    ids=["as it is", "no last newline", "other whitespace", "wrong counts", "fuzz"],
)
def test_the_ladder_and_its_step(grading_bench, patch, step):
    found = grading_bench("swesmith").grade(patch)
    assert (found.resolved, found.applied_by) == (True, step), found.log


@pytest.mark.parametrize(
    "text, status",
    [
        ("I have fixed it.", "not_a_patch"),
        (PATCH.replace("numbers[1:]", "nothing"), "patch_failed"),
        ("diff --git a/x b/x\n", "patch_failed"),
    ],
)
def test_what_does_not_apply_is_a_zero_with_its_status(grading_bench, text, status):
    found = grading_bench("swesmith").grade(text)
    assert (found.resolved, found.status, found.tests) == (False, status, {}) and found.log


def test_parts_of_a_patch():
    assert statistics(PATCH).as_dict() == {"files": 1, "added_lines": 1, "removed_lines": 1, "bytes": len(PATCH)}
    assert is_patch(PATCH) and is_patch("GIT binary patch\n") and is_patch("diff --git a/x b/x\nold mode 100644\n")
    assert not is_patch("I have fixed it, see @@ -1 +1 @@ above.") and not is_patch("")


@pytest.mark.parametrize("name", ["swebench_new", "swesmith", "r2e_a"])
def test_the_future_is_not_in_the_agents_repository(sample_rows, grading_bench, name):
    bench = grading_bench(name)
    sandbox = bench.agents()
    seen = run(
        sandbox,
        "git log --all --format=%s; git reflog; git branch -a; git tag; git remote; git stash list; git fsck --lost-found --no-progress 2>/dev/null | grep -v HEAD; ls .git/ORIG_HEAD .git/FETCH_HEAD 2>/dev/null",
    ).output
    assert "nobody may see" not in seen and "v2.0" not in seen and "future" not in seen and "dangling" not in seen
    blobs = run(
        sandbox,
        "git cat-file --batch-all-objects --batch-check='%(objecttype) %(objectname)' | while read kind name; do [ $kind = blob ] && git cat-file -p $name; done",
    ).output
    assert "numbers[1:]" in blobs and "return sum(numbers)\n" not in blobs
    if base := bench.dataset.base_commit(bench.task):
        assert (
            run(sandbox, f"git rev-parse --verify {base}^{{commit}} && git diff --stat {base} HEAD").output
            == f"{base}\n"
        )
    assert run(sandbox, "git status --porcelain").output == ""


@pytest.mark.parametrize(
    "name, word", [("r2e_a", WORD), ("r2e_b", "test_never"), ("swesmith", WORD), ("swebench_new", WORD)]
)
def test_hidden_tests_cannot_be_read_from_the_agents_sandbox(grading_bench, name, word):
    sandbox = grading_bench(name).agents()
    found = run(
        sandbox,
        f"grep -rlF --devices=skip {shlex.quote(word)} / --exclude-dir=proc --exclude-dir=sys 2>/dev/null; find / -xdev -name 'r2e_tests*' -o -xdev -name run_tests.sh 2>/dev/null",
    ).output
    assert found == "", found
    assert run(sandbox, "cat /proc/self/mountinfo | grep -c made/images || true").output in (
        "0\n",
        "1\n",
    )  # the root itself


def test_in_the_same_sandbox_what_was_installed_stays_and_the_rest_goes(grading_bench):
    for name in ("swesmith", "r2e_a"):
        bench = grading_bench(name)
        sandbox, place = bench.sandbox(), AgentSandbox()
        place.prepare(bench.dataset, bench.task, sandbox)
        assert (
            run(
                sandbox,
                f"{SOLVE}; echo 1 >/usr/local/installed; echo junk >junk.py; (sleep 1000 & ) ; git commit -qam mine || git -c user.name=a -c user.email=a@b commit -qam mine",
            ).returncode
            == 0
        )
        found = bench.grade(PATCH, sandbox=sandbox, place=place)
        assert found.resolved, found.log
        assert run(sandbox, "cat /usr/local/installed; ls junk.py; pgrep sleep").output.startswith(
            "1\nls: cannot access"
        )


def test_what_lies_in_the_image_untracked_is_part_of_the_base(grading_bench):
    swesmith = grading_bench("swesmith")

    def with_litter():
        sandbox = swesmith.sandbox()
        assert (
            run(
                sandbox,
                "echo made >made.txt; mkdir -p calc.egg-info build; echo x >calc.egg-info/x; echo ignored >build/y",
            ).returncode
            == 0
        )
        return sandbox

    agents = with_litter()
    repository.prepare(swesmith.dataset, swesmith.task, agents)
    run(agents, f"{SOLVE}; echo mine >mine.txt")
    patch = repository.collect_diff(agents)
    assert "made.txt" not in patch and "egg-info" not in patch and "mine.txt" in patch
    assert swesmith.grade(patch, sandbox=with_litter()).resolved


def test_a_reward_command_stands_for_the_tests(grading_bench, tmp_path):
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


def test_what_is_printed_is_not_believed_where_pytest_reports(grading_bench):
    bench = grading_bench("swebench_new")
    names = [*bench.task.fail_to_pass, *bench.task.pass_to_pass]
    fake = hostile.PRINT_AND_EXIT.format(text="".join(f"PASSED {name}\n" for name in names).encode())
    found = bench.grade(bench.patch(f"printf %s {shlex.quote(fake)} >>calc/core.py"))
    assert not found.resolved and set(found.tests.values()) == {"MISSING"} and "PASSED tests/test_core.py" in found.log


def test_what_is_printed_is_not_believed_where_unittest_reports(grading_bench):
    django = grading_bench("swebench_old")
    fake = "import os\n" + "".join(
        f"os.write(1, {f'{name} ... ok{chr(10)}'.encode()!r})\n"
        for name in (*django.task.fail_to_pass, *django.task.pass_to_pass)
    )
    forged = django.grade(django.patch(f"printf %s {shlex.quote(fake + 'os._exit(0)')} >>calc/core.py"))
    assert "... ok" in forged.log and not forged.resolved
    assert django.grade(django.patch(SOLVE)).resolved


@pytest.mark.parametrize(
    "parser, ids", [("pytest", F2P), ("unittest", ["test_total (test_it.It)"]), ("parse_log_pytest_v2", F2P)]
)
def test_a_script_may_name_its_parser(grading_bench, parser, ids):
    script = grading_bench("eval_script")
    runs = {
        "unittest": "cat >/tmp/test_it.py <<'END'\nimport unittest\nfrom calc.core import total\nclass It(unittest.TestCase):\n    def test_total(self):\n        assert total([1, 2]) == 3\nEND\nPYTHONPATH=/tmp:/testbed:$PYTHONPATH python3 -m unittest -v test_it",
    }
    pytest_run = f"cat >tests/test_core.py <<'END'\n{NEW_TESTS}END\npython3 -m pytest -rA tests/test_core.py"
    row = script.row | {"eval_script": runs.get(parser, pytest_run), "log_parser": parser, "FAIL_TO_PASS": ids}
    assert script.dataset.reason_ungradable(row) == ""
    task = script.dataset.task(row)
    assert grade(script.dataset, task, PATCH, script.sandbox(), FreshSandbox(), CONFIG).resolved
    lost = grade(script.dataset, task, "", script.sandbox(), FreshSandbox(), CONFIG)
    assert not lost.resolved and set(lost.tests.values()) <= {"FAILED", "MISSING"}


def test_a_broken_environment_is_a_failure_by_the_harness_rule(grading_bench):
    bench = grading_bench("swebench_new")
    broken = replace(bench.task, row=bench.task.row | {"eval_script": "echo 'bash: fork: Cannot allocate memory'"})
    with pytest.raises(GraderError, match=r"a broken environment \(out_of_memory\)"):
        grade(bench.dataset, broken, PATCH, bench.sandbox(), FreshSandbox(), CONFIG)
    silent = replace(bench.task, row=bench.task.row | {"eval_script": "echo nothing"})
    assert not grade(bench.dataset, silent, PATCH, bench.sandbox(), FreshSandbox(), CONFIG).resolved


def test_every_part_of_a_row_survives_the_way_to_the_worker(grading_bench):
    for name in ("r2e_a", "swebench_old", "eval_script"):
        task = grading_bench(name).task
        assert (
            Task.from_dict(task.as_dict()) == task
            and task.problem_statement == STATEMENT
            and load_dataset(task.dataset).test_script(task)
        )
