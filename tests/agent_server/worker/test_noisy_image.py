"""Sessions in an image that prints whenever a shell starts and has files of another user; the agent leaves litter."""

import os
import shlex
import shutil
import subprocess

import pytest

from tests.agent_server.conftest import launch, shut_down
from tests.agent_server.grading.sample_images import write
from tests.agent_server.grading.sample_rows import FIXED, SOURCE_PATCH_PATH
from tests.scripted_model import SUBMIT

FIX = f"printf %s {shlex.quote(FIXED)} >{SOURCE_PATCH_PATH}"
WRITER = "(while :; do echo noise; echo noise >&2; sleep 0.001; done) &"
LITTER = "head -c 20000000 /dev/urandom >core.bin"
ENVIRONMENT = "#!/bin/sh\nexport LC_ALL=en_US.UTF-8 BASH_ENV=/root/.bashrc ENV=/root/.bashrc\n"
STARTUP = """echo "welcome to $(hostname)"; echo 'and mind the step' >&2
export PROMPT_COMMAND='echo prompt'
PATH=/opt/own/bin:$PATH
"""


@pytest.fixture(scope="module")
def noisy_server(sample_rows, tmp_path_factory):
    images, row = sample_rows[0], sample_rows[1]["swebench_new"]
    folder = tmp_path_factory.mktemp("noisy")
    (name,) = [path.name for path in images.iterdir() if "calc-1" in path.name]
    image = folder / "images" / name
    image.parent.mkdir()
    subprocess.run(["cp", "-al", str(images / name), str(image)], check=True)
    shutil.rmtree(image / "testbed")
    shutil.copytree(images / name / "testbed", image / "testbed", symlinks=True)
    write(image, {"root/.bashrc": STARTUP, ".singularity.d/env/10-docker2singularity.sh": ENVIRONMENT})
    write(image, {"opt/own/bin/answer": "#!/bin/sh\necho forty-two\n"})
    (image / "opt/own/bin/answer").chmod(0o755)
    for path in (image / "testbed", *(image / "testbed").rglob("*")):
        os.lchown(path, 1000, 1000)
    (image / "testbed/calc").chmod(0)
    server = launch(folder / "work", R2E_DATA_PATH=str(row.path), R2E_SIF_DIR=str(image.parent))
    yield server, row.task_id
    shut_down(server)


@pytest.mark.parametrize(
    ("script", "left_out"),
    [
        ([FIX], []),
        ([f"{WRITER}\n{FIX}"], []),
        ([f"{FIX}; {LITTER}"], ["core.bin"]),
        ([f"{FIX}; git diff >/tmp/p; git checkout -q .; {WRITER}", f"{SUBMIT} && cat /tmp/p"], []),
        ([FIX, f"{SUBMIT}; echo I have fixed it."], []),
    ],
    ids=["quiet", "background", "litter", "own patch", "a remark"],
)
def test_right_work_is_rewarded(noisy_server, model, script, left_out):
    server, task_id = noisy_server
    view = server.run(model, script, task_id=task_id)
    assert (view.status, view.reward, view.agent_exit_status) == ("completed", 1.0, "Submitted"), view
    assert "noise" not in view.submission and view.grade["left_out"] == left_out


def test_wrong_work_is_not_and_the_agent_sees_the_images_environment(noisy_server, model):
    server, task_id = noisy_server
    view = server.run(
        model, [f"{WRITER} answer; echo $LC_ALL", "echo '# more' >>README.md"], key="noisy", task_id=task_id
    )
    assert (view.status, view.reward, view.grade["status"]) == ("completed", 0.0, "graded")
    seen = model.requests["noisy"][1]["messages"][-1]["content"]
    assert "\nforty-two\n" in seen and "\nen_US.UTF-8\n" in seen and "welcome to" in seen
    empty = server.run(model, [f"{WRITER}"], task_id=task_id)
    assert (empty.reward, empty.grade["status"]) == (0.0, "no_submission")
    large = server.run(model, ["head -c 20000000 /dev/urandom >README.md"], task_id=task_id)
    assert (large.status, large.reward, large.grade["status"]) == ("completed", 0.0, "submission_too_large")
    assert "exceeds" in large.grade["log"] and large.submission == ""
