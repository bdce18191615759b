"""No submission escapes its 0, none that solves is graded 0, and the agent's sandbox tells nothing of the fix."""

import shlex
from dataclasses import replace

import pytest

from agent_server.grading import repository
from agent_server.grading.placement import AgentSandbox, FreshSandbox
from tests.agent_server.grading.grading_bench import (
    HARMLESS,
    IDENTITY,
    SOLVE,
    graded_in_agent_sandbox,
    run,
    solves,
)

# --- read in the agent's sandbox --------------------------------------------------------------------------------------------


def test_what_an_r2e_image_tells_of_its_commit_is_gone(grading_bench):
    r2e = grading_bench("r2e_a")
    agents, fresh = r2e.sandbox(), r2e.sandbox()
    for sandbox in (agents, fresh):
        assert (
            run(
                sandbox,
                "for file in parsed_commit.json /expected_test_output.json execution_result.json /root/modified_files.json; do mkdir -p $(dirname $file); echo the-commits-fix >$file; done; git add -f parsed_commit.json",
            ).returncode
            == 0
        )
    repository.prepare(r2e.dataset, r2e.task, agents)
    look = "grep -rl the-commits-fix / --exclude-dir=proc --exclude-dir=sys --devices=skip 2>/dev/null; git log --all -p | grep the-commits-fix"
    assert run(agents, look).output == ""
    run(agents, SOLVE)
    assert r2e.grade(repository.collect_diff(agents), sandbox=fresh).resolved
    assert "parsed_commit" not in run(fresh, "ls / /root /testbed").output


def test_nothing_compiled_tells_of_hidden_tests_or_of_the_code_without_its_bug(grading_bench):
    swesmith = grading_bench("swesmith")
    sandbox = swesmith.sandbox()
    assert (
        run(
            sandbox,
            "python3 -m compileall -q . && python3 -m pytest -q tests; ls tests/__pycache__/test_total* .pytest_cache",
        ).returncode
        == 0
    )
    repository.prepare(swesmith.dataset, swesmith.task, sandbox)
    assert (
        run(sandbox, "find . -name '*.pyc'; ls .pytest_cache 2>/dev/null; grep -rl 'two of them' . 2>/dev/null").output
        == ""
    )


def test_a_bug_may_be_a_file_that_is_gone(grading_bench):
    swesmith = grading_bench("swesmith")
    gone = "diff --git a/README.md b/README.md\ndeleted file mode 100644\n--- a/README.md\n+++ /dev/null\n@@ -1 +0,0 @@\n-calc\n"
    swesmith.task = replace(swesmith.task, row=swesmith.task.row | {"patch": swesmith.task.row["patch"] + gone})
    assert swesmith.grade(swesmith.patch(SOLVE)).resolved


@pytest.mark.parametrize("in_place", [False, True])
def test_what_the_image_has_besides_the_repository_is_not_the_agents_work(grading_bench, in_place):
    """A virtual environment, say, in the repository's folder."""
    swesmith = grading_bench("swesmith")
    agents, fresh = swesmith.sandbox(), swesmith.sandbox()
    for sandbox in (agents, fresh):
        assert (
            run(
                sandbox,
                "mkdir -p '.venv/lib/a [b]' 'x #y' && head -c 20000000 /dev/urandom >'.venv/lib/a [b]/big' && echo 1 >'x #y/z' && echo 1 >'!odd \\name '",
            ).returncode
            == 0
        )
    place = AgentSandbox() if in_place else FreshSandbox()
    place.prepare(swesmith.dataset, swesmith.task, agents)
    assert run(agents, "git status --porcelain").output == ""
    run(agents, f"{SOLVE}; echo new >new.txt")
    patch = repository.collect_diff(agents)
    assert "new.txt" in patch and len(patch) < 1000
    assert swesmith.grade(patch, sandbox=agents if in_place else fresh, place=place).resolved
    if in_place:
        assert run(agents, "ls '.venv/lib/a [b]/big' '!odd \\name '").returncode == 0


