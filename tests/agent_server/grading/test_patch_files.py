"""Names of the files in a diff, held against git's own list."""

import subprocess
import time

import pytest

from agent_server.grading.patch_files import FileChange, file_changes
from agent_server.grading.patches import paths_in
from tests.agent_server.grading.sample_images import git

NAMES = [
    "plain.py", "tests/dát.py", "a b/c d.py", " lead", "trail ", "x b/y.py", "a/a b/a/a", 'quote".py', "back\\slash.py",
    "tab\t.py", "line\nfeed.py", "return\r.py", "bell\a\b\v\f\x7f.py", "\udcff latin \udce9.py", "日本/語.py",
    "-dash.py", "@@ -1 +1 @@", "+++ b/x", "é b/é", "~/$HOME", "new file mode 100644",
]  # fmt: skip


def change(folder, name, number):
    """Change, add or remove the file, or only its mode."""
    path = folder / name
    if number % 5 == 0:
        path.unlink()
    elif number % 5 == 1:
        path.chmod(0o755)
    elif number % 5 == 2:
        path.write_bytes(b"\0binary")
    else:
        path.write_text("--- a/no\n+++ b/no\nnew\n\ndiff --git a/no b/no\n")
        (path.parent / f"{path.name}.new").write_text("")


@pytest.mark.parametrize("options", [(), ("--no-renames",), ("-c", "core.quotePath=false"), ("--no-prefix",)])
@pytest.mark.parametrize("shift", range(5))
def test_every_name_that_git_can_write(tmp_path, options, shift):
    git(tmp_path, "init", "-q")
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{name!r}\n\n--- a/old\n+++ b/old\n\n\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "old")
    for number, name in enumerate(NAMES):
        change(tmp_path, name, number + shift)
    git(tmp_path, "add", "-A")
    settings = options if options[:1] == ("-c",) else ()
    prefix = ("--src-prefix=one/", "--dst-prefix=two/") if options == ("--no-prefix",) else ()
    switches = (*(option for option in options if option == "--no-renames"), *prefix)
    shown = subprocess.run(
        ["git", *settings, "diff", "--cached", "--binary", *switches], cwd=tmp_path, check=True, capture_output=True
    ).stdout.decode(errors="surrogateescape")
    listed = subprocess.run(
        ["git", "diff", "--cached", "--name-only", "--no-renames", "-z"],
        cwd=tmp_path, check=True, capture_output=True,
    ).stdout.decode(errors="surrogateescape")  # fmt: skip
    assert paths_in(shown) == tuple(sorted(listed.split("\0")[:-1]))


def test_renames_have_both_names(tmp_path):
    git(tmp_path, "init", "-q")
    for number in range(3):
        (tmp_path / f"é {number}.py").write_text("".join(f"{number * 100 + line}\n" for line in range(50)))
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "old")
    git(tmp_path, "mv", "é 0.py", "plain.py")
    (tmp_path / "b b").mkdir()
    for number in (1, 2):
        git(tmp_path, "mv", f"é {number}.py", f'b b/{number}".py')
    (tmp_path / 'b b/2".py').write_text((tmp_path / 'b b/2".py').read_text() + "more\n")
    git(tmp_path, "add", "-A")
    shown = git(tmp_path, "diff", "--cached", "-M")
    assert {(change.old, change.new) for change in file_changes(shown)} == {
        ("é 0.py", "plain.py"),
        ("é 1.py", 'b b/1".py'),
        ("é 2.py", 'b b/2".py'),
    }


@pytest.mark.parametrize(
    "patch, changes",
    [
        ("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n same\n--- a/no\n+++ b/no\n", [FileChange("x", "x")]),
        ("--- a/x\t2020-01-01\n+++ b/x\t2020-01-02\n@@ -1 +1 @@\n-a\n+b\n--- a/y\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n",
         [FileChange("x", "x"), FileChange("y", "")]),
        ("--- /dev/null\r\n+++ b/x y\r\n@@ -0,0 +1 @@\r\n+a\r\n", [FileChange("", "x y")]),
        ("diff --git a/x b/y/z.py\n--- a/x\n", [FileChange("x", "y/z.py")]),
        ('diff --git "a/\\056git/x" "b/\\056git/x"\n', [FileChange(".git/x", ".git/x")]),
        ("I have fixed it.", []),
        ("", []),
    ],
)  # fmt: skip
def test_diffs_as_others_write_them(patch, changes):
    assert file_changes(patch) == changes


LONG = {
    "backslashes": 'diff --git "' + "\\" * 300_000,
    "quotes": 'diff --git a "' * 60_000,
    "prefixes": "diff --git " + " b/" * 300_000,
    "hunks": "@@ -1,999999999 +1 @@\n" * 30_000,
    "renames": "rename from \n" * 60_000,
    "files": "diff --git a/x b/x\n" * 60_000,
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_no_text_takes_long_to_read(text):
    started = time.process_time()
    file_changes(text)
    assert time.process_time() - started < 3.0
