"""Awkward repositories: pytest started by other programs, and runners that are not pytest."""

from tests.agent_server.grading.awkward.awkward import (
    BOTH,
    FAILED,
    PASSED,
    SKIPPED,
    XFAIL,
    XPASS,
    Awkward,
    both,
)

TOX = """[tox]
skipsdist = true
envlist = py

[testenv]
passenv =
commands = {tool} -v {{posargs}}
allowlist_externals = /opt/venvs/*
"""
NOX = "import nox\n\n\n@nox.session\ndef tests(session):\n    session.run('pytest', '-v', external=True)\n"
MAKE = "check: lint\n\t@pytest -v $(TESTS)\nlint:\n\t@true\n.PHONY: check lint\n"
SCRIPT = """#!/bin/bash
set -eu
cd "$(dirname "$0")/.."
for file in tests/test_*.py; do
  python -m pytest -v "$file" || bad=1
done
exit ${bad:-0}
"""
IN_PROCESS = "import sys\n\nimport pytest\n\nsys.exit(pytest.main(['-v', 'test_a.py']))\n"
SUBPROCESS = """
import os, subprocess, sys

command = [sys.executable, "-m", "pytest", "-v"]
done = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin"}, start_new_session=True)
sys.stdout.write(done.stdout)
sys.exit(done.returncode)
"""
UNIT = """
import unittest


def setUpModule():
    pass


class Unit(unittest.TestCase):
    def test_pass(self):
        pass

    def test_fail(self):
        self.fail()

    @unittest.skip("reason")
    def test_skip(self):
        pass

    @unittest.expectedFailure
    def test_expected(self):
        self.fail()

    @unittest.expectedFailure
    def test_unexpected(self):
        pass

    def test_sub_fails(self):
        for n in range(2):
            with self.subTest(n=n):
                self.assertEqual(n, 0)


class Async(unittest.IsolatedAsyncioTestCase):
    async def test_async(self):
        pass


class Broken(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise unittest.SkipTest("no")

    def test_never(self):
        pass
"""
UNIT_EXPECTED = {
    "test_pass (tests.test_unit.Unit)": PASSED, "test_fail (tests.test_unit.Unit)": FAILED,
    "test_skip (tests.test_unit.Unit)": SKIPPED, "test_expected (tests.test_unit.Unit)": XFAIL,
    "test_unexpected (tests.test_unit.Unit)": XPASS, "test_sub_fails (tests.test_unit.Unit)": FAILED,
    "test_async (tests.test_unit.Async)": PASSED, "setUpClass (tests.test_unit.Broken)": SKIPPED,
}  # fmt: skip
LOADED = """
import unittest


class One(unittest.TestCase):
    def __init__(self, name, n=0):
        super().__init__(name)
        self.n = n

    def test_n(self):
        self.assertEqual(self.n, 1)

    def __str__(self):
        return "test_n%d (%s.One)" % (self.n, __name__)

    id = __str__


def load_tests(loader, tests, pattern):
    return unittest.TestSuite([One("test_n", 1), One("test_n", 2)])
"""
OWN_RUNNER = """
import sys
import unittest


class Result(unittest.TextTestResult):
    def addSuccess(self, test):
        unittest.TestResult.addSuccess(self, test)
        self.stream.writeln("ok")

    def startTest(self, test):
        super().startTest(test)


class Runner(unittest.TextTestRunner):
    resultclass = Result


suite = unittest.defaultTestLoader.discover("tests", top_level_dir=".")
sys.exit(not Runner(verbosity=2).run(suite).wasSuccessful())
"""
DJANGO_SETTINGS = """
SECRET_KEY = "x"
INSTALLED_APPS = ["app"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""
DJANGO_TESTS = """
from django.test import SimpleTestCase, TestCase

from app.models import Thing


class ThingTests(TestCase):
    @classmethod
    def setUpTestData(cls):
        Thing.objects.create(name="a")

    def test_count(self):
        self.assertEqual(Thing.objects.count(), 1)

    def test_fails(self):
        self.assertEqual(Thing.objects.count(), 2)

    def test_documented(self):
        \"\"\"A docstring: what is tested (here).\"\"\"


class SimpleTests(SimpleTestCase):
    def test_simple(self):
        with self.subTest(n=1):
            pass

    def test_simple_fails(self):
        self.fail()
"""
RUNTESTS = """
import os
import sys

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
import django
from django.test.runner import DiscoverRunner

if __name__ == "__main__":
    django.setup()
    sys.exit(bool(DiscoverRunner(verbosity=2, parallel=int(sys.argv[1])).run_tests(["app"])))
