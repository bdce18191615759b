"""Fixtures of the evaluation's tests: a fake endpoint, and the command as a process."""

import os
import subprocess
import sys

import pytest

from tests.agent_server.conftest import ROOT
from tests.client.evaluation.command import FIX, TASK_A, TASK_B, TEXT
from tests.client.evaluation.fake_endpoint import KEY, serving_endpoint


@pytest.fixture
def endpoint():
    """Solves both tasks, each time."""
    with serving_endpoint() as fake:
        fake.scripts = {TEXT[task]: [FIX[task]] for task in (TASK_A, TASK_B)}
        yield fake


@pytest.fixture
def evaluate(server, endpoint, tmp_path):
    """Starts the command on the two tasks. Processes that still run at the end are killed."""
    started = []

    def start(
        *options: str, server_url: str = "", environment: dict | None = None, prefix: tuple[str, ...] = ()
    ) -> subprocess.Popen:
        command = [*prefix, sys.executable, "-m", "client.evaluation", "--server", server_url or server.url]
        command += ["--base-url", endpoint.url, "--model", "some-model", "--api-key-env", "THE_KEY"]
        command += ["--split", "train", "--tasks", TASK_A, TASK_B, "--out", str(tmp_path / "out"), *options]
        variables = os.environ | {"THE_KEY": KEY} | (environment or {})
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=ROOT, env=variables, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
