"""Sandboxes of tasks: conda environments of an image, variables, thread counts, files of other users."""

import os
import stat
from pathlib import Path

import pytest

from agent_server.agents.sandbox_with_variables import SandboxWithVariables
from agent_server.config import Settings
from agent_server.grading import repository
from agent_server.grading.datasets.base import Dataset
from agent_server.grading.reporter.install import Reporter
from agent_server.sandboxes import ownership
from agent_server.tasks.task import Task
from agent_server.worker.task_sandbox import THREAD_VARIABLES, start_task_sandbox
from tests.agent_server.grading.grading_bench import run
from tests.agent_server.grading.sample_images import Images, write
from tests.agent_server.grading.sample_rows import PACKAGE

OTHER_USER = 1000
ENVIRONMENT = "/opt/miniconda3/envs/testbed"
ACTIVATE = f"""conda() {{ export CONDA_DEFAULT_ENV=$2 PATH={ENVIRONMENT}/bin:$PATH; }}
conda activate testbed
"""


class ImageFolder:
    """Images of the sample repository, each in a sandbox of its own as sessions start it."""

    def __init__(self, folder: Path, root: Path):
        self._folder, self._images = folder, Images(root, folder / "images")
        self._opened = []

    def make(self, name: str, files: dict[str, str]) -> Path:
        """An image with these files beside the repository's."""
        image, _ = self._images.make(name, PACKAGE)
        write(image, files)
        return image

    def start(self, name: str, **settings):
        settings = Settings(data_path=Path("/"), sif_dir=self._images.folder, work_dir=self._folder, **settings)
        scratch = self._folder / f"scratch{len(self._opened)}"
        scratch.mkdir()
        task = Task(task_id=name, dataset="swesmith", image_name=name, problem_statement="")
        self._opened.append(start_task_sandbox(settings, task, scratch))
        return self._opened[-1]

    def close(self) -> None:
        for sandbox in self._opened:
            sandbox.close()


@pytest.fixture
def images(sample_rows, tmp_path):
    (tmp_path / "images").mkdir()
    folder = ImageFolder(tmp_path, sample_rows[0].parent / "root")
    yield folder
    folder.close()


# --- the environment of commands ------------------------------------------------------------------------------------


def test_an_image_in_swebenchs_layout_is_used_as_its_bashrc_activates_it(images):
    image = images.make("conda", {"root/.bashrc": ACTIVATE, f"{ENVIRONMENT[1:]}/bin/pytest": "#!/bin/sh\necho mine\n"})
    (image / ENVIRONMENT[1:] / "bin" / "python").symlink_to("/usr/bin/python3")
    (image / ENVIRONMENT[1:] / "bin" / "pytest").chmod(0o755)
    sandbox = images.start("conda")
    agent = SandboxWithVariables(sandbox, {"PAGER": "cat"})
    for command in ("command -v python; pytest", "bash -c 'command -v python; pytest'"):
        assert run(agent, command).output == f"{ENVIRONMENT}/bin/python\nmine\n"
    assert run(
        agent, 'python -c \'import os; print(os.environ["CONDA_DEFAULT_ENV"], os.environ["PAGER"])\''
    ).output == ("testbed cat\n")
    # The row's tests run in the image's environment, which its script activates by itself.
    assert run(sandbox, "command -v python || echo none; echo ${PAGER-none} ${BASH_ENV-none}").output == (
        "none\nnone none\n"
    )


@pytest.mark.parametrize(
    ("environment", "variables", "sourced"),
    [
        ("", {}, ["bashrc"]),
        ("export BASH_ENV=/etc/image_env\n", {}, ["image_env"]),
        ("export BASH_ENV=\n", {}, []),
        ("", {"BASH_ENV": ""}, []),
        ("export BASH_ENV=/etc/image_env\n", {"BASH_ENV": "/root/.bashrc"}, ["bashrc"]),
    ],
    ids=["neither", "image", "image, empty", "agent, empty", "both"],
)
def test_the_startup_file_is_the_agents_or_the_images_or_bashrc(images, environment, variables, sourced):
    files = {"root/.bashrc": "echo bashrc\n", "etc/image_env": "echo image_env\n"}
    images.make("env", files | {".singularity.d/env/10-docker2singularity.sh": f"#!/bin/sh\n{environment}"})
    sandbox = images.start("env")
    assert run(SandboxWithVariables(sandbox, variables), "true").output.split() == sourced
    assert run(sandbox, "true").output.split() == (["image_env"] if "image_env" in environment else [])


def test_an_image_without_bashrc_is_unchanged(images):
    image = images.make("plain", {})
    (image / "root" / ".bashrc").unlink(missing_ok=True)
    sandbox = images.start("plain")
    # What differs is the process, not the environment.
    show = "env -0 | sort -z | grep -zv '^_=' | tr '\\0' '\\n'"
    assert run(SandboxWithVariables(sandbox, {}), show).output == run(sandbox, show).output


