"""Tasks in the datasets' own formats, with their images: unpacked directories made of the demo image's root.

Each image holds the same small package with one bug, in the layout that its dataset's images have. The row's columns
are what the dataset publishes, no more.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from tests.agent_server.grading.sample_images import Images, diff, unpack, write

BUGGY = (
    "def total(numbers):\n    return sum(numbers[1:])\n\n\ndef mean(numbers):\n    return sum(numbers) / len(numbers)\n"
)
FIXED = BUGGY.replace("numbers[1:]", "numbers")
OLD_TESTS = "from calc.core import mean\n\n\ndef test_mean():\n    assert mean([1, 3]) == 2\n"
NEW_TESTS = """import pytest

from calc.core import mean, total


def test_mean():
    assert mean([1, 3]) == 2


@pytest.mark.parametrize("numbers, wanted", [([1, 2], 3), ([5], 5)], ids=["two of them - a: b", "one[x]"])
def test_total(numbers, wanted):
    assert total(numbers) == wanted
"""
F2P = ["tests/test_core.py::test_total[two of them - a: b]", "tests/test_core.py::test_total[one[x]]"]
P2P = ["tests/test_core.py::test_mean"]
STATEMENT = "total([1, 2]) is 2, and should be 3."
SOURCE_PATCH_PATH = "calc/core.py"


@dataclass(frozen=True)
class Made:
    """A row file of one row, its dataset's name, and the id."""

    path: Path
    dataset: str
    task_id: str


PACKAGE = {
    "calc/__init__.py": "",
    SOURCE_PATCH_PATH: BUGGY,
    "tests/__init__.py": "",
    "tests/test_core.py": OLD_TESTS,
    "setup.cfg": "[metadata]\nname = calc\n",
}


def save(folder: Path, name: str, row: dict) -> Path:
    path = folder / f"{name}.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return path


def r2e(images: Images, folder: Path, *, nested: bool) -> Made:
    """`nested`: tests in the repository and in a class, one of them expected to fail; else at /r2e_tests, as most
    images have them."""
    name = f"namanjain12/calc_final:{'b' if nested else 'a'}"
    script = "python3 -W ignore -m pytest -rA r2e_tests\n"
    tests = NEW_TESTS
    expected = {test.split("::", 1)[1].split(" - ")[0]: "PASSED" for test in (*F2P, *P2P)}
    if nested:
        tests = (
            "from calc.core import mean, total\n\n\nclass TestTotal:\n    def test_two(self):\n "
            "       assert total([1, 2]) == 3\n\n    def test_never(self):\n        assert mean([]) "
            "== 0\n"
        )
        expected = {"TestTotal.test_two": "PASSED", "TestTotal.test_never": "FAILED"}
    image, base = images.make(name, PACKAGE)
    write(
        image, {("testbed/r2e_tests" if nested else "r2e_tests") + "/test_1.py": tests, "testbed/run_tests.sh": script}
    )
    content = {
        "file_diffs": [
            {"header": {"file": {"path": SOURCE_PATCH_PATH}}, "old_file_content": BUGGY, "new_file_content": FIXED},
            {
                "header": {"file": {"path": "tests/test_core.py"}},
                "old_file_content": OLD_TESTS,
                "new_file_content": NEW_TESTS,
            },
        ]
    }
    row = {
        "repo_name": "calc",
        "docker_image": name,
        "commit_hash": base,
        "parsed_commit_content": json.dumps(content),
        "execution_result_content": "{}",
        "modified_files": [SOURCE_PATCH_PATH],
        "problem_statement": STATEMENT,
        "expected_output_json": json.dumps(expected),
        "prompt": "",
    }
    return Made(save(folder, f"r2e_{'b' if nested else 'a'}", row), "r2e", name)


def swebench_new(images: Images, folder: Path) -> Made:
    name = "swebench/sweb.eval.x86_64.calc_1776_calc-1:latest"
    _, base = images.make(name, PACKAGE, later={SOURCE_PATCH_PATH: FIXED, "tests/test_core.py": NEW_TESTS})
    test_patch = diff({"tests/test_core.py": OLD_TESTS}, {"tests/test_core.py": NEW_TESTS}, folder / "diff")
    script = "\n".join(
        [
            "#!/bin/bash",
            "set -uxo pipefail",
            "source /opt/miniconda3/bin/activate",
            "conda activate testbed",
            "cd /testbed",
            "git config --global --add safe.directory /testbed",
            "cd /testbed",
            "git status",
            "git show",
            f"git -c core.fileMode=false diff {base}",
            f"git checkout {base} tests/test_core.py",
            f"git apply -v - <<'EOF_114329324912'\n{test_patch}EOF_114329324912",
            ": '>>>>> Start Test Output'",
            "pytest -rA --tb=no -p no:cacheprovider tests/test_core.py",
            ": '>>>>> End Test Output'",
            f"git checkout {base} tests/test_core.py",
            "",
        ]
    )
    row = {
        "instance_id": "calc__calc-1",
        "repo": "calc/calc",
        "version": "1.0",
        "base_commit": base,
        "image": name,
        "problem_statement": STATEMENT,
        "patch": diff({SOURCE_PATCH_PATH: BUGGY}, {SOURCE_PATCH_PATH: FIXED}, folder / "diff"),
        "test_patch": test_patch,
        "eval_script": script,
        "log_parser": "parse_log_pytest_v2",
        "eval_type": "pass_and_fail",
        "FAIL_TO_PASS": json.dumps(F2P),
        "PASS_TO_PASS": json.dumps(P2P),
        "hints_text": None,
    }
    return Made(save(folder, "swebench_new", row), "swebench", row["instance_id"])


