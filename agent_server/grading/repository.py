"""The repository that the agent works in, made of the image's.

Invariant: nothing newer than the row's base can be reached in it, by any ref, reflog, object or file; the base itself can.
"""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from agent_server.grading import protected
from agent_server.grading.datasets.base import REPOSITORY, SETUP_TIMEOUT_S, Dataset, run_checked
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task

BASE = "refs/base"  # where the agent begins, whatever it commits
IDENTITY = "-c user.name=base -c user.email=base@localhost"
# A new repository that takes over one commit at most. What is left behind in the old one's packs goes with the old one.
# What was compiled before tells of hidden tests and of the code without its bug. What the image has that git does not know is not
# the agent's work. `git fetch` runs the other side too, which gives a commit only by a ref unless told otherwise.
PURGE = """
set -e
git ls-files -d -z | git update-index -z --force-remove --stdin
git ls-files -o -z -- '*.pyc' ':(exclude,glob)**/site-packages/**' | xargs -0 -r rm -f --
rm -rf .pytest_cache
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
git {identity} commit -q --allow-empty -m base
git update-ref {ref} HEAD
mkdir -p .git/info
git ls-files -o --exclude-standard --directory -z | sed -z 's/[][*?!\\\\#[:space:]]/\\\\&/g; s|^|/|' | tr '\\0' '\\n' >>.git/info/exclude
rm -rf /tmp/.tracked /tmp/.old.git .git/logs
"""
# What the agent wrote into git's own files must decide nothing. A file that is not UTF-8 only survives as a binary change.
DIFF = f"""
rm -f .git/index.lock
git add -A --ignore-errors >/dev/null 2>&1
base=$(git rev-parse -q --verify {BASE} || echo HEAD)
diff() {{ git -c core.quotePath=true -c diff.noprefix=false -c diff.mnemonicPrefix=false -c diff.relative=false diff --cached --binary --no-renames \\
  --no-ext-diff --no-textconv --no-color --unified=3 --submodule=short --ignore-submodules=all $base; }}
"""
AS_BINARY = "mkdir -p .git/info && echo '* -diff' >.git/info/attributes && diff; status=$?; rm -f .git/info/attributes; exit $status"
# Settings, hooks and names of the agent's are gone before a file is written.
BEGIN = f"""
rm -rf ~/.gitconfig ~/.config/git .git/hooks .git/info .git/config .git/index.lock .git/refs/replace .git/objects/info/alternates .git/worktrees
mkdir -p .git/info && mv /tmp/.exclude .git/info/exclude
[ ! -s /tmp/.gitconfig ] || mv /tmp/.gitconfig ~/.gitconfig
export GIT_NO_REPLACE_OBJECTS=1
git init -q && git reset -q --hard {{base}} || exit 1
git for-each-ref --format='delete %(refname)' | grep -v ' {BASE}$' | git update-ref --no-deref --stdin
git update-ref --no-deref HEAD {{base}}
git ls-files -o -z -- .gitignore '*/.gitignore' | xargs -0 -r rm -f --
git clean -ffdq
"""


@dataclass(frozen=True, slots=True)
class BaseState:
    """How the agent's repository began, kept where the agent cannot reach: its commit, what is hidden, packed, git's settings,
    what git does not look at, and what was protected."""

    base: str
    hidden: str
    settings: str
    exclude: str
    protected: protected.Snapshot


def prepare(dataset: Dataset, task: Task, sandbox: Sandbox, *, keep: bool = False) -> BaseState | None:
    """Make the agent's repository: as the row begins, without what is hidden, its history purged. With `keep`, answers what
    `reset_to_base` needs. Raises GraderError where row and image do not fit."""
    dataset.set_up(task, sandbox)
    packed = ""
    if hidden := dataset.hidden_paths(task):
        if keep:
            there = f'for path in {_quoted(hidden)}; do [ ! -e "$path" ] || printf \'%s\\0\' "$path"; done'
            run_checked(
                sandbox, task, f"{there} | tar --null --no-unquote -czPf /tmp/.hidden -T -; true", cwd=REPOSITORY
            )
            packed = run_checked(
                sandbox, task, "[ ! -f /tmp/.hidden ] || base64 -w0 /tmp/.hidden; rm -f /tmp/.hidden", cwd=REPOSITORY
            )
        tracked = _quoted(path for path in hidden if not path.startswith("/"))
        run_checked(
            sandbox,
            task,
            f"git rm -rq --cached --ignore-unmatch -- {tracked}; rm -rf -- {_quoted(hidden)}",
            cwd=REPOSITORY,
        )
    run_checked(
        sandbox,
        task,
        PURGE.format(base=shlex.quote(dataset.base_commit(task)), identity=IDENTITY, ref=BASE),
        cwd=REPOSITORY,
    )
    if not keep:
        return None
    settings = run_checked(sandbox, task, "cat ~/.gitconfig 2>/dev/null; true", cwd=REPOSITORY)
    exclude = run_checked(sandbox, task, "cat .git/info/exclude", cwd=REPOSITORY)
    base = run_checked(sandbox, task, "git rev-parse HEAD", cwd=REPOSITORY).strip()
    return BaseState(base, packed, settings, exclude, protected.snapshot(dataset, task, sandbox))