def test_a_patch_does_not_change_what_is_installed_in_the_repositorys_folder(grading_bench):
    swesmith = grading_bench("swesmith")
    fresh = swesmith.sandbox()
    assert (
        run(
            fresh, "mkdir -p env/lib/site-packages/_pytest && echo 1 >env/lib/site-packages/_pytest/runner.py"
        ).returncode
        == 0
    )
    evil = "--- a/env/lib/site-packages/_pytest/runner.py\n+++ b/env/lib/site-packages/_pytest/runner.py\n@@ -1 +1 @@\n-1\n+2\n"
    found = swesmith.grade(swesmith.patch(SOLVE) + evil, sandbox=fresh)
    assert (found.resolved, found.status) == (False, "patch_failed") and "_pytest/runner.py" in found.log


# --- away from its 0 --------------------------------------------------------------------------------------------------------


def test_half_a_surrogate_is_no_failure_of_ours(grading_bench):
    found = grading_bench("swesmith").grade(HARMLESS.replace("calc.", "calc\ud800."))
    assert not found.resolved


@pytest.mark.parametrize(
    "code",
    [
        "print('bash: fork: Cannot allocate memory'); import os; os._exit(1)",
        "print('Killed', flush=True); import os; os._exit(1)",
        "import os, signal; os.kill(-1, signal.SIGKILL)",
        "import os, signal\nfor pid in range(1, 400):\n    try: os.kill(pid, signal.SIGKILL) if pid != os.getpid() else None\n    except OSError: pass",
        "import os, signal; os.killpg(0, signal.SIGKILL)",
        "import shutil; shutil.rmtree('/tmp', ignore_errors=True); shutil.rmtree('/testbed', ignore_errors=True)",
        "import glob, os\nfor file in glob.glob('/tmp/.log*'):\n    os.unlink(file); os.mkfifo(file)",
        "import os\nos.system('rm -rf /bin /usr/bin/base64 /usr/bin/gzip /usr/bin/tail')",
        "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        while True: os.write(2, os.urandom(65536))\n    os._exit(0)",
        "import os\nos.write(1, b'ERROR:\\nFAIL:\\n'); os._exit(1)",
    ],
    ids=[
        "prints of memory",
        "prints Killed",
        "kills all",
        "kills each",
        "kills its group",
        "deletes",
        "a pipe for the log",
        "deletes programs",
        "prints on",
        "breaks the parser",
    ],
)
@pytest.mark.parametrize("name", ["swebench_new", "swebench_old", "eval_script"])
def test_what_the_tests_do_to_the_sandbox_is_a_zero(grading_bench, name, code):
    bench = grading_bench(name)
    patch = bench.patch(f"printf '%s\\n' {shlex.quote(code)} >>calc/core.py")
    found = bench.grade(patch)
    assert (found.resolved, found.status) == (False, "graded")


def test_a_report_that_is_no_report_is_a_zero(grading_bench):
    django = grading_bench("swebench_old")
    code = "import os\nopen(os.environ['UNITTEST_REPORT'], 'w').write('[' * 1000000)\nos._exit(0)"
    assert not django.grade(django.patch(f"printf '%s\\n' {shlex.quote(code)} >>calc/core.py")).resolved
    deep = "import glob, os, re\npath = re.search('junitxml=([^ ]+)', os.environ['PYTEST_ADDOPTS']).group(1)\nopen(path, 'w').write('<a>' * 1000000)\nos._exit(0)"
    bench = grading_bench("swebench_new")
    assert not bench.grade(bench.patch(f"printf '%s\\n' {shlex.quote(deep)} >>calc/core.py")).resolved


@pytest.mark.parametrize("target", ["/dev/zero", "/proc/self/fd", "conftest.py", "/nowhere"])
def test_a_link_to_what_never_ends_is_not_followed(grading_bench, target):
    swesmith = grading_bench("swesmith")
    found = swesmith.grade(swesmith.patch(f"{SOLVE}; ln -s {target} conftest.py; ln -s {target} tests/data"))
    assert found.resolved and found.touched == ("./conftest.py", "./tests/data")


@pytest.mark.parametrize("folder", ["tests", "other"])
def test_many_files_are_no_failure_of_ours(grading_bench, folder):
    swesmith = grading_bench("swesmith")
    made = f"mkdir -p {folder} && cd {folder} && for i in $(seq 3000); do mkdir d$i; echo x >d$i/conftest.py; done; cd ..; {SOLVE}"
    found = swesmith.grade(swesmith.patch(made))
    assert found.resolved and len(found.touched) == 3000


