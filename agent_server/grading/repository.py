"""The agent's repository: made from the image's before the agent starts, and reset for grading.

Invariant: nothing newer than the row's base can be reached in it, by any ref, reflog, object or file; the base itself
can.
"""

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from agent_server.grading import protected_snapshots
from agent_server.grading.datasets.base import REPOSITORY, Dataset, run_checked
from agent_server.grading.test_locations import locate
from agent_server.sandboxes.base import Sandbox
from agent_server.tasks.task import Task

ASIDE = "/tmp/.aside"  # the hidden files while the submission is applied
BASE = "refs/base"  # the agent's first commit, whatever it commits later
IDENTITY = "-c user.name=base -c user.email=base@localhost"
# A new repository that takes over one commit at most; the old one is removed with everything in its packs, and is not
# moved before: in a sandbox that would copy it. Compiled files are removed: they reveal hidden tests and the code
# without its bug. Untracked files of the image are excluded: they are not the agent's work. `git fetch` runs the other
# side too, which serves a commit that no ref names only with allowAnySHA1InWant.
PURGE = """
set -e
git ls-files -d -z | git update-index -z --force-remove --stdin
git ls-files -o -z -- '*.pyc' ':(exclude,glob)**/site-packages/**' | xargs -0 -r rm -f --
rm -rf .pytest_cache
git ls-files -z >/tmp/.tracked
rm -rf .git.new
git init -q .git.new
if [ -n {base} ]; then
  git -C .git.new -c protocol.file.allow=always fetch -q --depth 1 --no-tags \\
    --upload-pack 'git -c uploadpack.allowAnySHA1InWant=true upload-pack' "file://$PWD/.git" {base} \\
    || {{ rm -rf .git.new; echo 'no commit '{base}; exit 1; }}
  git -C .git.new update-ref HEAD {base}
  rm -f .git.new/.git/FETCH_HEAD
fi
rm -rf .git
mv .git.new/.git .git
rmdir .git.new
git add -f --ignore-removal --pathspec-from-file=/tmp/.tracked --pathspec-file-nul
git {identity} commit -q --allow-empty -m base
git update-ref {ref} HEAD
mkdir -p .git/info
git ls-files -o --exclude-standard --directory --no-empty-directory -z \\
  | sed -z 's/[][*?!\\\\#[:space:]]/\\\\&/g; s|^|/|' | tr '\\0' '\\n' >>.git/info/exclude
rm -rf /tmp/.tracked .git/logs
"""
# The agent's settings, hooks and refs are removed before a file is written.
RESET = f"""
rm -rf ~/.gitconfig ~/.config/git .git/hooks .git/info .git/config .git/index.lock .git/refs/replace \\
  .git/objects/info/alternates .git/worktrees
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
    """The agent's repository as it was at the start, kept outside the sandbox, where the agent cannot change it.

    `commit`: its first commit. `hidden_paths`: of the hidden files; `hidden`: these, as a base64 tar. `settings` and
    `exclude`: git's settings and ignored paths. `protected_files`: snapshot of the protected files.
    """

    commit: str
    hidden_paths: tuple[str, ...]
    hidden: str
    settings: str
    exclude: str
    protected_files: protected_snapshots.Snapshot

    def to_json(self) -> str:
        """For a file."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, content: str) -> "BaseState":
        """Inverse of `to_json`."""
        fields = json.loads(content)
        protected = protected_snapshots.Snapshot(
            fields["protected_files"]["states"], tuple(fields["protected_files"]["tests"])
        )
        return cls(**fields | {"hidden_paths": tuple(fields["hidden_paths"]), "protected_files": protected})


def prepare(dataset: Dataset, task: Task, sandbox: Sandbox) -> None:
    """Make the agent's repository: the row's base, without hidden files, its history purged.

    Raises GraderError where row and image do not fit.
    """
    dataset.set_up(task, sandbox)
    _remove_hidden(_locate_hidden(dataset, task, sandbox), task, sandbox)
    _purge_history(dataset, task, sandbox)


def prepare_and_record(dataset: Dataset, task: Task, sandbox: Sandbox) -> BaseState:
    """As `prepare`; returns what `reset_to_base` needs to grade in this sandbox later."""
    dataset.set_up(task, sandbox)
    hidden_paths = _locate_hidden(dataset, task, sandbox)
    hidden = _pack_hidden(hidden_paths, task, sandbox)
    _remove_hidden(hidden_paths, task, sandbox)
    _purge_history(dataset, task, sandbox)
    return BaseState(
        commit=run_checked(sandbox, task, "git rev-parse HEAD", cwd=REPOSITORY).strip(),
        hidden_paths=hidden_paths,
        hidden=hidden,
        settings=run_checked(sandbox, task, "cat ~/.gitconfig 2>/dev/null; true", cwd=REPOSITORY),
        exclude=run_checked(sandbox, task, "cat .git/info/exclude", cwd=REPOSITORY),
        protected_files=protected_snapshots.snapshot(dataset, task, sandbox),
    )


