"""Awkward repositories: folders, roots and ini files."""

from tests.agent_server.grading.awkward.awkward import BOTH, FAIL, FAILED, PASS, PASSED, Awkward, both

SUB = "libs/core/tests/unit/test_a.py"
YAML_TESTS = """
import pytest


class YamlItem(pytest.Item):
    def runtest(self):
        assert self.name != "bad"

    def repr_failure(self, excinfo):
        return "the case is bad"

    def reportinfo(self):
        return self.path, 0, self.name


class YamlFile(pytest.File):
    def collect(self):
        for line in self.path.read_text().split():
            yield YamlItem.from_parent(self, name=line)


def pytest_collect_file(parent, file_path):
    if file_path.suffix == ".yaml":
        return YamlFile.from_parent(parent, path=file_path)
"""
GONE = """
import os, shutil


def test_gone():
    os.makedirs("/tmp/here")
    os.chdir("/tmp/here")
    shutil.rmtree("/tmp/here")


"""
LAYOUTS = {
    "pyproject in a sub-folder": Awkward(
        {SUB: BOTH, "libs/core/pyproject.toml": "[tool.pytest.ini_options]\n"}, "pytest -v libs/core/tests", both(SUB)
    ),
    "run in a sub-folder": Awkward(
        {SUB: BOTH, "libs/core/pytest.ini": "[pytest]\n"}, "cd libs/core && pytest -v tests/unit/test_a.py", both(SUB)
    ),
    "run in a sub-folder of the root": Awkward(
        {SUB: BOTH, "pytest.ini": "[pytest]\n"}, "cd libs/core && pytest -v tests", both(SUB)
    ),
    "ini file by -c": Awkward(
        {SUB: BOTH, "config/pytest.ini": "[pytest]\naddopts = -v\n"}, "pytest -c config/pytest.ini libs", both(SUB),
        shown=("config/core/", "libs/core/"),
    ),
    "root elsewhere": Awkward(
        {SUB: BOTH, "elsewhere/README": ""}, "cd / && pytest -v --rootdir=/testbed/elsewhere /testbed/libs", both(SUB),
        shown=("testbed/elsewhere/core/", "libs/core/"),
    ),
    "tox.ini in the middle": Awkward(
        {SUB: BOTH, "libs/tox.ini": "[pytest]\n", "setup.cfg": "[tool:pytest]\n"}, "pytest -v libs/core", both(SUB)
    ),
    "two runs": Awkward(
        {"a/test_a.py": PASS, "b/test_b.py": FAIL, "b/pytest.ini": "[pytest]\n"},
        "pytest -v a; cd b; pytest -v",
        {"a/test_a.py::test_a": PASSED, "b/test_b.py::test_b": FAILED},
    ),
    "one name in two folders": Awkward(
        {"a/test_it.py": BOTH, "b/test_it.py": BOTH, "pytest.ini": "[pytest]\naddopts = --import-mode=importlib\n"},
        "pytest -v",
        both("a/test_it.py") | both("b/test_it.py"),
    ),
    "linked folder": Awkward(
        {SUB: BOTH}, "pytest -v tests", both("tests/test_a.py"), prepare="ln -s libs/core/tests/unit tests"
    ),
    "tests of another kind": Awkward(
        {"conftest.py": YAML_TESTS, "cases.yaml": "good bad\n", "test_a.py": PASS},
        "pytest -v",
        {"cases.yaml::good": PASSED, "cases.yaml::bad": FAILED, "test_a.py::test_a": PASSED},
    ),
    "tests in odd files": Awkward(
        {
            "pytest.ini": "[pytest]\npython_files = check_*.py __init__.py\npython_functions = check_*\n",
            "pkg/__init__.py": "def check_in_package():\n    assert True\n",
            "pkg/check_it.py": "from pkg.base import *\n",
            "pkg/base.py": "def check_shared():\n    assert False\n",
        },
        "python -m pytest -v pkg",
        {"pkg/__init__.py::check_in_package": PASSED, "pkg/check_it.py::check_shared": FAILED},
    ),
    "removed folder": Awkward(
        {"test_a.py": GONE + BOTH}, "pytest -v", {"test_a.py::test_gone": PASSED} | both("test_a.py")
    ),
}  # fmt: skip
