"""Images for the sample rows: unpacked directories made from the demo image's root, and diffs of their repositories."""

import os
import shutil
import subprocess
from pathlib import Path

CONDA = "conda() { :; }\nexport PATH=/opt/miniconda3/envs/testbed/bin:$PATH\n"


def git(folder: Path, *arguments: str) -> str:
    environment = os.environ | {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    return subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, check=True, capture_output=True, text=True
    ).stdout


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # the root's files are hard links
        path.write_text(content)


def unpack(sif: Path, folder: Path) -> Path:
    """The demo image's root, without its repository."""
    listed = subprocess.run(["apptainer", "sif", "list", str(sif)], check=True, capture_output=True, text=True).stdout
    offset = next(line.split("|")[3].split("-")[0].strip() for line in listed.splitlines() if "Squashfs" in line)
    subprocess.run(
        ["unsquashfs", "-q", "-n", "-o", offset, "-d", str(folder), str(sif)], check=True, stdout=subprocess.DEVNULL
    )
    shutil.rmtree(folder / "testbed")
    write(folder, {"opt/miniconda3/bin/activate": CONDA})
    return folder


class Images:
    """Makes an image of each name in `folder`, from the unpacked `root`."""

    def __init__(self, root: Path, folder: Path):
        self.root, self.folder = root, folder

    def make(self, name: str, files: dict[str, str], *, later: dict[str, str] | None = None) -> tuple[Path, str]:
        """Its directory and its base commit. /testbed is a repository with these files, one commit before, and, if
        `later`, one after: on a branch, under a tag, in the reflog and checked out once."""
        image = self.folder / name.replace("/", "__").replace(":", "__")
        shutil.rmtree(image, ignore_errors=True)  # a fixture of a module may be set up more than once
        subprocess.run(["cp", "-al", str(self.root), str(image)], check=True)
        repository = image / "testbed"
        write(repository, {"README.md": "calc\n", ".gitignore": "*.pyc\n__pycache__/\nbuild/\n"})
        git(repository, "init", "-q", "-b", "main")
        git(repository, "add", "-A")
        git(repository, "commit", "-q", "-m", "before")
        write(repository, files)
        git(repository, "add", "-A")
        git(repository, "commit", "-q", "-m", "base")
        base = git(repository, "rev-parse", "HEAD").strip()
        if later:
            git(repository, "checkout", "-q", "-b", "future")
            write(repository, later)
            git(repository, "commit", "-q", "-am", "the fix that nobody may see")
            git(repository, "tag", "v2.0")
            git(repository, "checkout", "-q", "main")
            git(repository, "branch", "-q", "--set-upstream-to", "future")
        return image, base


def diff(old: dict[str, str], new: dict[str, str], folder: Path) -> str:
    """As `git diff` writes it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    git(folder, "init", "-q")
    write(folder, old)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "old")
    for name in old.keys() - new.keys():
        (folder / name).unlink()
    write(folder, new)
    git(folder, "add", "-A")
    return git(folder, "diff", "--cached", "--no-renames")