"""
DJANGO = {
    "settings.py": DJANGO_SETTINGS,
    "app/__init__.py": "",
    "app/models.py": "from django.db import models\n\n\nclass Thing(models.Model):\n    name = models.TextField()\n",
    "app/tests.py": DJANGO_TESTS,
    "runtests.py": RUNTESTS,
    "pytest.ini": "[pytest]\nDJANGO_SETTINGS_MODULE = settings\npython_files = tests.py\n",
}
DJANGO_EXPECTED = {
    "test_count (app.tests.ThingTests)": PASSED, "test_fails (app.tests.ThingTests)": FAILED,
    "test_documented (app.tests.ThingTests)": PASSED, "test_simple (app.tests.SimpleTests)": PASSED,
    "test_simple_fails (app.tests.SimpleTests)": FAILED,
}  # fmt: skip


def under_pytest(path: str, name: str) -> str:
    """The id of `test_x (pkg.Class)` in a file."""
    test, _, kind = name.removesuffix(")").partition(" (")
    return f"{path}::{kind.rpartition('.')[2]}::{test}"


RUNNERS = {
    "tox in the current environment": Awkward(
        {"tox.ini": TOX.format(tool="python -m pytest"), "test_a.py": BOTH}, "tox --current-env -e py -- test_a.py",
        both("test_a.py"), environment="tools",
    ),
    "tox with a prepared environment": Awkward(
        {"tox.ini": TOX.format(tool="python -m pytest"), "test_a.py": BOTH}, "tox run -e py", both("test_a.py"),
        environment="tools",
        prepare="tox run --notest -q && cp -r /opt/venvs/plain/lib .tox/py",
    ),
    "tox with the programs of the image": Awkward(
        {"tox.ini": TOX.format(tool="/opt/venvs/xdist/bin/pytest -n 2"), "test_a.py": BOTH}, "tox run -e py",
        both("test_a.py"), environment="tools", prepare="tox run --notest -q", is_ordered=False,
    ),
    "nox": Awkward({"noxfile.py": NOX, "test_a.py": BOTH}, "nox --no-venv", both("test_a.py"), environment="tools"),
    "make": Awkward(
        {"Makefile": MAKE, "test_a.py": BOTH}, "make -s check TESTS=test_a.py", both("test_a.py"), returncode=2
    ),
    "a shell script": Awkward(
        {"scripts/check.sh": SCRIPT, "tests/test_a.py": BOTH, "tests/test_b.py": BOTH}, "bash scripts/check.sh",
        both("tests/test_a.py") | both("tests/test_b.py"),
    ),
    "a program that calls pytest": Awkward(
        {"run.py": IN_PROCESS, "test_a.py": BOTH}, "python run.py", both("test_a.py")
    ),
    "a program that starts pytest": Awkward(
        {"run.py": SUBPROCESS, "test_a.py": BOTH}, "python run.py", both("test_a.py")
    ),
    "under coverage": Awkward(
        {"test_a.py": BOTH}, "coverage run -m pytest -v -p no:randomly; status=$?; coverage report; exit $status",
        both("test_a.py"), environment="plugins",
    ),
    "with a time limit, in the background": Awkward(
        {"test_a.py": BOTH}, "timeout 100 nohup setsid -w pytest -v & wait $!", both("test_a.py")
    ),
    "unittest": Awkward(
        {"tests/__init__.py": "", "tests/test_unit.py": UNIT}, "python -m unittest -v tests.test_unit", UNIT_EXPECTED,
        prints="unittest",
    ),
    "unittest discovers": Awkward(
        {"tests/__init__.py": "", "tests/test_unit.py": UNIT}, "python -m unittest discover -v -s tests -t .",
        UNIT_EXPECTED, prints="unittest",
    ),
    "unittest without pytest": Awkward(
        {"tests/__init__.py": "", "tests/test_unit.py": UNIT}, "/usr/bin/python3 -m unittest -v tests.test_unit",
        UNIT_EXPECTED, prints="unittest",
    ),
    "unittest with load_tests": Awkward(
        {"test_loaded.py": LOADED}, "python -m unittest -v test_loaded",
        {"test_n1 (test_loaded.One)": PASSED, "test_n2 (test_loaded.One)": FAILED}, prints="unittest",
    ),
    "an own runner of unittest": Awkward(
        {"tests/__init__.py": "", "tests/test_unit.py": UNIT.partition("class Broken")[0], "run.py": OWN_RUNNER},
        "python run.py", {name: outcome for name, outcome in UNIT_EXPECTED.items() if "setUpClass" not in name},
        prints="unittest",
    ),
    "unittest's cases under pytest": Awkward(
        {"tests/__init__.py": "", "tests/test_unit.py": UNIT}, "pytest -v",
        {under_pytest("tests/test_unit.py", name): FAILED if outcome == XPASS else outcome
         for name, outcome in UNIT_EXPECTED.items() if "setUpClass" not in name}
        | {"tests/test_unit.py::Broken::test_never": SKIPPED},
    ),
    "Django's runner": Awkward(
        DJANGO, "python runtests.py 1", DJANGO_EXPECTED, environment="django", prints="unittest"
    ),
    "Django's runner in parallel": Awkward(
        DJANGO, "python runtests.py 2", DJANGO_EXPECTED, environment="django", prints="unittest", is_ordered=False
    ),
    "pytest-django": Awkward(
        DJANGO, "python -m pytest -v",
        {under_pytest("app/tests.py", name): outcome for name, outcome in DJANGO_EXPECTED.items()},
        environment="django",
    ),
}  # fmt: skip
