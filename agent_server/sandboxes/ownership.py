"""Makes folders of an image the sandbox user's, where they are not: the owner, and the owner's right to read and write.

Docker's root may do anything to any file. A sandbox's root has no capabilities: it cannot write to files of another
user, nor enter a folder without permissions, and git refuses a repository of another user.
Invariant: content is not changed. Where nothing has to be repaired, the cost is one `find`.
"""

import logging
import os
import stat
from collections.abc import Iterable, Sequence

from agent_server.sandboxes.base import Sandbox
from agent_server.sandboxes.namespaces import run_in_root

log = logging.getLogger(__name__)
TIMEOUT_S = 60.0
GIT_OBJECTS = "/.git/objects/"  # git's own files there are read-only, and are replaced, never changed
FOLDER_MODE, FILE_MODE = stat.S_IRWXU, stat.S_IRUSR | stat.S_IWUSR
# The first entry that has to be repaired. `find` cannot look into some of these, and need not.
FIND = (
    "find {paths} -xdev ! -uid $EUID -print -quit -o -type d ! -perm -700 -print -quit"
    f" -o -type f ! -perm -600 ! -path '*{GIT_OBJECTS}*' -print -quit"
)


def repair(sandbox: Sandbox, paths: Sequence[str]) -> None:
    """Repair everything below the paths inside, which need no quoting. What cannot be repaired is logged: the sandbox
    may do without it. Raises SandboxDied."""
    folders = [f"{path}/" for path in paths]  # of a link, the folder that it leads to
    found = sandbox.run_clean(FIND.format(paths=" ".join(folders)), cwd="/", timeout_s=TIMEOUT_S)
    if not found.data:
        return
    user = os.geteuid()
    try:
        run_in_root(sandbox.shell_pid, lambda: _repair_all(folders, user))
    except PermissionError as error:
        log.warning("files of other users stay as they are, the first is %s: %s", found.output.strip(), error)


def repair_folders(sandbox: Sandbox, folders: Sequence[str]) -> None:
    """Repair folders inside without what is in them, so that files can be added. Raises PermissionError."""
    user = os.geteuid()
    run_in_root(sandbox.shell_pid, lambda: _repair_each(folders, user))


def _repair_all(folders: Iterable[str], user: int) -> None:
    """Raises PermissionError where an entry could not be repaired, after the others."""
    failed = 0
    for folder in filter(os.path.isdir, folders):
        device = os.stat(folder).st_dev
        pending = [folder]
        while pending:
            failed += not _repair(pending[-1], os.stat(pending[-1]), user)
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    if not stat.S_ISDIR(found.st_mode):
                        failed += not _repair(entry.path, found, user)
                    elif found.st_dev == device:  # else a folder of the host is mounted there
                        pending.append(entry.path)
    if failed:
        raise PermissionError(failed)


def _repair_each(folders: Iterable[str], user: int) -> None:
    failed = [folder for folder in folders if not _repair(f"{folder}/", os.stat(folder), user)]
    if failed:
        raise PermissionError(failed)


def _repair(path: str, found: os.stat_result, user: int) -> bool:
    """Returns False where it fails, on a read-only mount for example."""
    is_object = GIT_OBJECTS in path and stat.S_ISREG(found.st_mode)
    if is_object and found.st_mode & stat.S_IROTH:
        return True  # a change would copy it into memory, and git can read and replace it as it is
    needed = {stat.S_IFDIR: FOLDER_MODE, stat.S_IFREG: FILE_MODE}.get(stat.S_IFMT(found.st_mode), 0)
    try:
        if found.st_uid != user:
            os.chown(path, user, -1, follow_symlinks=False)
        if found.st_mode & needed != needed:
            os.chmod(path, stat.S_IMODE(found.st_mode) | needed)
    except OSError:
        return False
    return True
