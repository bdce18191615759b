"""Test patches: their way into a script, and the check that they fit the base."""

import subprocess
from dataclasses import replace

import pytest

from agent_server.grading import changes, repository
from agent_server.grading.datasets.row_test_patch import DELIMITER, applied_patches, apply_command
from client.errors import GraderError
from tests.agent_server.grading.grading_bench import SOLVE, run
from tests.agent_server.grading.sample_images import git

# Bytes before and after.
CHANGES = {
    "blank lines of context at the end": (b"a\n\n\n\n", b"b\n\n\n\n"),
    "windows line ends": (b"a\r\nb\r\n\r\n", b"a\r\nc\r\n\r\n"),
    "mixed line ends": (b"a\r\nb\n\rc\n", b"a\nb\r\n\rc\n"),
    "binary": (bytes(range(256)), bytes(reversed(range(256)))),
    "a new binary file": (None, b"\x89PNG\0\1"),
    "no last newline": (b"a\nb", b"a\nc"),
    "last newline added": (b"a\nb", b"a\nb\n"),
    "removed": (b"a\n", None),
    "the delimiter": (b"a\n", f"a\n{DELIMITER}\n".encode()),
    "shell": (b"a\n", b"$(touch /tmp/x) `x` \\ ' \" $HOME\n"),
    "latin": (b"a\n", "é\n".encode()),
    "form feed": (b"a\n\x0c\nb\n\x1c\n", b"a\n\x0c\nc\n\x1c\n"),
}


def write(path, content):
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)


def changed_repository(folder, before, after):
    """A repository with the file as it was before, and the patch."""
    git(folder, "init", "-q")
    (folder / "other").write_text("x\n")
    write(folder / "file", before)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "before")
    write(folder / "file", after)
    git(folder, "add", "-A")
    patch = subprocess.run(["git", "diff", "--cached", "--binary"], cwd=folder, check=True, capture_output=True)
    git(folder, "reset", "-q", "--hard")
    return patch.stdout.decode()


