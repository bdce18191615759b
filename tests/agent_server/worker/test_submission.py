"""Submissions of agents: the repository's diff without files that are too large, patches that are too large, and
whatever prints or writes meanwhile."""

import pytest

from agent_server.agents.base import AgentResult
from agent_server.grading import changes, repository
from agent_server.grading.placement import AgentSandbox
from agent_server.worker import submission
from agent_server.worker.submission import TOO_LARGE
from tests.agent_server.conftest import eventually
from tests.agent_server.grading.grading_bench import IDENTITY, PATCH, SOLVE, run

SUBMITTED = AgentResult("Submitted", True, "", 3)
LARGE = "head -c 20000000 /dev/urandom"


@pytest.fixture
def bench(grading_bench):
    return grading_bench("swesmith")


def left_by(bench, edit):
    """The submission of an agent that runs `edit` and submits."""
    sandbox = bench.agents()
    result = run(sandbox, edit)
    assert result.returncode == 0, result.output
    return submission.collect(SUBMITTED, sandbox)


@pytest.mark.parametrize(
    ("edit", "left_out"),
    [
        (f"{LARGE} >core.bin", ("core.bin",)),
        (f"{LARGE} >core.bin; git add core.bin", ("core.bin",)),
        (f"{LARGE} >core.bin; {IDENTITY}; git add -A; git commit -qm all; echo >>core.bin", ("core.bin",)),
        (f"mkdir -p 'a [b]'; {LARGE} >'a [b]/:(top) \\*'; {LARGE} >-rf", ("-rf", "a [b]/:(top) \\*")),
        (f"{LARGE} >\"$(printf 'n\\nl\\xff')\"", ("n\nl\ufffd",)),
        ("truncate -s 1048577 sparse", ("sparse",)),
        ("for n in 1 2 3 4 5; do head -c 1000000 /dev/urandom >part$n; done", ("part5",)),
        (f"{LARGE} >build.pyc", ()),
    ],
    ids=["untracked", "added", "committed", "odd names", "not UTF-8", "sparse", "together", "ignored"],
)
def test_large_new_files_are_left_out_and_named(bench, edit, left_out):
    found = left_by(bench, f"{SOLVE}; echo kept >kept.txt; {edit}")
    assert (found.left_out, found.refused, found.ungraded()) == (left_out, "", None)
    assert "kept.txt" in found.result.submission and "core.bin" not in found.result.submission
    grade = bench.grade(found.result.submission)
    assert grade.resolved, grade.log


def test_files_up_to_the_limit_are_part_of_the_submission(bench):
    found = left_by(bench, f"{SOLVE}; head -c 1048576 /dev/urandom >data.bin")
    assert found.left_out == () and "data.bin" in found.result.submission
    assert bench.grade(found.result.submission).resolved


def test_a_diff_over_the_limit_has_a_status_of_its_own(bench):
    found = left_by(bench, f"{SOLVE}; {LARGE} >README.md")
    grade = found.ungraded()
    assert (grade.resolved, grade.status, found.result.submission) == (False, TOO_LARGE, "")
    assert "repository's diff exceeds" in grade.log


def test_a_patch_of_the_agents_own_is_whole_or_refused(bench):
    sandbox = bench.agents()
    own = AgentResult("Submitted", True, PATCH, 1)
    assert submission.collect(own, sandbox).result == own
    long = AgentResult("Submitted", True, PATCH + "#" * changes.MAX_DIFF_BYTES, 1)
    found = submission.collect(long, sandbox)
    assert (found.ungraded().status, found.result.submission) == (TOO_LARGE, "")
    assert f"{len(long.submission)} bytes" in found.refused


def test_no_submission_stays_none(bench):
    sandbox = bench.agents()
    run(sandbox, SOLVE)
    found = submission.collect(AgentResult("LimitsExceeded", False, "", 5), sandbox)
    assert found.ungraded().status == "no_submission"
    assert submission.collect(SUBMITTED, bench.agents()).ungraded().status == "no_submission"
    broken = left_by(bench, f"{SOLVE}; rm -rf .git")
    assert broken.ungraded().status == "no_submission"


