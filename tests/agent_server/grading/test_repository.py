"""The agent's repository: what it reveals, and what of the agent's work becomes the submission."""

import shlex
from dataclasses import replace

import pytest

from agent_server.grading import changes, repository
from tests.agent_server.grading.grading_bench import IDENTITY, SOLVE, graded_in_agent_sandbox, run

WORD = "two of them - a: b"


@pytest.mark.parametrize("name", ["swebench_new", "swesmith", "r2e_a"])
def test_the_future_is_not_in_the_agents_repository(sample_rows, grading_bench, name):
    bench = grading_bench(name)
    sandbox = bench.agents()
    seen = run(
        sandbox,
        (
            "git log --all --format=%s; git reflog; git branch -a; git tag; git remote; git stash "
            "list; git fsck --lost-found --no-progress 2>/dev/null | grep -v HEAD; ls .git/ORIG_HEAD "
            ".git/FETCH_HEAD 2>/dev/null"
        ),
    ).output
    assert "nobody may see" not in seen and "v2.0" not in seen and "future" not in seen and "dangling" not in seen
    blobs = run(
        sandbox,
        (
            "git cat-file --batch-all-objects --batch-check='%(objecttype) %(objectname)' | while "
            "read kind name; do [ $kind = blob ] && git cat-file -p $name; done"
        ),
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
        (
            f"grep -rlF --devices=skip {shlex.quote(word)} / --exclude-dir=proc --exclude-dir=sys "
            "2>/dev/null; find / -xdev -name 'r2e_tests*' -o -xdev -name run_tests.sh 2>/dev/null"
        ),
    ).output
    assert found == "", found
    assert run(sandbox, "cat /proc/self/mountinfo | grep -c made/images || true").output in (
        "0\n",
        "1\n",
    )  # the root itself


def test_files_that_reveal_the_commit_are_removed_from_r2e_images(grading_bench):
    r2e = grading_bench("r2e_a")
    agents, fresh = r2e.sandbox(), r2e.sandbox()
    for sandbox in (agents, fresh):
        assert (
            run(
                sandbox,
                (
                    "for file in parsed_commit.json /expected_test_output.json execution_result.json "
                    "/root/modified_files.json; do mkdir -p $(dirname $file); echo the-commits-fix >$file; "
                    "done; git add -f parsed_commit.json"
                ),
            ).returncode
            == 0
        )
    repository.prepare(r2e.dataset, r2e.task, agents)
    look = (
        "grep -rl the-commits-fix / --exclude-dir=proc --exclude-dir=sys --devices=skip 2>/dev/null; "
        "git log --all -p | grep the-commits-fix"
    )
    assert run(agents, look).output == ""
    run(agents, SOLVE)
    assert r2e.grade(changes.collect_diff(agents), sandbox=fresh).resolved
    assert "parsed_commit" not in run(fresh, "ls / /root /testbed").output


def test_compiled_files_are_removed(grading_bench):
    swesmith = grading_bench("swesmith")
    sandbox = swesmith.sandbox()
    assert (
        run(
            sandbox,
            "python3 -m compileall -q . && python3 -m pytest -q tests; ls tests/__pycache__/test_total* .pytest_cache",
        ).returncode
        == 0
    )
    repository.prepare(swesmith.dataset, swesmith.task, sandbox)
    assert (
        run(sandbox, "find . -name '*.pyc'; ls .pytest_cache 2>/dev/null; grep -rl 'two of them' . 2>/dev/null").output
        == ""
    )


def test_a_bug_may_be_a_deleted_file(grading_bench):
    swesmith = grading_bench("swesmith")
    gone = (
        "diff --git a/README.md b/README.md\ndeleted file mode 100644\n--- a/README.md\n+++ "
        "/dev/null\n@@ -1 +0,0 @@\n-calc\n"
    )
    swesmith.task = replace(swesmith.task, row=swesmith.task.row | {"patch": swesmith.task.row["patch"] + gone})
    assert swesmith.grade(swesmith.patch(SOLVE)).resolved


def test_untracked_files_of_the_image_are_part_of_the_base(grading_bench):
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
    patch = changes.collect_diff(agents)
    assert "made.txt" not in patch and "egg-info" not in patch and "mine.txt" in patch
    assert swesmith.grade(patch, sandbox=with_litter()).resolved


def test_commits_and_git_settings_do_not_lose_the_work(grading_bench):
    swesmith = grading_bench("swesmith")
    for edit in (
        f"{IDENTITY}; {SOLVE}; git commit -qam mine",
        f"{IDENTITY}; git checkout -qb mine; {SOLVE}; git commit -qam mine; git checkout -q --detach",
        f"{SOLVE}; touch .git/index.lock",
        (
            f"{SOLVE}; git config diff.noprefix true; git config color.ui always; git config diff.external "
            "false; git config diff.context 0"
        ),
        f"{SOLVE}; git init -q scratch",
        f"{SOLVE}; git init -q scratch; cd scratch; {IDENTITY}; echo x >x; git add -A; git commit -qm x",
        f"{SOLVE}; printf 'caf\\xe9\\n' >notes.txt",
        f"{SOLVE}; mkfifo pipe",
    ):
        patch = swesmith.patch(edit)
        found = swesmith.grade(patch)
        assert found.resolved, (edit, found.status, found.log, patch)
        assert graded_in_agent_sandbox(swesmith, edit).resolved, edit


def test_a_fix_in_a_file_of_another_encoding_counts(grading_bench):
    swesmith = grading_bench("swesmith")
    agents, fresh = swesmith.sandbox(), swesmith.sandbox()
    for sandbox in (agents, fresh):
        assert run(sandbox, "printf 'caf\\xe9\\nth\\xe9\\n' >calc/words.txt; git add -A").returncode == 0
    repository.prepare(swesmith.dataset, swesmith.task, agents)
    assert run(agents, f"{SOLVE}; printf 'lait\\n' >>calc/words.txt").returncode == 0
    found = swesmith.grade(changes.collect_diff(agents), sandbox=fresh)
    assert found.resolved, found.log
    assert run(fresh, "printf 'caf\\xe9\\nth\\xe9\\nlait\\n' | cmp - calc/words.txt").returncode == 0
