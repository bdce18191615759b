"""The repository that the agent works in, made of the image's.

Invariant: nothing newer than the row's base can be reached in it, by any ref, reflog, object or file; the base itself can.
"""

import shlex
from collections.abc import Iterable

from agent_server.grading.dataset import REPOSITORY, SETUP_TIMEOUT_S, Dataset, must
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task

IDENTITY = "-c user.name=base -c user.email=base@localhost"
# What lies in the image untracked is part of the base too: it is there when the patch is applied.
# A new repository that takes over one commit at most. What is left behind in the old one's packs goes with the old one.
# `git fetch` runs the other side too, which gives a commit only by a ref unless told otherwise.
PURGE = """
set -e
git ls-files -z >/tmp/.tracked
mv .git /tmp/.old.git
git init -q
if [ -n {base} ]; then
  git -c protocol.file.allow=always fetch -q --depth 1 --no-tags --upload-pack 'git -c uploadpack.allowAnySHA1InWant=true upload-pack' \\
    file:///tmp/.old.git {base} || {{ mv /tmp/.old.git .git.old && rm -rf .git && mv .git.old .git; echo 'no commit '{base}; exit 1; }}
  git update-ref HEAD {base}
  rm -f .git/FETCH_HEAD
fi
git add -f --ignore-removal --pathspec-from-file=/tmp/.tracked --pathspec-file-nul
git add -A
git {identity} commit -q --allow-empty -m base
rm -rf /tmp/.tracked /tmp/.old.git .git/logs
"""


def prepare(dataset: Dataset, task: Task, sandbox: Sandbox, *, keep: bool = False) -> str:
    """Make the agent's repository: as the row begins, without what is hidden, its history purged. With `keep`, answers what is
    hidden, packed, for `begin_again`. Raises GraderError where row and image do not fit."""
    dataset.set_up(task, sandbox)
    packed = ""
    if hidden := dataset.hidden(task):
        if keep:
            must(sandbox, task, f"tar -czPf /tmp/.hidden --ignore-failed-read -- $(ls -d -- {_quoted(hidden)} 2>/dev/null) </dev/null; true", cwd=REPOSITORY)
            packed = must(sandbox, task, "[ ! -f /tmp/.hidden ] || base64 -w0 /tmp/.hidden; rm -f /tmp/.hidden", cwd=REPOSITORY)
        tracked = _quoted(path for path in hidden if not path.startswith("/"))
        must(sandbox, task, f"git rm -rq --cached --ignore-unmatch -- {tracked}; rm -rf -- {_quoted(hidden)}", cwd=REPOSITORY)
    must(sandbox, task, PURGE.format(base=shlex.quote(dataset.base_commit(task)), identity=IDENTITY), cwd=REPOSITORY)
    return packed


def collect_diff(sandbox: Sandbox) -> str:
    """The agent's changes to its repository, new files included, as a patch; empty when it changed nothing."""
    result = sandbox.run("git add -A && git diff --cached --binary --no-renames HEAD", cwd=REPOSITORY, timeout_s=SETUP_TIMEOUT_S)
    return result.output if result.returncode == 0 else ""


def begin_again(dataset: Dataset, task: Task, sandbox: Sandbox, packed: str) -> None:
    """Bring the agent's own sandbox back to where it began, for grading in it: nothing runs, tracked files are the base's and
    untracked ones gone; what the agent installed elsewhere stays. What was hidden lies aside."""
    sandbox.end_background()
    must(sandbox, task, "git reset -q --hard $(git rev-list --max-parents=0 HEAD | tail -n 1) 2>/dev/null; git clean -fdq", cwd=REPOSITORY)
    if packed:
        sandbox.write_file("/tmp/.hidden.base64", packed)
        must(sandbox, task, "base64 -d /tmp/.hidden.base64 >/tmp/.hidden && tar -xzPf /tmp/.hidden && rm -f /tmp/.hidden*", cwd=REPOSITORY)
    _move_aside(dataset, task, sandbox)


def set_aside(dataset: Dataset, task: Task, sandbox: Sandbox) -> None:
    """Make a fresh sandbox's repository look as the agent's did, so that its patch fits; `bring_back` undoes the hiding."""
    dataset.set_up(task, sandbox)
    _move_aside(dataset, task, sandbox)


def _move_aside(dataset: Dataset, task: Task, sandbox: Sandbox) -> None:
    moves = "\n".join(
        f"[ -e {path} ] && mkdir -p /tmp/.aside/{number} && mv {path} /tmp/.aside/{number}/"
        for number, path in enumerate(map(shlex.quote, dataset.hidden(task)))
    )
    must(sandbox, task, f"umask 077\n{moves}\ntrue", cwd=REPOSITORY)


def bring_back(dataset: Dataset, task: Task, sandbox: Sandbox) -> None:
    """Put what was hidden where the image has it, instead of whatever is there now."""
    moves = "\n".join(
        f"rm -rf {path}\n[ -d /tmp/.aside/{number} ] && mkdir -p $(dirname {path}) && mv /tmp/.aside/{number}/* $(dirname {path})/"
        for number, path in enumerate(map(shlex.quote, dataset.hidden(task)))
    )
    must(sandbox, task, f"shopt -s dotglob\n{moves}\nrm -rf /tmp/.aside", cwd=REPOSITORY)


def _quoted(paths: Iterable[str]) -> str:
    return " ".join(map(shlex.quote, paths))