def test_threads_of_numeric_libraries_follow_the_share_of_the_cores(images):
    images.make("threads", {".singularity.d/env/10-docker2singularity.sh": "#!/bin/sh\nexport MKL_NUM_THREADS=7\n"})
    cores = len(os.sched_getaffinity(0))
    show = "; ".join(f"echo {name}=${name}" for name in THREAD_VARIABLES)
    for settings, wanted in (
        ({}, max(1, cores // 32)),
        ({"train_concurrency": 1, "eval_concurrency": 1}, max(1, cores // 2)),
        ({"sandbox_threads": 5}, 5),
    ):
        sandbox = images.start("threads", **settings)
        expected = dict.fromkeys(THREAD_VARIABLES, str(wanted)) | {"MKL_NUM_THREADS": "7"}
        found = run(SandboxWithVariables(sandbox, {"OMP_NUM_THREADS": "3"}), show).output
        assert dict(line.split("=") for line in found.split()) == expected | {"OMP_NUM_THREADS": "3"}
        assert dict(line.split("=") for line in run(sandbox, show).output.split()) == expected


# --- files of other users -------------------------------------------------------------------------------------------


def own_all(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.lchown(path, OTHER_USER, OTHER_USER)


def lock(path: Path) -> None:
    path.chmod(0)


def own_and_protect(folder: Path) -> None:
    own_all(folder)
    for path in folder.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            path.chmod(0o400)
    (folder / "calc").chmod(0o500)


@pytest.mark.parametrize(
    "damage",
    [
        lambda repo: None,
        own_all,
        lambda repo: own_all(repo / ".git"),
        lambda repo: os.chown(repo, OTHER_USER, OTHER_USER),
        lambda repo: own_all(repo / "calc"),
        lambda repo: lock(repo / "calc"),
        lambda repo: lock(repo / "calc" / "core.py"),
        lambda repo: lock(repo),
        lambda repo: lock(repo / ".git"),
        own_and_protect,
    ],
    ids=["none", "all", ".git", "top", "folder", "mode 0", "file of mode 0", "top of mode 0", ".git of mode 0", "0400"],
)
def test_a_repository_that_root_could_not_write_is_repaired(images, damage):
    repo = images.make("owned", {"testbed/link": ""}) / "testbed"
    (repo / "link").unlink()
    (repo / "link").symlink_to("/etc/passwd")
    os.lchown(repo / "link", OTHER_USER, OTHER_USER)
    inside = os.stat(repo.parent / "etc" / "passwd")
    damage(repo)
    modes = {path: (path.lstat().st_uid, path.lstat().st_mode) for path in repo.parent.glob("*")}
    sandbox = images.start("owned")
    work = (
        "git status --porcelain && echo '# more' >>calc/core.py && touch calc/new.py .git/new && mv calc moved"
        " && mv moved calc && git add -A && git -c user.name=a -c user.email=a@b commit -qm more && git show --stat"
    )
    result = run(sandbox, work)
    assert result.returncode == 0 and "calc/new.py" in result.output, result.output
    # The agent's repository can be made of it, and the image itself is as it was.
    repository.prepare(Dataset(), Task("x", "", "owned", ""), sandbox)
    assert modes == {path: (path.lstat().st_uid, path.lstat().st_mode) for path in repo.parent.glob("*")}
    assert run(sandbox, "stat -c '%u %a' /etc/passwd").output == f"0 {stat.S_IMODE(inside.st_mode):o}\n"


def test_the_reporter_is_installed_in_environments_of_other_users(images):
    image = images.make("environments", {"opt/env/lib/python3.11/site-packages/own.py": ""})
    folders = [folder for folder in image.rglob("*-packages") if folder.parent.name.startswith("python3")]
    assert len(folders) > 1
    for folder in folders:
        os.chown(folder, OTHER_USER, OTHER_USER)
        folder.chmod(0o555)
    sandbox = images.start("environments")
    reporter = Reporter(Task("x", "", "", ""), sandbox)
    reporter.install()
    found = run(sandbox, f"find / -xdev -name '{reporter._name}.pth' -printf '%h\\n' 2>/dev/null").output
    assert {f"/{folder.relative_to(image)}" for folder in folders} <= set(found.split())
    reporter.remove()


def test_an_image_that_needs_no_repair_is_only_searched(images, monkeypatch):
    monkeypatch.setattr(ownership, "run_in_root", None)
    repo = images.make("fine", {}) / "testbed"
    next(path for path in repo.rglob("*") if ".git/objects" in str(path) and path.is_file()).chmod(0o444)
    assert run(images.start("fine"), "echo alive").output == "alive\n"


def test_a_link_in_place_of_the_repository_leads_to_nothing_of_the_host(images, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("x")
    own_all(outside)
    image = images.make("linked", {})
    (image / "testbed").rename(image / "elsewhere")
    own_all(image / "elsewhere")
    (image / "testbed").symlink_to("/elsewhere")
    (image / "elsewhere" / "out").symlink_to(outside)
    sandbox = images.start("linked")
    assert run(sandbox, "echo more >>calc/core.py && git status --porcelain").returncode == 0
    assert {path.stat().st_uid for path in (outside, outside / "file")} == {OTHER_USER}


def test_a_folder_of_the_host_in_the_repository_is_left_alone(images, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "file").write_text("x")
    own_all(shared)
    image = images.make("bound", {"testbed/data/.keep": ""})
    own_all(image / "testbed" / "calc")
    sandbox = images.start("bound", binds=((shared, "/testbed/data"),))
    assert run(sandbox, "echo more >>calc/core.py && cat data/file").output == "x"
    assert (shared / "file").stat().st_uid == OTHER_USER