def test_a_patch_that_unpacks_to_more_than_a_sandbox_holds_is_a_zero(grading_bench):
    swesmith = grading_bench("swesmith")
    agents = swesmith.agents()
    run(agents, "truncate -s 200M big")
    bomb = repository.collect_diff(agents)
    assert len(bomb) < 2**21
    many = "".join(bomb.replace("/big", f"/big{number}") for number in range(10))
    found = swesmith.grade(many)
    assert not found.resolved


# --- graded 0 wrongly -------------------------------------------------------------------------------------------------------


def test_a_commit_is_no_way_to_lose_the_work(grading_bench):
    swesmith = grading_bench("swesmith")
    for edit in (
        f"{IDENTITY}; {SOLVE}; git commit -qam mine",
        f"{IDENTITY}; git checkout -qb mine; {SOLVE}; git commit -qam mine; git checkout -q --detach",
        f"{SOLVE}; touch .git/index.lock",
        f"{SOLVE}; git config diff.noprefix true; git config color.ui always; git config diff.external false; git config diff.context 0",
        f"{SOLVE}; git init -q scratch",
        f"{SOLVE}; git init -q scratch; cd scratch; {IDENTITY}; echo x >x; git add -A; git commit -qm x",
        f"{SOLVE}; printf 'caf\\xe9\\n' >notes.txt",
        f"{SOLVE}; mkfifo pipe",
    ):
        patch = swesmith.patch(edit)
        found = swesmith.grade(patch)
        assert found.resolved, (edit, found.status, found.log, patch)
        assert graded_in_agent_sandbox(swesmith, edit).resolved, edit


def test_a_fix_in_a_file_of_another_encoding_counts(grading_bench):
    swesmith = grading_bench("swesmith")
    agents, fresh = swesmith.sandbox(), swesmith.sandbox()
    for sandbox in (agents, fresh):
        assert run(sandbox, "printf 'caf\\xe9\\nth\\xe9\\n' >calc/words.txt; git add -A").returncode == 0
    repository.prepare(swesmith.dataset, swesmith.task, agents)
    assert run(agents, f"{SOLVE}; printf 'lait\\n' >>calc/words.txt").returncode == 0
    found = swesmith.grade(repository.collect_diff(agents), sandbox=fresh)
    assert found.resolved, found.log
    assert run(fresh, "printf 'caf\\xe9\\nth\\xe9\\nlait\\n' | cmp - calc/words.txt").returncode == 0


def test_modes_of_protected_files_are_restored(grading_bench):
    django = grading_bench("swebench_old")
    solved, lost = solves(django, "chmod -x tests/runtests.py")
    assert solved.resolved and not lost.resolved
    assert solved.touched == ("./tests/runtests.py",)


def test_a_fix_may_come_with_any_file_names(grading_bench):
    swesmith = grading_bench("swesmith")
    edit = f"{SOLVE}; mkdir -p 'a b' && echo x >'a b/c d.txt' && echo x >\"$(printf 'new\\nline')\" && echo x >-dash && echo x >é && printf 'a\\r\\nb\\r\\n' >dos.txt && ln -s nowhere link && head -c 100000 /dev/urandom >random.bin && touch empty"
    assert swesmith.grade(swesmith.patch(edit)).resolved
    assert graded_in_agent_sandbox(swesmith, edit).resolved


def test_a_patch_with_windows_line_ends_still_counts(grading_bench):
    swesmith = grading_bench("swesmith")
    assert swesmith.grade(swesmith.patch(SOLVE).replace("\n", "\r\n")).resolved


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
    place = AgentSandbox()
    place.prepare(swesmith.dataset, swesmith.task, agents)
    assert run(agents, "find . -path '*my tests/*'").output == ""
    run(agents, SOLVE)
    patch = repository.collect_diff(agents)
    assert swesmith.grade(patch, sandbox=fresh).resolved
    assert swesmith.grade(patch, sandbox=agents, place=place).resolved
