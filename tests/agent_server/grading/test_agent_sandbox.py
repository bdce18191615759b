"""Grading in the agent's own sandbox: what stays, and what the agent left there without effect."""

from dataclasses import replace

import pytest

from agent_server.grading import changes
from agent_server.grading.placement import AgentSandbox, FreshSandbox
from tests.agent_server.grading.grading_bench import (
    HARMLESS,
    IDENTITY,
    PATCH,
    PLANT_CONFTEST,
    SOLVE,
    graded_in_agent_sandbox,
    run,
    whole_repository,
)


def test_installed_files_stay_and_the_rest_is_reset(grading_bench):
    for name in ("swesmith", "r2e_a"):
        bench = grading_bench(name)
        sandbox, strategy = bench.sandbox(), AgentSandbox()
        strategy.prepare(bench.dataset, bench.task, sandbox)
        assert (
            run(
                sandbox,
                (
                    f"{SOLVE}; echo 1 >/usr/local/installed; echo junk >junk.py; (sleep 1000 & ) ; git "
                    "commit -qam mine || git -c user.name=a -c user.email=a@b commit -qam mine"
                ),
            ).returncode
            == 0
        )
        found = bench.grade(PATCH, sandbox=sandbox, strategy=strategy)
        assert found.resolved, found.log
        assert run(sandbox, "cat /usr/local/installed; ls junk.py; pgrep sleep").output.startswith(
            "1\nls: cannot access"
        )


@pytest.mark.parametrize("in_place", [False, True])
def test_untracked_folders_of_the_image_are_not_submitted(grading_bench, in_place):
    """A virtual environment, say, in the repository's folder."""
    swesmith = grading_bench("swesmith")
    agents, fresh = swesmith.sandbox(), swesmith.sandbox()
    for sandbox in (agents, fresh):
        assert (
            run(
                sandbox,
                (
                    "mkdir -p '.venv/lib/a [b]' 'x #y' && head -c 20000000 /dev/urandom >'.venv/lib/a "
                    "[b]/big' && echo 1 >'x #y/z' && echo 1 >'!odd \\name '"
                ),
            ).returncode
            == 0
        )
    strategy = AgentSandbox() if in_place else FreshSandbox()
    strategy.prepare(swesmith.dataset, swesmith.task, agents)
    assert run(agents, "git status --porcelain").output == ""
    run(agents, f"{SOLVE}; echo new >new.txt")
    patch = changes.collect_diff(agents)
    assert "new.txt" in patch and len(patch) < 1000
    assert swesmith.grade(patch, sandbox=agents if in_place else fresh, strategy=strategy).resolved
    if in_place:
        assert run(agents, "ls '.venv/lib/a [b]/big' '!odd \\name '").returncode == 0


def test_hidden_tests_may_lie_in_folders_of_any_name(grading_bench):
    swesmith = grading_bench("swesmith")
    moved = {test: test.replace("tests/", "my tests/") for test in swesmith.task.fail_to_pass}
    swesmith.task = replace(
        swesmith.task,
        fail_to_pass=tuple(moved.values()),
        pass_to_pass=(),
        row=swesmith.task.row | {"test_cmd": "python3 -m pytest -rA 'my tests/test_total.py'"},
    )
    fresh, agents = swesmith.sandbox(), swesmith.sandbox()
    for sandbox in (fresh, agents):
        assert run(sandbox, "mkdir 'my tests' && git mv tests/test_total.py 'my tests/'").returncode == 0
    strategy = AgentSandbox()
    strategy.prepare(swesmith.dataset, swesmith.task, agents)
    assert run(agents, "find . -path '*my tests/*'").output == ""
    run(agents, SOLVE)
    patch = changes.collect_diff(agents)
    assert swesmith.grade(patch, sandbox=fresh).resolved
    assert swesmith.grade(patch, sandbox=agents, strategy=strategy).resolved


@pytest.mark.parametrize(
    "trick",
    [
        f"{IDENTITY}; git checkout -q --orphan mine; {PLANT_CONFTEST} >conftest.py; git add -A; git commit -qm mine",
        f"{PLANT_CONFTEST} >conftest.py; echo conftest.py >>.git/info/exclude",
        (
            f"mkdir -p build; {PLANT_CONFTEST} >build/conftest.py; {PLANT_CONFTEST} >conftest.py; "
            "echo conftest.py >>~/.ignored; git config --global core.excludesFile ~/.ignored"
        ),
        (
            f"{IDENTITY}; {PLANT_CONFTEST} >conftest.py; git add conftest.py; git commit -qm mine; "
            "git replace $(git rev-list --max-parents=0 HEAD | tail -n 1) HEAD"
        ),
        (
            f"{IDENTITY}; {PLANT_CONFTEST} >conftest.py; git add -f conftest.py; git commit -qm "
            "x; rm -rf .git; git init -q; git add -A; git commit -qm base"
        ),
        f"{PLANT_CONFTEST} >conftest.py; rm -rf .git",
        (
            f"for number in 0 1 2; do mkdir -p /tmp/.aside/$number; {PLANT_CONFTEST} >/tmp/.aside/$number/con"
            "ftest.py; done"
        ),
        f"{PLANT_CONFTEST} >tests/conftest.py; echo '*' >tests/.gitignore",
        "mkdir /tmp/.gitconfig /tmp/.git.aside; ln -s / /tmp/.protected.tar",
        "head -c 255M /dev/zero >/tmp/full; true",
        f"{PLANT_CONFTEST} >conftest.py; git config core.worktree /tmp",
        (
            f"{PLANT_CONFTEST} >conftest.py; mkdir mine; mv conftest.py mine/; git init -q mine; "
            f"cd mine; {IDENTITY}; git add -A; git commit -qm x"
        ),
    ],
    ids=[
        "orphan",
        "excluded",
        "global ignore",
        "replaced",
        "another repository",
        "no repository",
        "set aside",
        "ignores itself",
        "names in /tmp",
        "full",
        "worktree",
        "nested repository",
    ],
)
def test_leftovers_in_the_repository_gain_nothing(grading_bench, trick):
    found = graded_in_agent_sandbox(whole_repository(grading_bench("swesmith")), trick, HARMLESS)
    assert not found.resolved, found.log