def run_script(folder, script):
    (folder.parent / "script.sh").write_bytes(script.encode())
    return subprocess.run(["bash", folder.parent / "script.sh"], cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("before, after", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("options", ["", "--recount --whitespace=nowarn"])
@pytest.mark.parametrize("without_last_newline", [False, True])
def test_a_patch_reaches_git_byte_for_byte(tmp_path, before, after, without_last_newline, options):
    folder = tmp_path / "repository"
    folder.mkdir()
    patch = changed_repository(folder, before, after)
    if without_last_newline and not (options and "GIT binary" in patch):
        patch = patch.removesuffix("\n")
    script = f"{apply_command(patch, options)}\necho applied: $?\n"
    done = run_script(folder, script)
    assert done.stdout == "applied: 0\n", done.stderr
    assert ((folder / "file").read_bytes() if (folder / "file").exists() else None) == after
    assert [found.rstrip("\n") for found in applied_patches(script)] == [patch.rstrip("\n")]


def test_a_delimiter_is_no_line_of_the_patch(tmp_path):
    """A deleted file's line can be the delimiter only with git's prefix, but a line that a patch ends with need not."""
    command = apply_command(f"diff --git a/x b/x\n{DELIMITER}\n{DELIMITER}0\n")
    assert command.splitlines()[0].endswith(f"'{DELIMITER}00'") and command.splitlines()[-1] == f"{DELIMITER}00"


def test_patches_are_found_in_scripts_only_where_git_applies_them():
    script = (
        "cat <<'END' >x\nnot a patch\nEND\n# git apply <<'X'\ngit -C /testbed apply -v - <<'EOF_1'\none\nEOF_1\n"
        "git apply --index <<E\ntwo\nE\ngit apply other.patch\n"
    )
    assert list(applied_patches(script)) == ["one\n", "two\n"]


@pytest.mark.parametrize("name", ["swebench_old", "swebench_new"])
def test_a_patch_that_fits_changes_nothing(grading_bench, name):
    bench = grading_bench(name)
    sandbox = bench.sandbox()
    state = "git status --porcelain; ls -A /tmp; sha1sum .git/index"
    before = run(sandbox, state).output
    bench.dataset.check_base(bench.task, sandbox)
    assert run(sandbox, state).output == before


@pytest.mark.parametrize("name, column", [("swebench_old", "test_patch"), ("swebench_new", "eval_script")])
def test_a_patch_that_does_not_fit_is_the_rows_fault(grading_bench, name, column):
    bench = grading_bench(name)
    other = bench.task.row[column].replace(" import mean\n", " import median\n")
    assert other != bench.task.row[column]
    task = bench.dataset.task(bench.row | {column: other})
    with pytest.raises(GraderError, match=r"(?s)its test patch must apply to its base commit \w{40}.*drop the row"):
        bench.dataset.check_base(task, bench.sandbox())


def test_a_base_that_the_image_lacks_is_the_rows_fault(grading_bench):
    bench = grading_bench("swebench_old")
    task = replace(bench.task, row=bench.task.row | {"base_commit": "0" * 40})
    with pytest.raises(GraderError, match="0000"):
        bench.dataset.check_base(task, bench.sandbox())


APPLY = "git apply <<'END'\n--- a/words.txt\n+++ b/words.txt\n@@ -1 +1 @@\n-old\n+new\nEND\n"
CHECK = "set -x\ngrep -q 'return sum(numbers)' calc/core.py\nstatus=$?\necho ran\nexit $status\n"


@pytest.mark.parametrize(
    "script, ends_there",
    [
        (f"{APPLY}{CHECK}", True),
        (f"cd /testbed\ncd . && {APPLY}{CHECK}", True),
        (f"set -uxo pipefail\n{APPLY.replace('git apply', 'git -C . apply -v -')}{CHECK}", True),
        (f"printf -- '--- a/words.txt\\n+++ b/words.txt\\n@@ -1 +1 @@\\n-old\\n+new\\n' | patch -p1 -f\n{CHECK}", True),
        (f"{APPLY.replace('git apply', 'git apply --check')}{CHECK}", False),
        (APPLY.replace("<<'END'", "<<'END' || true") + CHECK, False),
        (f"if ! {APPLY}then echo no; fi\n{CHECK}", False),
    ],
    ids=["plain", "in a list", "with options", "patch", "a check", "ignored", "looked at"],
)  # fmt: skip
def test_a_script_ends_where_its_patch_does_not_fit_the_submission(grading_bench, script, ends_there):
    """Unless it looks at the status itself. The file of the patch is none that is protected."""
    bench = grading_bench("eval_script")
    bench.task = replace(bench.task, row=bench.task.row | {"eval_script": script})

    def graded(edit):
        agents, fresh = bench.sandbox(), bench.sandbox()
        for sandbox in (agents, fresh):
            assert run(sandbox, "echo old >words.txt; git add -A").returncode == 0
        repository.prepare(bench.dataset, bench.task, agents)
        assert run(agents, edit).returncode == 0
        return bench.grade(changes.collect_diff(agents), sandbox=fresh)

    fitting, damaged = graded(SOLVE), graded(f"{SOLVE}; echo mine >words.txt")
    assert fitting.resolved and "\nran\n" in fitting.log, fitting.log
    assert damaged.resolved is not ends_there and ("\nran\n" in damaged.log) is not ends_there, damaged.log
    assert ("a patch of the row does not apply to the submission: " in damaged.log) is ends_there


@pytest.mark.parametrize("name", ["swebench_old", "swebench_new"])
def test_no_old_test_runs_where_the_test_patch_does_not_apply(grading_bench, name):
    """Its file is protected, so only a row without protection can lose it: the script alone is run here."""
    bench = grading_bench(name)
    sandbox = bench.sandbox()
    assert (
        run(sandbox, "rm -f $(git ls-files | grep /test); echo 'def f(): pass' >calc/new.py; git add -A").returncode
        == 0
    )
    task = replace(
        bench.task,
        row=bench.task.row | {"eval_script": bench.task.row["eval_script"].replace("git checkout", ": git checkout")},
    )
    sandbox.write_file("/tmp/script", bench.dataset.test_script(task))
    done = run(sandbox, "bash /tmp/script")
    assert done.returncode == 1 and "Start Test Output" not in done.output, done.output
    assert "a patch of the row does not apply to the submission: git apply" in done.output
