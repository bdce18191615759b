"""Images of real SWE-bench rows in the layout of the official ones, made without a registry and without GitHub.

    python -m scripts.swebench_images ROWS OUTPUT [--ids ID ...]

ROWS: a JSONL file with the rows. OUTPUT gets `images/` and `rows.jsonl`, for `python -m agent_server validate`. The
repository is the release that holds the fix, with the row's patch and its tests taken back, in one commit, which
becomes the row's base_commit. Needs root, mmdebstrap, pip and the packages that recipes.py pins, from PyPI.
Invariant: a row is written only with its image, and only if its test patch applies to the repository.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_server.grading.datasets.registry import dataset_for_row
from agent_server.sandboxes.apptainer import image_path
from scripts.swebench_images.recipes import RECIPES, Recipe

HERE = Path(__file__).parent
PREFIX = "opt/miniconda3/envs/testbed"
IDENTITY = {
    "GIT_AUTHOR_NAME": "base", "GIT_AUTHOR_EMAIL": "base@localhost", "GIT_AUTHOR_DATE": "2021-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "base", "GIT_COMMITTER_EMAIL": "base@localhost", "GIT_COMMITTER_DATE": "2021-01-01T00:00:00Z",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--ids", nargs="*", choices=RECIPES, default=list(RECIPES))
    arguments = parser.parse_args()
    by_id = {row["instance_id"]: row for row in map(json.loads, arguments.rows.read_text().splitlines())}
    if missing := [name for name in arguments.ids if name not in by_id]:
        sys.exit(f"swebench_images: {arguments.rows} must hold {', '.join(missing)}; select others with --ids")
    images, root = arguments.output / "images", arguments.output / "root"
    images.mkdir(parents=True, exist_ok=True)
    run(["bash", str(HERE / "root.sh"), str(root)], cwd=HERE)
    made = [_make(by_id[name], RECIPES[name], root, images) for name in arguments.ids]
    (arguments.output / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))


def _make(row: dict[str, Any], recipe: Recipe, root: Path, images: Path) -> dict[str, Any]:
    """Build the row's image; the row with its base commit."""
    with tempfile.TemporaryDirectory(dir=images.parent) as folder:
        work = Path(folder)
        tree = work / "tree"
        run(["cp", "-a", str(root), str(tree)], cwd=work)
        repository = tree / "testbed"
        shutil.move(_unpacked(recipe.fixed, work / "fixed"), repository)
        _take_back(row, recipe, repository, work)
        for path, content in recipe.files.items():
            (repository / path).parent.mkdir(parents=True, exist_ok=True)
            (repository / path).write_text(content)
            (repository / path).chmod(0o755)
        run(["bash", "-euc", recipe.edits], cwd=repository)
        _install(recipe.packages, tree / PREFIX, work)
        (tree / PREFIX / "lib/python3.9/site-packages/testbed.pth").write_text("/testbed\n")
        for command in (["init", "-q", "-b", "main"], ["add", "-A", "-f"], ["commit", "-q", "-m", "base"]):
            run(["git", *command], cwd=repository, **IDENTITY)
        row = row | {"base_commit": run(["git", "rev-parse", "HEAD"], cwd=repository).strip()}
        image = image_path(images, dataset_for_row(row, row["instance_id"]).image(row))
        options = ["--force", "--mksquashfs-args", "-comp zstd -Xcompression-level 3"]
        places = {"APPTAINER_TMPDIR": str(work), "APPTAINER_CACHEDIR": str(work / "apptainer")}
        run(["apptainer", "build", *options, "image.sif", "tree"], cwd=work, **places)
        (work / "image.sif").replace(image)
    print(f"swebench_images: {image}", flush=True)
    return row


def _take_back(row: dict[str, Any], recipe: Recipe, repository: Path, work: Path) -> None:
    """Undo the row's fix and the tests that come with it."""
    patches = {name: work / f"{name}.diff" for name in ("patch", "test_patch")}
    for name, path in patches.items():
        path.write_bytes(row[name].encode())
    # Outside of a repository, git applies to the folder it is in.
    run(["git", "apply", "-R", str(patches["patch"])], cwd=repository)
    if recipe.old_tests is None:
        run(["git", "apply", "-R", str(patches["test_patch"])], cwd=repository)
    else:
        release, paths = recipe.old_tests
        unpacked = _unpacked(release, work / "old")
        for path in paths:
            run(["rm", "-rf", path], cwd=repository)
            run(["cp", "-a", str(unpacked / path), str(repository / path)], cwd=work)
        summary = run(["git", "apply", "--summary", str(patches["test_patch"])], cwd=repository)
        for line in summary.splitlines():
            if line.strip().startswith("create mode"):
                (repository / line.split(maxsplit=3)[3]).unlink(missing_ok=True)
    run(["git", "apply", "--check", str(patches["test_patch"])], cwd=repository)


def _unpacked(requirement: str, folder: Path) -> Path:
    """The folder of a release's sdist."""
    folder.mkdir()
    run([*pip("download"), "--no-binary", ":all:", "--dest", str(folder), requirement], cwd=folder)
    [archive] = folder.glob("*.tar.gz")
    with tarfile.open(archive) as sdist:
        sdist.extractall(folder, filter="data")
    [unpacked] = (path for path in folder.iterdir() if path.is_dir())
    return unpacked


def _install(packages: Sequence[str], prefix: Path, work: Path) -> None:
    """Install wheels for Python 3.9 into an environment that this machine's Python cannot run."""
    target = work / "packages"
    python = ["--python-version", "3.9", "--implementation", "cp", "--only-binary", ":all:"]
    run([*pip("install"), *python, "--target", str(target), *packages], cwd=work)
    for program in (path for path in (target / "bin").glob("*") if path.is_file()):
        lines = program.read_text().splitlines(keepends=True)
        script = prefix / "bin" / program.name
        script.write_text(f"#!/{PREFIX}/bin/python\n" + "".join(lines[1:]))
        script.chmod(0o755)
    shutil.rmtree(target / "bin", ignore_errors=True)
    run(["cp", "-a", f"{target}/.", str(prefix / "lib/python3.9/site-packages")], cwd=work)


def pip(command: str) -> list[str]:
    """pip with quiet output and without dependencies."""
    return [sys.executable, "-m", "pip", command, "-q", "--no-deps", "--disable-pip-version-check"]


def run(command: Sequence[str], cwd: Path, **variables: str) -> str:
    """The output of a command. Ends the program if it fails."""
    done = subprocess.run(command, cwd=cwd, env=os.environ | variables, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"swebench_images: `{' '.join(command)[:200]}` failed: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    main()