def test_a_large_new_folder_displaces_no_file_beside_it(bench):
    """Thousands of small files, as of installed packages, and a new module of the fix that is larger than each."""
    many = "mkdir -p lib/sub; for n in $(seq 1500); do head -c 4000 /dev/urandom >lib/sub/$n; done"
    module = "for n in $(seq 8000); do echo value_$n = $n; done >calc/values.py; mkdir new; cp calc/values.py new/"
    found = left_by(bench, f"{SOLVE}; {many}; {module}")
    assert 400 < len(found.left_out) < 700 and all(name.startswith("lib/sub/") for name in found.left_out)
    assert "b/calc/values.py" in found.result.submission and "b/new/values.py" in found.result.submission
    assert bench.grade(found.result.submission).resolved


@pytest.mark.parametrize(
    "meanwhile",
    [
        "(while :; do echo noise; echo noise >&2; done) & (while :; do date >>noise.log; done) &",
        "git config --global color.ui always; git config --global core.quotePath false; export GIT_TRACE=1",
        "git config core.autocrlf input; printf 'a\\r\\nb\\r\\n' >crlf.txt",
        "mkdir locked; echo x >locked/new.py; chmod 0 locked calc",
        "echo x >unreadable.txt; chmod 0 unreadable.txt calc/core.py",
    ],
    ids=["background", "git settings", "git warnings", "locked folders", "locked files"],
)
@pytest.mark.parametrize("in_place", [False, True], ids=["fresh", "same"])
def test_whatever_else_prints_or_locks_the_submission_is_graded(bench, meanwhile, in_place):
    strategy = AgentSandbox()
    sandbox = bench.sandbox()
    strategy.prepare(bench.dataset, bench.task, sandbox)
    assert run(sandbox, f"{SOLVE}; {meanwhile}").returncode == 0
    found = submission.collect(SUBMITTED, sandbox)
    assert "noise\n" not in found.result.submission.replace("+noise\n", "") and found.refused == ""
    options = {"sandbox": sandbox, "strategy": strategy} if in_place else {}
    grade = bench.grade(found.result.submission, **options)
    assert grade.resolved, (found.result.submission, grade.log)


@pytest.mark.parametrize(
    "env",
    [{"LC_ALL": "xx_XX.UTF-8"}, {"BASH_ENV": "/root/.noise"}, {"GIT_TRACE": "1", "GIT_DIR": "/nowhere"}],
    ids=["locale", "startup file", "git"],
)
def test_an_environment_that_prints_changes_no_grade(bench, env):
    def noisy():
        sandbox = bench.sandbox(env=env)
        sandbox.write_file("/root/.noise", "echo noise\necho noise >&2\n")
        return sandbox

    agents = noisy()
    repository.prepare(bench.dataset, bench.task, agents)
    assert run(agents, f"unset ${{!GIT_@}}; {SOLVE}").returncode == 0
    found = submission.collect(SUBMITTED, agents)
    assert "noise" not in found.result.submission
    grade = bench.grade(found.result.submission, sandbox=noisy())
    assert grade.resolved, grade.log
    assert not bench.grade("", sandbox=noisy()).resolved


def test_an_agent_that_filled_its_disk_keeps_its_fix(bench):
    sandbox = bench.agents()
    run(sandbox, SOLVE)
    assert run(sandbox, "head -c 1G /dev/zero >filler").limit == "disk"
    found = submission.collect(SUBMITTED, sandbox)
    assert found.left_out == ("filler",) and bench.grade(found.result.submission).resolved


def test_the_agents_processes_have_ended_before_the_diff(bench):
    sandbox = bench.agents()
    run(sandbox, f"{SOLVE}; (while :; do echo more >>grown.txt; done) & echo $! >/tmp/pid")
    eventually(lambda: run(sandbox, "test -s grown.txt").returncode == 0, what="the process writes")
    found = submission.collect(SUBMITTED, sandbox)
    assert run(sandbox, "kill -0 $(cat /tmp/pid)").returncode != 0
    assert run(sandbox, "wc -l <grown.txt").output == f"{found.result.submission.count('+more')}\n"