RUNTESTS = """import sys, unittest
names = [name for name in sys.argv[1:] if not name.startswith("-") and name != "2" and name != "1"]
sys.path[:0] = [".", "tests"]
suite = unittest.defaultTestLoader.loadTestsFromNames(names)
sys.exit(not unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful())
"""
OLD_UNITTEST = (
    "import unittest\n\nfrom calc.core import mean\n\n\nclass CoreTests(unittest.TestCase):\n "
    "   def test_mean(self):\n        self.assertEqual(mean([1, 3]), 2)\n"
)
NEW_UNITTEST = (
    OLD_UNITTEST.replace("import mean", "import mean, total")
    + "\n    def test_total(self):\n        self.assertEqual(total([1, 2]), 3)\n"
)


def swebench_old(images: Images, folder: Path) -> Made:
    """A row without eval_script, log_parser or image, in a repository that SWE-bench runs with Django's own runner."""
    tests = {
        "tests/core/__init__.py": "",
        "tests/core/tests.py": OLD_UNITTEST,
        "tests/runtests.py": f"#!/usr/bin/python3\n{RUNTESTS}",
    }
    image, base = images.make(
        "swebench/sweb.eval.x86_64.django_1776_django-1:latest",
        {k: v for k, v in PACKAGE.items() if "test" not in k} | tests,
    )
    (image / "testbed/tests/runtests.py").chmod(0o755)
    ids = "{} (core.tests.CoreTests.{})" if _python_of(image) >= (3, 11) else "{} (core.tests.CoreTests)"
    row = {
        "instance_id": "django__django-1",
        "repo": "django/django",
        "version": "4.0",
        "base_commit": base,
        "problem_statement": STATEMENT,
        "hints_text": "",
        "patch": diff({SOURCE_PATCH_PATH: BUGGY}, {SOURCE_PATCH_PATH: FIXED}, folder / "diff"),
        "created_at": "2020-01-01T00:00:00Z",
        "test_patch": diff(
            {"tests/core/tests.py": OLD_UNITTEST}, {"tests/core/tests.py": NEW_UNITTEST}, folder / "diff"
        ),
        "FAIL_TO_PASS": [ids.format("test_total", "test_total")],
        "PASS_TO_PASS": [ids.format("test_mean", "test_mean")],
        "environment_setup_commit": base,
    }
    return Made(save(folder, "swebench_old", row), "swebench", row["instance_id"])


def _python_of(image: Path) -> tuple[int, int]:
    return max(
        (3, int(path.name.removeprefix("python3.")))
        for path in (image / "usr/bin").glob("python3.*")
        if path.name[8:].isdigit()
    )


def swesmith(images: Images, folder: Path) -> Made:
    """A row of a repository that the swesmith package has a profile of, with its test command."""
    name = "swebench/swesmith.x86_64.mewwts_1776_addict.75284f95"
    images.make(
        name, PACKAGE | {SOURCE_PATCH_PATH: FIXED, "tests/test_core.py": OLD_TESTS, "tests/test_total.py": NEW_TESTS}
    )
    row = {
        "instance_id": "mewwts__addict.75284f95.func_basic__1",
        "repo": "swesmith/mewwts__addict.75284f95",
        "image_name": name,
        "problem_statement": STATEMENT,
        "patch": diff({SOURCE_PATCH_PATH: FIXED}, {SOURCE_PATCH_PATH: BUGGY}, folder / "diff"),
        "FAIL_TO_PASS": [test.replace("test_core", "test_total") for test in F2P],
        "PASS_TO_PASS": [*P2P, "tests/test_total.py::test_mean"],
    }
    return Made(save(folder, "swesmith", row), "swesmith", row["instance_id"])


def eval_script(images: Images, folder: Path) -> Made:
    name = "own/calc:1"
    images.make(name, PACKAGE)
    script = (
        "set -e\ncd /testbed\ncat >/tmp/check.py <<'END'\nfrom calc.core import total\nassert "
        "total([1, 2]) == 3\nprint('all is well')\nEND\nPYTHONPATH=. python3 /tmp/check.py "
        "| grep -qx 'all is well'\n"
    )
    row = {
        "instance_id": "calc-own-1",
        "problem_statement": STATEMENT,
        "eval_script": script,
        "image": name,
        "patch": diff({SOURCE_PATCH_PATH: BUGGY}, {SOURCE_PATCH_PATH: FIXED}, folder / "diff"),
    }
    return Made(save(folder, "eval_script", row), "eval_script", row["instance_id"])


def make_all(sif: Path, folder: Path) -> tuple[Path, list[Made]]:
    """The images' folder and the six rows, each in a file of its own."""
    (folder / "images").mkdir(parents=True)
    (folder / "rows").mkdir()
    images = Images(unpack(sif, folder / "root"), folder / "images")
    rows = folder / "rows"
    made = [
        r2e(images, rows, nested=False),
        r2e(images, rows, nested=True),
        swebench_new(images, rows),
        swebench_old(images, rows),
        swesmith(images, rows),
        eval_script(images, rows),
    ]
    return images.folder, made