def reset_to_base(dataset: Dataset, task: Task, sandbox: Sandbox, base: BaseState) -> None:
    """Reset the agent's own sandbox for grading in it.

    Its processes end. Tracked files are the base's; untracked ones are removed, protected ones even where git ignores
    them; what the agent installed elsewhere stays. Hidden files are put aside for `restore_hidden`. Raises GraderError
    where the agent has left no repository that can be reset.
    """
    sandbox.kill_background()
    sandbox.write_file("/tmp/.gitconfig", base.settings)
    sandbox.write_file("/tmp/.exclude", base.exclude)
    run_checked(sandbox, task, RESET.format(base=base.commit), cwd=REPOSITORY)
    found = protected_snapshots.snapshot(dataset, task, sandbox, base.protected_files.tests)
    protected_snapshots.remove(task, sandbox, base.protected_files.changed(found))
    run_checked(sandbox, task, f"GIT_NO_REPLACE_OBJECTS=1 git reset -q --hard {base.commit}", cwd=REPOSITORY)
    if base.hidden:
        sandbox.write_file("/tmp/.hidden.base64", base.hidden)
        unpack = "base64 -d /tmp/.hidden.base64 >/tmp/.hidden && tar -xzPf /tmp/.hidden && rm -f /tmp/.hidden*"
        run_checked(sandbox, task, unpack, cwd=REPOSITORY)
    _move_hidden_aside(base.hidden_paths, task, sandbox)


def prepare_fresh(dataset: Dataset, task: Task, sandbox: Sandbox) -> None:
    """Make a fresh sandbox's repository look like the agent's, so that its patch fits. Hidden files are put aside for
    `restore_hidden`."""
    dataset.set_up(task, sandbox)
    _move_hidden_aside(_locate_hidden(dataset, task, sandbox), task, sandbox)


def restore_hidden(task: Task, sandbox: Sandbox) -> None:
    """Move the hidden files back to where the image has them, replacing what is there now."""
    restore = f"""
shopt -s dotglob
number=0
[ ! -f {ASIDE}.paths ] || while IFS= read -rd '' path; do
  rm -rf -- "$path"
  if [ -d {ASIDE}/$number ]; then mkdir -p -- "$(dirname "$path")" && mv {ASIDE}/$number/* "$(dirname "$path")"/; fi
  number=$((number + 1))
done <{ASIDE}.paths
rm -rf {ASIDE} {ASIDE}.paths
"""
    run_checked(sandbox, task, restore, cwd=REPOSITORY)


def _pack_hidden(hidden: Sequence[str], task: Task, sandbox: Sandbox) -> str:
    """The hidden files as a base64 tar; "" where there are none."""
    if not hidden:
        return ""
    existing = f'for path in {_quoted(hidden)}; do [ ! -e "$path" ] || printf \'%s\\0\' "$path"; done'
    run_checked(sandbox, task, f"{existing} | tar --null --no-unquote -czPf /tmp/.hidden -T -; true", cwd=REPOSITORY)
    read = "[ ! -f /tmp/.hidden ] || base64 -w0 /tmp/.hidden; rm -f /tmp/.hidden"
    return run_checked(sandbox, task, read, cwd=REPOSITORY)


def _remove_hidden(hidden: Sequence[str], task: Task, sandbox: Sandbox) -> None:
    if not hidden:
        return
    tracked = _quoted(path for path in hidden if not path.startswith("/"))
    remove = f"git rm -rq --cached --ignore-unmatch -- {tracked}; rm -rf -- {_quoted(hidden)}"
    run_checked(sandbox, task, remove, cwd=REPOSITORY)


def _locate_hidden(dataset: Dataset, task: Task, sandbox: Sandbox) -> tuple[str, ...]:
    return locate(task, sandbox, dataset.hidden_paths(task))


def _purge_history(dataset: Dataset, task: Task, sandbox: Sandbox) -> None:
    purge = PURGE.format(base=shlex.quote(dataset.base_commit(task)), identity=IDENTITY, ref=BASE)
    run_checked(sandbox, task, purge, cwd=REPOSITORY)


def _move_hidden_aside(hidden: Sequence[str], task: Task, sandbox: Sandbox) -> None:
    """Put the hidden files where `restore_hidden` finds them."""
    sandbox.write_file(f"{ASIDE}.paths", "".join(f"{path}\0" for path in hidden))
    moves = "\n".join(
        f"[ -e {path} ] && mkdir -p {ASIDE}/{number} && mv {path} {ASIDE}/{number}/"
        for number, path in enumerate(map(shlex.quote, hidden))
    )
    run_checked(sandbox, task, f"umask 077; rm -rf {ASIDE}\n{moves}\ntrue", cwd=REPOSITORY)


def _quoted(paths: Iterable[str]) -> str:
    return " ".join(map(shlex.quote, paths))
