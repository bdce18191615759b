"""Where the files of ids lie whose tests run in a sub-folder."""

import pytest

from agent_server.grading.test_locations import locate
from tests.agent_server.grading.grading_bench import run

FILES = (
    "libs/core/tests/unit/test_a.py", "libs/other/tests/unit/test_a.py", "tests/unit/test_b.py",
    "libs/core/tests/unit/test_b.py", "libs/core/mytests/unit/test_a.py", "a b/tests/é [x].py",
)  # fmt: skip


@pytest.fixture
def repository(grading_bench):
    """The bench and a sandbox whose repository has these files, tracked, and one that is not."""
    bench = grading_bench("swesmith")
    sandbox = bench.sandbox()
    make = "\n".join(f'mkdir -p "$(dirname "{file}")"; touch "{file}"' for file in FILES)
    done = run(sandbox, f"{make}\ngit add -A && mkdir -p libs/new/tests/unit && touch libs/new/tests/unit/test_c.py")
    assert done.returncode == 0, done.output
    return bench.task, sandbox


@pytest.mark.parametrize(
    "files, found",
    [
        (["tests/unit/test_a.py"], ["libs/core/tests/unit/test_a.py", "libs/other/tests/unit/test_a.py"]),
        (["unit/test_a.py"], ["libs/core/mytests/unit/test_a.py", *FILES[:2]]),
        (["tests/unit/test_b.py"], ["tests/unit/test_b.py"]),
        (["./tests/unit/test_b.py"], ["tests/unit/test_b.py"]),
        (["tests/é [x].py"], ["a b/tests/é [x].py"]),
        (["tests/unit"], ["tests/unit"]),
        (["nowhere/test_x.py"], ["nowhere/test_x.py"]),
        (["/r2e_tests", "tests/unit/test_b.py"], ["/r2e_tests", "tests/unit/test_b.py"]),
        (["/r2e_tests"], ["/r2e_tests"]),
        (["", "-rf", "*.py", "$(touch x)"], ["$(touch x)", "*.py", "-rf", ""]),
        ([], []),
    ],
)
def test_the_path_itself_or_every_tracked_file_that_ends_so(repository, files, found):
    task, sandbox = repository
    assert locate(task, sandbox, files) == tuple(sorted(found))
    assert run(sandbox, "[ ! -e x ] && ls /tmp/.tests.wanted 2>&1").output.endswith("No such file or directory\n")


def test_many_files(repository):
    task, sandbox = repository
    wanted = [f"tests/unit/test_{number}.py" for number in range(3000)]
    folder = "libs/core/tests/unit"
    make = f"mkdir -p {folder} && for n in $(seq 0 2999); do : >{folder}/test_$n.py; done"
    assert run(sandbox, f"{make}; git add -A").returncode == 0
    assert locate(task, sandbox, wanted) == tuple(sorted(f"libs/core/{file}" for file in wanted))
