"""Patches: the ladder of application, statistics, and what no patch may change."""

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_server.grading.patches import MAX_PARSED, is_patch, statistics
from tests.agent_server.grading.grading_bench import HARMLESS, PATCH, SOLVE, graded_in_agent_sandbox, run


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
def test_each_step_of_the_ladder(grading_bench, patch, step):
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
def test_a_patch_that_does_not_apply_is_graded_zero_with_its_status(grading_bench, text, status):
    found = grading_bench("swesmith").grade(text)
    assert (found.resolved, found.status, found.tests) == (False, status, {}) and found.log


def test_statistics_and_is_patch():
    assert statistics(PATCH).as_dict() == {"files": 1, "added_lines": 1, "removed_lines": 1, "bytes": len(PATCH)}
    assert is_patch(PATCH) and is_patch("GIT binary patch\n") and is_patch("diff --git a/x b/x\nold mode 100644\n")
    assert not is_patch("I have fixed it, see @@ -1 +1 @@ above.") and not is_patch("")


def counts(patch: str) -> tuple[int, int, int]:
    found = statistics(patch)
    return found.files, found.added_lines, found.removed_lines


def test_lines_that_look_like_headers_are_lines():
    """`++ x` added and `-- x` removed are written like the headers of files."""
    patch = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n same\n--- old\n+++ new\n"
    assert counts(patch) == (1, 1, 1)


def test_changes_without_hunks_are_files():
    mode = "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n"
    rename = "diff --git a/y b/z\nsimilarity index 100%\nrename from y\nrename to z\n"
    assert counts(mode + rename) == (2, 0, 0)


def test_a_patch_with_wrong_counts_is_counted_by_its_lines():
    assert counts(PATCH.replace("@@ -1,5 +1,5 @@", "@@ -1,9 +1,7 @@")) == (1, 1, 1)
    assert counts("@@ -1 +1 @@\n-a\n+b\n") == (0, 1, 1)
    assert counts("I have fixed it.") == (0, 0, 0)
    assert counts(PATCH.replace("-1,5", f"-{'9' * 5000},5")) == (1, 1, 1)  # more digits than int() takes


HOSTILE_HEADERS = {
    "schemes": "diff --git " + "://" * 100_000,
    "one long line": "Binary files " + " and " * 100_000,
    "many lines": ("Binary files " + "a and " * 160 + "\n") * 4000,
    "blank lines": f"{PATCH}" + "\n" * 2_000_000,
    "files": "diff --git a/x b/x\n" * 200_000,
}


@pytest.mark.parametrize("header", HOSTILE_HEADERS.values(), ids=HOSTILE_HEADERS)
def test_no_patch_takes_long_or_much_memory_to_count(header):
    """unidiff alone takes 8 to 25 s for some of these, and hundreds of megabytes."""
    patch = f"{header}\n{PATCH}"
    started = time.process_time()
    tracemalloc.start()
    try:
        statistics(patch)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 5.0 and peak < 100 * 2**20


def test_a_patch_that_is_not_parsed_is_counted_by_its_lines():
    for header in ("diff --git " + "://" * 100_000, "Binary files " + " and " * 100_000, "x" * MAX_PARSED):
        assert counts(f"{header}\n{PATCH}") == (1, 1, 1)


LINES = st.sampled_from([
    "diff --git a/x b/x", "--- a/x", "+++ b/x", "--- /dev/null", "+++ /dev/null", "@@ -1 +1 @@", "@@ -1,2 +0,0 @@",
    "+a", "-a", " a", "", "\\ No newline at end of file", "new file mode 100644", "deleted file mode 100644",
    "rename from x", "rename to y", "Binary files a/x and b/x differ", "GIT binary patch", "literal 3",
    "index 1..2 100644", "\r", "+++ x", "--- x",
])  # fmt: skip


@given(st.text() | st.lists(LINES | st.text()).map("\n".join))
def test_statistics_never_raise(text):
    assert min(statistics(text).as_dict().values()) >= 0


