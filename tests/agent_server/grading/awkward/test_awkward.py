"""Runs of awkward repositories are the same with and without the reporter: outcomes test by test, printed lines, exit
code. What the reporter says is what the runner prints."""

import shlex
import subprocess
from collections.abc import Iterable

import pytest

from agent_server.grading.canary import failed_keys
from agent_server.grading.datasets.base import Dataset
from agent_server.grading.outcomes import expected_outcomes
from agent_server.grading.run_tests import run_tests
from agent_server.sandboxes import apptainer
from agent_server.tasks.task import Task
from tests.agent_server.conftest import DEMO
from tests.agent_server.grading.awkward.awkward import Awkward
from tests.agent_server.grading.awkward.environments import environments, install_make
from tests.agent_server.grading.awkward.layouts import LAYOUTS
from tests.agent_server.grading.awkward.oddities import ODDITIES
from tests.agent_server.grading.awkward.plugins import PLUGINS
from tests.agent_server.grading.awkward.printed import common_lines, pytest_outcomes, unittest_outcomes
from tests.agent_server.grading.awkward.processes import PROCESSES
from tests.agent_server.grading.awkward.runners import RUNNERS
from tests.agent_server.grading.awkward.switches import SWITCHES
from tests.agent_server.grading.grading_bench import LIMITS
from tests.agent_server.grading.sample_images import write

pytestmark = pytest.mark.slow
REPOSITORIES = LAYOUTS | SWITCHES | PLUGINS | ODDITIES | PROCESSES | RUNNERS
TASK = Task("awkward", "", "", "", (), (), {})


@pytest.fixture(scope="module")
def image(sample_rows, tmp_path_factory):
    """One root for all: the demo's, the Python environments, and every repository by its number."""
    root = tmp_path_factory.mktemp("awkward") / "image"
    shell = f"""
cp -al {shlex.quote(str(sample_rows[0].parent / "root"))} {shlex.quote(str(root))}
cp -a {shlex.quote(str(environments(DEMO.parent)))} {shlex.quote(str(root / "opt/venvs"))}
"""
    subprocess.run(["bash", "-euc", shell], check=True)
    install_make(root)
    for number, repository in enumerate(REPOSITORIES.values()):
        write(root / f"repositories/{number}", repository.files)
    (root / "testbed").mkdir()
    return root


@pytest.fixture
def sandbox_of(image, tmp_path):
    """A factory of fresh sandboxes of a repository."""
    opened = []

    def start(name: str):
        repository = REPOSITORIES[name]
        opened.append(
            apptainer.start(image, scratch=tmp_path, env=repository.variables, start_timeout_s=60, limits=LIMITS)
        )
        number = list(REPOSITORIES).index(name)
        prepare = f"cp -a /repositories/{number}/. /testbed/; {path_of(repository)}{repository.prepare or 'true'}"
        done = opened[-1].run(prepare, cwd="/testbed", timeout_s=120)
        assert done.returncode == 0, done.output
        return opened[-1]

    yield start
    for sandbox in opened:
        sandbox.close()


def path_of(repository: Awkward) -> str:
    return f"export PATH=/opt/venvs/{repository.environment}/bin:$PATH\n"


@pytest.mark.parametrize("name", REPOSITORIES)
def test_a_run_is_its_own(sandbox_of, name):
    repository = REPOSITORIES[name]
    script = path_of(repository) + repository.script
    sandbox = sandbox_of(name)
    sandbox.write_file("/tmp/.script", script)
    plain = sandbox.run("bash /tmp/.script >/tmp/.plain 2>&1 </dev/null", cwd="/testbed", timeout_s=120)
    log = sandbox.run("cat /tmp/.plain", cwd="/testbed", timeout_s=60).output
    assert plain.returncode == repository.returncode, log

    run = run_tests(TASK, sandbox_of(name), script, 120.0)
    assert run.report.is_whole, f"{run.report.fault}\n{run.log}"
    assert {test.id: test.outcome for test in run.report.tests} == repository.expected, run.log
    assert run.returncode == plain.returncode
    lines = [common_lines(text, is_ordered=repository.is_ordered) for text in (log, run.log)]
    assert lines[0] == lines[1]

    read = pytest_outcomes if repository.prints == "pytest" else unittest_outcomes
    printed = read(log)
    named = {test.id: test.outcome for test in run.report.tests if test.name}  # without skipped and broken modules
    assert {_id_of(name, named, repository): outcome for name, outcome in printed.items()} == named, log
    # A row may name its tests as they were printed.
    outcomes = Dataset().outcomes(TASK, run)
    assert expected_outcomes(printed, outcomes) == printed, outcomes


@pytest.mark.parametrize("name", REPOSITORIES)
def test_what_passes_honestly_fails_in_the_canary_run(sandbox_of, name):
    script = path_of(REPOSITORIES[name]) + REPOSITORIES[name].script
    honest = run_tests(TASK, sandbox_of(name), script, 120.0)
    passed = {test.key: test.id for test in honest.report.tests if test.outcome == "PASSED"}
    again = run_tests(TASK, sandbox_of(name), script, 120.0, canary=passed)
    failed = failed_keys(again.report)
    assert {passed[key] for key in passed.keys() - failed} == set(), again.log


def _id_of(printed: str, ids: Iterable[str], repository: Awkward) -> str:
    """The id that stands for a printed one, which is relative to the folder that the runner was started in."""
    if repository.shown[0]:
        printed = printed.replace(*repository.shown)
    same = [id for id in ids if f"/{id}".endswith(f"/{printed}") or f"/{printed}".endswith(f"/{id}")]
    return max(same, key=len, default=printed)
