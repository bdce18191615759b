"""Awkward repositories: plugins, own and from PyPI."""

from tests.agent_server.grading.awkward.awkward import (
    BOTH,
    ERROR,
    FAILED,
    PASS,
    PASSED,
    SKIPPED,
    XFAIL,
    Awkward,
    both,
)

REORDER = """
import random

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    random.Random(1).shuffle(items)
    items[:] = [item for item in items if "left_out" not in item.name]
"""
RERUN = """
from _pytest.runner import runtestprotocol


def pytest_runtest_protocol(item, nextitem):
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for attempt in range(3):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if attempt == 2 or not any(report.failed for report in reports):
            for report in reports:
                hook.pytest_runtest_logreport(report=report)
            break
        item._initrequest()
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
"""
FLAKY = """
import os


def test_flaky():
    os.makedirs("seen", exist_ok=True)
    open("seen/%d" % len(os.listdir("seen")), "w").close()
    assert len(os.listdir("seen")) == 3


def test_always():
    assert False
"""
VERDICTS = """
import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if call.when == "call" and item.get_closest_marker("known"):
        report.outcome, report.wasxfail = "skipped", "reason: known"


def pytest_configure(config):
    config.addinivalue_line("markers", "known: expected to fail")
"""
PYTESTER = """
import subprocess, sys

pytest_plugins = ["pytester"]


def test_in_process(pytester):
    pytester.makepyfile("def test_inner(): assert 0\\ndef test_other(): pass\\n")
    pytester.runpytest_inprocess().assert_outcomes(passed=1, failed=1)


def test_subprocess(pytester):
    pytester.makepyfile("def test_inner(): assert 0\\n")
    pytester.runpytest_subprocess().assert_outcomes(failed=1)


def test_inline(pytester):
    items, record = pytester.inline_genitems(pytester.makepyfile("def test_inner(): pass\\n"))
    assert len(items) == 1


def test_plain_subprocess(tmp_path):
    (tmp_path / "test_inner.py").write_text("def test_inner(): assert 0\\n")
    assert subprocess.call([sys.executable, "-m", "pytest", "-q", str(tmp_path)]) == 1
"""
MANY = "import pytest\n\n\n@pytest.mark.parametrize('n', range(8))\ndef test_many(n):\n    assert n != 3\n"
MANY_EXPECTED = {f"test_a.py::test_many[{n}]": FAILED if n == 3 else PASSED for n in range(8)}
ASYNC = """
import asyncio

import pytest
from hypothesis import given, settings, strategies


@pytest.mark.asyncio
async def test_async():
    await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_async_fails():
    await asyncio.sleep(0)
    assert False


@settings(max_examples=5, database=None, derandomize=True)
@given(strategies.integers())
def test_property(n):
    assert n == n


@pytest.mark.timeout(30)
def test_in_time():
    pass


def test_fake_files(fs):
    fs.create_file("/a/b", contents="c")
    assert open("/a/b").read() == "c"


def test_fake_files_fail(fs):
    assert open("/a/b").read() == "c"
"""
SUBTESTS = """
import unittest


def test_sub(subtests):
    for n in range(3):
        with subtests.test(n=n):
            assert n != 1


def test_all(subtests):
    for n in range(3):
        with subtests.test("message [x] :: y", n=n):
            assert n < 3


class Unit(unittest.TestCase):
    def test_sub(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertNotEqual(n, 1)

    def test_all(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertLess(n, 3)
"""
SUB_EXPECTED = {
    "test_a.py::test_sub": FAILED, "test_a.py::test_all": PASSED, "test_a.py::Unit::test_sub": FAILED,
    "test_a.py::Unit::test_all": PASSED,
}  # fmt: skip
FIXTURES = """
import pytest


@pytest.fixture
def broken():
    raise ValueError


@pytest.fixture
def breaks_later():
    yield
    raise ValueError


def test_setup_error(broken):
    pass


def test_teardown_error(breaks_later):
    pass


@pytest.fixture
def skips():
    pytest.skip("in a fixture")


def test_skipped_by_fixture(skips):
    pass


@pytest.mark.known
def test_known():
    assert False
"""
PLUGINS = {
    "own order and selection": Awkward(
        {"conftest.py": REORDER, "test_a.py": BOTH + "def test_left_out():\n    assert 0\n"}, "pytest -v",
        both("test_a.py"),
    ),
    "own rerun": Awkward(
        {"conftest.py": RERUN, "test_a.py": FLAKY}, "pytest -v",
        {"test_a.py::test_flaky": PASSED, "test_a.py::test_always": FAILED},
    ),
    "rerunfailures": Awkward(
        {"test_a.py": FLAKY}, "pytest -v -p no:randomly --reruns 2",
        {"test_a.py::test_flaky": PASSED, "test_a.py::test_always": FAILED}, environment="plugins",
    ),
    "own verdicts": Awkward(
        {"conftest.py": VERDICTS, "test_a.py": FIXTURES}, "pytest -v",
        {
            "test_a.py::test_setup_error": ERROR, "test_a.py::test_teardown_error": ERROR,
            "test_a.py::test_skipped_by_fixture": SKIPPED, "test_a.py::test_known": XFAIL,
        },
    ),
    "pytester": Awkward(
        {"test_a.py": PYTESTER}, "pytest -v",
        {f"test_a.py::test_{name}": PASSED for name in ("in_process", "subprocess", "inline", "plain_subprocess")},
        returncode=0,
    ),
    "xdist": Awkward(
        {"test_a.py": MANY}, "pytest -v -n 2", MANY_EXPECTED, environment="xdist", is_ordered=False,
    ),
    "xdist in a sub-folder": Awkward(
        {"sub/test_a.py": MANY, "sub/pytest.ini": "[pytest]\naddopts = -v --dist loadfile -n 2\n"}, "cd sub; pytest",
        {f"sub/{test}": outcome for test, outcome in MANY_EXPECTED.items()}, environment="xdist", is_ordered=False,
    ),
    "randomly": Awkward(
        {"test_a.py": MANY}, "pytest -v", MANY_EXPECTED, environment="plugins", is_ordered=False
    ),
    "asyncio, hypothesis, timeout, fake files": Awkward(
        {"test_a.py": ASYNC}, "pytest -v -p no:randomly",
        {
            "test_a.py::test_async": PASSED, "test_a.py::test_async_fails": FAILED, "test_a.py::test_property": PASSED,
            "test_a.py::test_in_time": PASSED, "test_a.py::test_fake_files": PASSED,
            "test_a.py::test_fake_files_fail": FAILED,
        },
        environment="plugins",
    ),
    "sub-tests of a plugin": Awkward({"test_a.py": SUBTESTS}, "pytest -v", SUB_EXPECTED, environment="subtests"),
    "sub-tests of pytest 9": Awkward({"test_a.py": SUBTESTS}, "pytest -v", SUB_EXPECTED),
    "pytest 6": Awkward(
        {"test_a.py": FIXTURES.replace("@pytest.mark.known\n", ""), "test_b.py": PASS}, "py.test -v -rA",
        {
            "test_a.py::test_setup_error": ERROR, "test_a.py::test_teardown_error": ERROR,
            "test_a.py::test_skipped_by_fixture": SKIPPED, "test_a.py::test_known": FAILED, "test_b.py::test_a": PASSED,
        }, environment="old",
    ),
}  # fmt: skip
