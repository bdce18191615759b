"""Snapshots of the protected files, and their restoration after the patch.

Changes are found on the file system, before and after the patch, and not in the patch's text, which can be written in
many ways.
Invariant: under `strip`, protected files are byte for byte those of the row before a test runs; changes are reported.
Names are handled as bytes (surrogateescape), since a name may hold anything but NUL.
"""

import base64
import binascii
import gzip
import secrets
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from agent_server.grading.datasets.base import REPOSITORY, Dataset, run_checked
from agent_server.grading.protected_paths import COMPILED, find_command, folders_above, row_tests
from agent_server.grading.sandbox_files import read_text
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task
from client.errors import GraderError

Policy = Literal["strip", "reject", "allow"]
BACKUP, PATCHED = "/tmp/.protected", "/tmp/.patched"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of each protected file by path: kind, mode and digest, or a link's target. `tests`: the files of the
    row's tests, which are among them."""

    states: dict[str, str]
    tests: tuple[str, ...]

    def changed(self, later: "Snapshot") -> tuple[str, ...]:
        """Paths whose state differs in `later`, sorted."""
        paths = self.states.keys() | later.states.keys()
        return tuple(sorted(path for path in paths if self.states.get(path) != later.states.get(path)))


def snapshot(dataset: Dataset, task: Task, sandbox: Sandbox, tests: tuple[str, ...] | None = None) -> Snapshot:
    """The protected files as they are now. `tests`: of the snapshot before the submission, which may have moved them.
    Raises GraderError."""
    tests = row_tests(dataset, task, sandbox) if tests is None else tests
    return _snapshot(task, sandbox, tests, find_command(tests), "")


def back_up(dataset: Dataset, task: Task, sandbox: Sandbox) -> Snapshot:
    """The protected files as they are now, copied for `restore`. Raises GraderError."""
    tests = row_tests(dataset, task, sandbox)
    find = find_command(tests)
    copy = (
        f"; {find} -print0 >{BACKUP}.list && tar --no-recursion --null --no-unquote -cf {BACKUP}.tar -T {BACKUP}.list"
    )
    return _snapshot(task, sandbox, tests, find, copy)


def _snapshot(task: Task, sandbox: Sandbox, tests: tuple[str, ...], find: str, copy: str) -> Snapshot:
    # Links are not followed: one may lead to a file without end. sha1sum's records come last, after an empty one.
    script = (
        f"{{ {find} -printf '%p\\0%y%m %l\\0'; printf '\\0'; {find} -type f -print0 | xargs -0 -r sha1sum -z --; }}"
        f" 2>/dev/null | gzip -c | base64 -w0{copy}"
    )
    output = run_checked(sandbox, task, script, cwd=REPOSITORY)
    try:
        records = gzip.decompress(base64.b64decode(output)).decode(errors="surrogateescape").split("\0")
    except (OSError, EOFError, zlib.error, binascii.Error) as failure:
        raise GraderError(
            f"row {task.task_id}: its image must have find, sha1sum, gzip and base64 to list the protected files;"
            f" the list cannot be read: {failure}"
        ) from failure
    end = next((number for number in range(0, len(records), 2) if not records[number]), len(records))
    states = dict(zip(records[:end:2], records[1:end:2], strict=True))
    for record in records[end + 1 :]:
        digest, _, path = record.partition("  ")
        if path:
            states[path] = f"{states.get(path, '')}{digest}"
    return Snapshot(states, tests)


def restore(task: Task, sandbox: Sandbox, before: Snapshot, changed: Iterable[str]) -> None:
    """Restore these files from the backup, and remove those that were not there. Raises GraderError."""
    paths = list(changed)
    lists = {
        "folders": sorted({folder for path in paths for folder in folders_above(path)}, key=len),
        "changed": paths,
        "back": [path for path in paths if path in before.states],
    }
    for name, listed in lists.items():
        sandbox.write_file(f"{BACKUP}.{name}", "".join(f"{path}\0" for path in listed))
    # A link or file in a folder's place must not redirect the restored files or block them.
    script = f"""
while IFS= read -rd '' folder; do
  if [ -L "$folder" ] || [ ! -d "$folder" ]; then rm -rf -- "$folder"; fi
done <{BACKUP}.folders
xargs -0 -r rm -rf -- <{BACKUP}.changed || exit 1
[ ! -s {BACKUP}.back ] || tar --null --no-unquote -xf {BACKUP}.tar -T {BACKUP}.back  # without names: all
"""
    run_checked(sandbox, task, script, cwd=REPOSITORY)