def test_files_of_a_large_binary_patch_are_counted():
    """A binary file has no `+++` line."""
    binary = "diff --git a/x b/x\nindex 1..2 100644\nGIT binary patch\nliteral 1\nIcmZ\n\n"
    assert statistics(binary * 3).files == 3
    assert statistics(binary * 3 + "x" * MAX_PARSED).files == 3


def test_a_patch_of_git_itself_is_refused(grading_bench):
    hook = (
        "diff --git a/.git/hooks/post-checkout b/.git/hooks/post-checkout\nnew file mode "
        "100755\n--- /dev/null\n+++ b/.git/hooks/post-checkout\n@@ -0,0 +1 @@\n+echo hi\n"
    )
    found = grading_bench("swesmith").grade(hook)
    assert (found.resolved, found.status, found.log) == (False, "patch_failed", "the patch changes files of .git")


QUOTED = """diff --git "a/\\056git/hooks/post-checkout" "b/\\056git/hooks/post-checkout"
new file mode 100755
--- /dev/null
+++ "b/\\056git/hooks/post-checkout"
@@ -0,0 +1,2 @@
+#!/bin/sh
+touch /tmp/was-here
"""


INDEX = (
    "Index: .git/description\n@@ -1 +1 @@\n-Unnamed repository; edit this file 'description' "
    "to name the repository.\n+evil\n"
)


ED = "@@ nothing\n--- calc/core.py\n+++ calc/core.py\n0a\nx\n.\n!touch /tmp/was-here\n"


@pytest.mark.parametrize("patch", [QUOTED, INDEX, ED], ids=["quoted", "index line", "ed"])
def test_no_spelling_of_a_patch_changes_git_or_runs_a_command(beside_bench, patch):
    sandbox = beside_bench.sandbox()
    assert not beside_bench.grade(patch, sandbox=sandbox).resolved
    assert (
        run(sandbox, "ls /tmp/was-here .git/hooks/post-checkout 2>/dev/null; grep -c evil .git/description").output
        == "0\n"
    )


def test_a_lone_surrogate_is_graded(grading_bench):
    found = grading_bench("swesmith").grade(HARMLESS.replace("calc.", "calc\ud800."))
    assert not found.resolved


def test_a_patch_larger_than_the_sandbox_is_graded_zero(grading_bench):
    swesmith = grading_bench("swesmith")
    agents = swesmith.agents()
    bomb = run(agents, "truncate -s 200M big; git add big; git diff --cached --binary").output
    assert "GIT binary patch" in bomb and len(bomb) < 2**21
    many = "".join(bomb.replace("/big", f"/big{number}") for number in range(10))
    found = swesmith.grade(many)
    assert not found.resolved


def test_a_patch_of_installed_packages_is_refused(grading_bench):
    swesmith = grading_bench("swesmith")
    fresh = swesmith.sandbox()
    assert (
        run(
            fresh, "mkdir -p env/lib/site-packages/_pytest && echo 1 >env/lib/site-packages/_pytest/runner.py"
        ).returncode
        == 0
    )
    evil = (
        "--- a/env/lib/site-packages/_pytest/runner.py\n+++ b/env/lib/site-packages/_pytest/runner.py\n@"
        "@ -1 +1 @@\n-1\n+2\n"
    )
    found = swesmith.grade(swesmith.patch(SOLVE) + evil, sandbox=fresh)
    assert (found.resolved, found.status) == (False, "patch_failed") and "_pytest/runner.py" in found.log


def test_a_fix_may_come_with_any_file_names(grading_bench):
    swesmith = grading_bench("swesmith")
    edit = (
        f"{SOLVE}; mkdir -p 'a b' && echo x >'a b/c d.txt' && echo x >\"$(printf 'new\\nline')\" "
        "&& echo x >-dash && echo x >é && printf 'a\\r\\nb\\r\\n' >dos.txt && ln -s nowhere "
        "link && head -c 100000 /dev/urandom >random.bin && touch empty"
    )
    assert swesmith.grade(swesmith.patch(edit)).resolved
    assert graded_in_agent_sandbox(swesmith, edit).resolved


def test_a_patch_with_windows_line_ends_counts(grading_bench):
    swesmith = grading_bench("swesmith")
    assert swesmith.grade(swesmith.patch(SOLVE).replace("\n", "\r\n")).resolved
