"""Collects the agent's changes to its repository as a patch: commits, changed files, new files that are not too large.

Invariant: a patch is whole. What has no room in it is named.
"""

from dataclasses import dataclass

from agent_server.grading.datasets.base import REPOSITORY, SETUP_TIMEOUT_S
from agent_server.grading.repository import BASE
from agent_server.sandboxes.base import Sandbox

# Records `FSIZE NAME` of the files that are not in the base, and `DNAME` of the base's folders. Folders and files that
# the agent locked are opened first.
NEW_FILES = f"""
rm -f .git/index.lock
find . -name .git -prune -o \\( -type d ! -perm -700 -o -type f ! -perm -600 \\) -exec chmod u+rwX {{}} \\;
base=$(git rev-parse -q --verify {BASE} || echo HEAD)
{{ git ls-files -o --exclude-standard -z; git diff --cached --name-only --diff-filter=A --no-renames -z $base --; }} \\
  | xargs -0 -r stat --printf 'F%s %n\\0' -- 2>/dev/null
git ls-tree -rdz --name-only $base | sed -z 's/^/D/'
git rev-parse -q --verify $base >/dev/null
"""
LEFT_OUT = "/tmp/.left_out"
# The agent's own git settings have no effect. A file that is not UTF-8 survives only as a binary change. An attribute
# that converts files can make `git add` give up; then the conversions are left out.
DIFF = f"""
rm -f .git/index.lock
add() {{ git add -A --ignore-errors --pathspec-from-file={LEFT_OUT}.add --pathspec-file-nul >/dev/null 2>&1; }}
add || {{ mkdir -p .git/info && echo '* -working-tree-encoding -filter' >.git/info/attributes; add
  rm -f .git/info/attributes; }}
git update-index -z --force-remove --stdin <{LEFT_OUT}
base=$(git rev-parse -q --verify {BASE} || echo HEAD)
diff() {{ git -c core.quotePath=true -c diff.noprefix=false -c diff.mnemonicPrefix=false -c diff.relative=false \\
  diff --cached --binary --no-renames --no-ext-diff --no-textconv --no-color --unified=3 \\
  --submodule=short --ignore-submodules=all $base --; }}
"""
AS_BINARY = (
    "mkdir -p .git/info && echo '* -diff' >.git/info/attributes"
    " && diff; status=$?; rm -f .git/info/attributes; exit $status"
)
MAX_NEW_FILE_BYTES = 2**20
MAX_NEW_FILES_BYTES = 4 * 2**20  # together; the largest new folders are left out first
MAX_DIFF_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Changes:
    """The agent's changes to its repository. `patch`: as a diff of git's; "" where there are none, or no repository.
    `left_out`: the new files that are too large for it, sorted. `refused`: why there is no patch although there are
    changes, or ""."""

    patch: str
    left_out: tuple[str, ...] = ()
    refused: str = ""


def collect_diff(sandbox: Sandbox) -> str:
    """The patch of `collect_changes` alone."""
    return collect_changes(sandbox).patch


def collect_changes(sandbox: Sandbox) -> Changes:
    """The agent's changes to its repository, new files included unless they are too large.

    Raises SandboxFileError where the agent has filled the sandbox's disk, SandboxDied, SandboxLimitExceeded.
    """
    listed = sandbox.run_clean(NEW_FILES, cwd=REPOSITORY, timeout_s=SETUP_TIMEOUT_S)
    if listed.limit:
        return Changes("", refused=f"the new files cannot be listed within the sandbox's limit of {listed.limit}")
    if listed.returncode != 0:
        return Changes("")
    large, left_out = _select_large(listed.data)
    sandbox.write_file(LEFT_OUT, "".join(f"{path}\0" for path in left_out))
    sandbox.write_file(f"{LEFT_OUT}.add", "".join((".\0", *(f":(exclude,literal){path}\0" for path in large))))
    result = sandbox.run_clean(f"{DIFF}diff", cwd=REPOSITORY, timeout_s=SETUP_TIMEOUT_S)
    if not result.limit and _is_not_utf8(result.data):
        result = sandbox.run_clean(f"{DIFF}{AS_BINARY}", cwd=REPOSITORY, timeout_s=SETUP_TIMEOUT_S)
    named = tuple(sorted(path.encode(errors="surrogateescape").decode(errors="replace") for path in left_out))
    if result.limit or len(result.data) > MAX_DIFF_BYTES:
        limit = f"the sandbox's limit of {result.limit}" if result.limit else f"{MAX_DIFF_BYTES >> 20} MiB"
        return Changes("", named, f"the repository's diff exceeds {limit}")
    return Changes(result.output if result.returncode == 0 else "", named)


def _select_large(listed: bytes) -> tuple[list[str], list[str]]:
    """Of the output of NEW_FILES, the files that are too large each, and all that a submission has no room for.

    The files of a large new folder (a build, installed packages) must not displace a small one beside it. So files come
    in the order of the size of the new folder that they lie in, then of their own.
    """
    records = listed.decode(errors="surrogateescape").split("\0")
    found = (record[1:].partition(" ") for record in records if record.startswith("F"))
    sizes = {name: int(size) for size, _, name in found}
    large = [name for name, size in sizes.items() if size > MAX_NEW_FILE_BYTES]
    base_folders = {record[1:] for record in records if record.startswith("D")}
    tops = {name: _top_new(name, base_folders) for name in sizes.keys() - set(large)}
    top_sizes: dict[str, int] = {}
    for name, top in tops.items():
        top_sizes[top] = top_sizes.get(top, 0) + sizes[name]
    left_out, total = large.copy(), 0
    for name in sorted(tops, key=lambda name: (top_sizes[tops[name]], tops[name], sizes[name], name)):
        total += sizes[name]
        if total > MAX_NEW_FILES_BYTES:
            left_out.append(name)
    return large, left_out


def _top_new(name: str, base_folders: set[str]) -> str:
    """The topmost of a file's folders that the base does not have; the file itself where it has all."""
    parts = name.split("/")
    paths = ("/".join(parts[:count]) for count in range(1, len(parts)))
    return next((path for path in paths if path not in base_folders), name)


def _is_not_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False
