"""Rows of SWE-bench whose test patch has names that git quotes, Windows line ends and binary files."""

import subprocess

import pytest

from tests.agent_server.grading.grading_bench import SOLVE, GradingBench
from tests.agent_server.grading.sample_images import Images, git, write
from tests.agent_server.grading.sample_rows import FIXED, PACKAGE, SOURCE_PATCH_PATH, STATEMENT, Made, save

DATA, WORDS = "tests/dát a/wörds.txt", "tests/dos.txt"
TESTS = """from pathlib import Path

from calc.core import mean, total

HERE = Path(__file__).parent


def test_total():
    assert total([1, 2]) == int((HERE / "dát a/wörds.txt").read_text())


def test_bytes():
    assert (HERE / "dos.txt").read_bytes() == b"3\\r\\nlast\\r\\n"
    assert (HERE / "data.png").read_bytes() == bytes(range(256))
"""


@pytest.fixture(scope="session")
def quoted_row(sample_rows, tmp_path_factory):
    images, folder = sample_rows[0], tmp_path_factory.mktemp("quoted")
    name = "swebench/sweb.eval.x86_64.calc_1776_calc-8:latest"
    image, base = Images(images.parent / "root", images).make(name, PACKAGE | {DATA: "2\n"})
    repository = image / "testbed"
    write(repository, {DATA: "3\n", "tests/test_core.py": TESTS})
    (repository / WORDS).write_bytes(b"3\r\nlast\r\n")
    (repository / "tests/data.png").write_bytes(bytes(range(256)))
    git(repository, "add", "-A")
    # Not as text, for which a carriage return would end a line.
    test_patch = subprocess.check_output(["git", "diff", "--cached", "--binary"], cwd=repository).decode()
    git(repository, "reset", "-q", "--hard")
    write(repository, {SOURCE_PATCH_PATH: FIXED})
    patch = git(repository, "diff")
    git(repository, "reset", "-q", "--hard")
    row = {
        "instance_id": "calc__calc-8",
        "repo": "calc/calc",
        "version": "1.0",
        "base_commit": base,
        "problem_statement": STATEMENT,
        "image_name": name,
        "patch": patch,
        "test_patch": test_patch,
        "FAIL_TO_PASS": ["tests/test_core.py::test_total"],
        "PASS_TO_PASS": ["tests/test_core.py::test_bytes"],
    }
    assert (
        '"a/tests/d\\303\\241t a/w\\303\\266rds.txt"' in test_patch
        and "GIT binary patch" in test_patch
        and "+last\r\n" in test_patch
    )
    return images, Made(save(folder, "quoted", row), "swebench", row["instance_id"])


@pytest.fixture
def quoted_bench(quoted_row, tmp_path):
    bench = GradingBench(quoted_row[0], tmp_path, quoted_row[1])
    yield bench
    bench.close()


def test_files_with_quoted_names_are_the_rows(quoted_bench):
    assert quoted_bench.dataset.test_files(quoted_bench.task) == (
        "tests/data.png", WORDS, DATA, "tests/test_core.py",
    )  # fmt: skip
    solved, lost = quoted_bench.grade(quoted_bench.patch(SOLVE)), quoted_bench.grade("")
    assert solved.resolved, (solved.tests, solved.log)
    assert not lost.resolved and lost.pass_to_pass == {"tests/test_core.py::test_bytes": "PASSED"}


@pytest.mark.parametrize("edit", [f"echo 2 >'{DATA}'", f"rm -r 'tests/dát a'; echo x >{WORDS}; echo y >tests/data.png"])
def test_a_submission_cannot_replace_them(quoted_bench, edit):
    assert not quoted_bench.grade(quoted_bench.patch(edit)).resolved
    found = quoted_bench.grade(quoted_bench.patch(f"{SOLVE}; {edit}"))
    assert found.resolved, (found.tests, found.log)