def collect_diff(sandbox: Sandbox) -> str:
    """The agent's changes to its repository, new files included, as a patch; empty when it changed nothing."""
    result = sandbox.run(f"{DIFF}diff", cwd=REPOSITORY, timeout_s=SETUP_TIMEOUT_S)
    if "\ufffd" in result.output:
        result = sandbox.run(f"{DIFF}{AS_BINARY}", cwd=REPOSITORY, timeout_s=SETUP_TIMEOUT_S)
    return result.output if result.returncode == 0 else ""


def reset_to_base(dataset: Dataset, task: Task, sandbox: Sandbox, begun: BaseState) -> None:
    """Bring the agent's own sandbox back to where it began, for grading in it: nothing runs, tracked files are the base's and
    untracked ones gone, protected ones even where git ignores them; what the agent installed elsewhere stays. What was hidden
    lies aside. Raises GraderError where the agent has left no repository to begin with."""
    sandbox.kill_background()
    sandbox.write_file("/tmp/.gitconfig", begun.settings)
    sandbox.write_file("/tmp/.exclude", begun.exclude)
    run_checked(sandbox, task, BEGIN.format(base=begun.base), cwd=REPOSITORY)
    found = protected.snapshot(dataset, task, sandbox)
    protected.remove(task, sandbox, begun.protected.changed(found))
    run_checked(sandbox, task, f"GIT_NO_REPLACE_OBJECTS=1 git reset -q --hard {begun.base}", cwd=REPOSITORY)
    if begun.hidden:
        sandbox.write_file("/tmp/.hidden.base64", begun.hidden)
        run_checked(
            sandbox,
            task,
            "base64 -d /tmp/.hidden.base64 >/tmp/.hidden && tar -xzPf /tmp/.hidden && rm -f /tmp/.hidden*",
            cwd=REPOSITORY,
        )
    _move_aside(dataset, task, sandbox)


def prepare_fresh(dataset: Dataset, task: Task, sandbox: Sandbox) -> None:
    """Make a fresh sandbox's repository look as the agent's did, so that its patch fits; `restore_hidden` undoes the hiding."""
    dataset.set_up(task, sandbox)
    _move_aside(dataset, task, sandbox)


def _move_aside(dataset: Dataset, task: Task, sandbox: Sandbox) -> None:
    moves = "\n".join(
        f"[ -e {path} ] && mkdir -p /tmp/.aside/{number} && mv {path} /tmp/.aside/{number}/"
        for number, path in enumerate(map(shlex.quote, dataset.hidden_paths(task)))
    )
    run_checked(sandbox, task, f"umask 077; rm -rf /tmp/.aside\n{moves}\ntrue", cwd=REPOSITORY)


def restore_hidden(dataset: Dataset, task: Task, sandbox: Sandbox) -> None:
    """Put what was hidden where the image has it, instead of whatever is there now."""
    moves = "\n".join(
        f'rm -rf {path}\n[ -d /tmp/.aside/{number} ] && mkdir -p "$(dirname {path})" && mv /tmp/.aside/{number}/* "$(dirname {path})"/'
        for number, path in enumerate(map(shlex.quote, dataset.hidden_paths(task)))
    )
    run_checked(sandbox, task, f"shopt -s dotglob\n{moves}\nrm -rf /tmp/.aside", cwd=REPOSITORY)


def _quoted(paths: Iterable[str]) -> str:
    return " ".join(map(shlex.quote, paths))
