"""Tasks whose tests are started in other ways: in a sub-folder, by unittest, SymPy's runner, pytest-xdist and tox.

The package is that of sample_rows; the columns are those of rows with a script of their own, and of SWE-bench's.
"""

import json
import shutil
from pathlib import Path

from tests.agent_server.grading.sample_images import Images, diff
from tests.agent_server.grading.sample_rows import (
    BUGGY,
    F2P,
    FIXED,
    NEW_TESTS,
    NEW_UNITTEST,
    P2P,
    PACKAGE,
    SOURCE_PATCH_PATH,
    STATEMENT,
    Made,
    save,
)

SUB = "libs/core"
UNITTESTS = NEW_UNITTEST.replace("CoreTests", "NewTests")


def _row(images: Images, folder: Path, name: str, files: dict[str, str], script: str, **columns: object) -> Made:
    """A row with a script of its own, in an image with these files. The package lies where they have it."""
    images.make(f"own/{name}:1", files)
    [source] = [path for path in files if path.endswith(SOURCE_PATCH_PATH)]
    row = {
        "instance_id": f"calc-{name}",
        "problem_statement": STATEMENT,
        "eval_script": f"cd /testbed\n{script}\n",
        "log_parser": "pytest",
        "image": f"own/{name}:1",
        "patch": diff({source: BUGGY}, {source: FIXED}, folder / "diff"),
        "FAIL_TO_PASS": F2P,
        "PASS_TO_PASS": P2P,
    }
    return Made(save(folder, name, row | columns), "eval_script", row["instance_id"])


def sub_folder(images: Images, folder: Path, environments: Path) -> Made:
    """pytest's root lies below the repository, and so does the folder in which it is started."""
    files = {f"{SUB}/{path}": text for path, text in PACKAGE.items()}
    files |= {f"{SUB}/tests/test_core.py": NEW_TESTS, f"{SUB}/pytest.ini": "[pytest]\n", "README": ""}
    return _row(images, folder, "sub_folder", files, f"cd {SUB} && python3 -m pytest -rA tests/test_core.py")


def own_script(images: Images, folder: Path, environments: Path) -> Made:
    """The row's script starts one of the repository."""
    files = PACKAGE | {"tests/test_core.py": NEW_TESTS, "check.sh": "#!/bin/sh\npython3 -m pytest -v tests\n"}
    return _row(images, folder, "own_script", files, "bash check.sh")


def by_unittest(images: Images, folder: Path, environments: Path) -> Made:
    files = PACKAGE | {"tests/test_new.py": UNITTESTS}
    ids = {
        "FAIL_TO_PASS": ["test_total (tests.test_new.NewTests)"],
        "PASS_TO_PASS": ["test_mean (tests.test_new.NewTests)"],
    }
    script = "python3 -m unittest -v tests.test_new"
    return _row(images, folder, "by_unittest", files, script, log_parser="unittest", **ids)


def _with_environment(image: Path, environments: Path, name: str) -> None:
    (image / "opt/venvs").mkdir(parents=True)
    shutil.copytree(environments / name, image / "opt/venvs" / name, symlinks=True)


def by_xdist(images: Images, folder: Path, environments: Path) -> Made:
    files = PACKAGE | {"tests/test_core.py": NEW_TESTS}
    made = _row(images, folder, "by_xdist", files, "/opt/venvs/xdist/bin/python -m pytest -rA -n 2 tests")
    _with_environment(images.folder / "own__by_xdist__1", environments, "xdist")
    return made


TOX = """[tox]
skipsdist = true
[testenv]
passenv =
setenv = PYTHONPATH = {toxinidir}
allowlist_externals = *
commands = /opt/venvs/tools/bin/python -m pytest -rA {posargs}
"""


def by_tox(images: Images, folder: Path, environments: Path) -> Made:
    """tox takes away all variables. It makes its environment in the run."""
    files = PACKAGE | {"tests/test_core.py": NEW_TESTS, "tox.ini": TOX}
    made = _row(images, folder, "by_tox", files, "/opt/venvs/tools/bin/tox run -e py -- tests/test_core.py")
    _with_environment(images.folder / "own__by_tox__1", environments, "tools")
    return made


SYMPY_RUNNER = '''"""A runner with the interface of SymPy's."""
import importlib.util
import sys


class PyTestReporter:
    def start(self, seed=None, msg="test process starts"):
        self.failed = 0

    def entering_filename(self, filename, n):
        print("%s[%d]" % (filename, n))

    def entering_test(self, f):
        self.name = f.__name__

    def test_pass(self, char="."):
        print("%s ok" % self.name)

    def test_fail(self, exc_info):
        print("%s F" % self.name)
        self.failed += 1

    def test_exception(self, exc_info):
        print("%s E" % self.name)
        self.failed += 1

    def test_skip(self, v=None):
        print("%s s" % self.name)

    def test_xfail(self):
        print("%s f" % self.name)

    def test_xpass(self, v):
        print("%s X" % self.name)

    def finish(self):
        return not self.failed


def test(*files):
    reporter = PyTestReporter()
    reporter.start()
    for file in files:
        spec = importlib.util.spec_from_file_location("test_module", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        functions = [value for name, value in vars(module).items() if name.startswith("test_")]
        reporter.entering_filename(file, len(functions))
        for function in functions:
            reporter.entering_test(function)
            try:
                function()
            except AssertionError:
                reporter.test_fail(sys.exc_info())
            except Exception:
                reporter.test_exception(sys.exc_info())
            else:
                reporter.test_pass()
    return reporter.finish()
'''
BIN_TEST = """#!/usr/bin/env python3
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from sympy.testing.runtests import test

sys.exit(not test(*(path for path in sys.argv[1:] if not path.startswith("-"))))
"""
SYMPY_SOURCE, SYMPY_TESTS = "sympy/core/calc.py", "sympy/core/tests/test_calc.py"
OLD_SYMPY = "from sympy.core.calc import mean, total\n\n\ndef test_mean():\n    assert mean([1, 3]) == 2\n"
NEW_SYMPY = f"{OLD_SYMPY}\n\ndef test_total():\n    assert total([1, 2]) == 3\n"


def by_sympy(images: Images, folder: Path, environments: Path) -> Made:
    """An old row of SWE-bench, with bare names as ids. The runner is a part of the repository."""
    name = "swebench/sweb.eval.x86_64.sympy_1776_sympy-1:latest"
    files = {path: "" for path in ("sympy/__init__.py", "sympy/core/__init__.py", "sympy/testing/__init__.py")}
    files |= {SYMPY_SOURCE: BUGGY, "sympy/testing/runtests.py": SYMPY_RUNNER, "bin/test": BIN_TEST}
    image, base = images.make(name, files | {SYMPY_TESTS: OLD_SYMPY})
    (image / "testbed/bin/test").chmod(0o755)
    row = {
        "instance_id": "sympy__sympy-1",
        "repo": "sympy/sympy",
        "version": "1.8",
        "base_commit": base,
        "problem_statement": STATEMENT,
        "hints_text": "",
        "patch": diff({SYMPY_SOURCE: BUGGY}, {SYMPY_SOURCE: FIXED}, folder / "diff"),
        "test_patch": diff({SYMPY_TESTS: OLD_SYMPY}, {SYMPY_TESTS: NEW_SYMPY}, folder / "diff"),
        "FAIL_TO_PASS": json.dumps(["test_total"]),
        "PASS_TO_PASS": json.dumps(["test_mean"]),
    }
    return Made(save(folder, "by_sympy", row), "swebench", row["instance_id"])


ALL = (sub_folder, own_script, by_unittest, by_xdist, by_tox, by_sympy)