def remove(task: Task, sandbox: Sandbox, paths: Iterable[str]) -> None:
    """Remove these files. Raises GraderError."""
    sandbox.write_file(f"{BACKUP}.changed", "".join(f"{path}\0" for path in paths))
    run_checked(sandbox, task, f"xargs -0 -r rm -rf -- <{BACKUP}.changed", cwd=REPOSITORY)


def back_up_patched(task: Task, sandbox: Sandbox, patch: str) -> None:
    """Copy the files that the patch at this path names, for `restore_patched`. A patch that git cannot read names
    none. Raises GraderError."""
    script = f"""
git apply --numstat -z --recount {patch} 2>/dev/null | cut -z -f3- >{PATCHED}.names
while IFS= read -rd '' path; do
  if [ -e "$path" ] || [ -L "$path" ]; then printf './%s\\0' "$path"; fi
done <{PATCHED}.names >{PATCHED}.list
tar --no-recursion --null --no-unquote -cf {PATCHED}.tar -T {PATCHED}.list
"""
    run_checked(sandbox, task, script, cwd=REPOSITORY)


def restore_patched(task: Task, sandbox: Sandbox, paths: Iterable[str]) -> None:
    """Restore files that the submission changed and that are not protected by name; remove those that it made. Raises
    GraderError where one was not named by the patch in git's form."""
    sandbox.write_file(f"{PATCHED}.changed", "".join(f"./{path}\0" for path in paths))
    script = f"""
sed -z 's|^|./|' {PATCHED}.names | sort -z >{PATCHED}.known
if sort -z {PATCHED}.changed | comm -z -23 - {PATCHED}.known | grep -qz .
then echo 'a file is not named by the patch'; exit 1; fi
xargs -0 -r rm -rf -- <{PATCHED}.changed
sort -z {PATCHED}.changed >{PATCHED}.sorted; sort -z {PATCHED}.list | comm -z -12 - {PATCHED}.sorted >{PATCHED}.back
[ ! -s {PATCHED}.back ] || tar --null --no-unquote -xf {PATCHED}.tar -T {PATCHED}.back  # without names: all
"""
    run_checked(sandbox, task, script, cwd=REPOSITORY)


def changed_files(task: Task, sandbox: Sandbox) -> tuple[str, ...]:
    """Files of the repository, relative to it, that changed since the backup. Raises GraderError."""
    find = f"find . -path ./.git -prune -o ! -type d -cnewer {BACKUP}.list -printf '%P\\0'"
    listing = f"/tmp/.changed.{secrets.token_hex(4)}"
    run_checked(sandbox, task, f"{find} >{listing}", cwd=REPOSITORY)
    return tuple(sorted(filter(None, read_text(sandbox, listing).split("\0"))))


def installed_packages(changed: Iterable[str]) -> list[str]:
    """Those that belong to packages installed in the repository's folder. They are too large to back up."""
    return [path for path in changed if path.startswith((".venv/", "venv/")) or "/site-packages/" in path]


def reportable(changed: Iterable[str]) -> tuple[str, ...]:
    """Those that are a reason to reject, as text that can be recorded."""
    return tuple(
        path.encode(errors="surrogateescape").decode(errors="replace")
        for path in changed
        if not path.endswith(COMPILED)
    )


def always_restored(files: Iterable[str], changed: Iterable[str]) -> list[str]:
    """Those that are restored under every policy: the row's own tests, what blocks them, and compiled files. `files`:
    of the row's tests."""
    tests = [f"./{file}" for file in files]
    return [
        path
        for path in changed
        if path.endswith(COMPILED)
        or any(f"{test}/".startswith(f"{path}/") or path.startswith(f"{test}/") for test in tests)
    ]
