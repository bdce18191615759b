"""The reporter inside a process: nested runs, aborted runs, xdist, skips by code, and the canary mode."""

import textwrap

import pytest

PACKAGE = """
import pytest, unittest
def skipped(): pytest.skip("")
def xfailed(): pytest.xfail("")
def unittest_skipped(): raise unittest.SkipTest("")
"""
TESTS = """
import asyncio, unittest, pytest, pkg
def test_mark(): pass
test_mark = pytest.mark.skip(test_mark)
@pytest.mark.xfail
def test_known(): assert 0
def test_own_skip(): pytest.skip("here")
def test_own_xfail(): pytest.xfail("here")
def test_pkg_skip(): pkg.skipped()
def test_pkg_xfail(): pkg.xfailed()
def test_pkg_unittest(): pkg.unittest_skipped()
class TestUnit(unittest.TestCase):
    def test_own(self): self.skipTest("here")
    def test_pkg(self): pkg.unittest_skipped()
    def test_pkg_pytest(self): pkg.skipped()
    @unittest.skip("decorated")
    def test_decorated(self): pass
    @unittest.expectedFailure
    def test_expected(self): self.fail()
"""


@pytest.fixture
def files(tmp_path):
    def write(**texts: str):
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))

    return write


def test_where_a_test_was_skipped(files, run_reported):
    files(pkg=PACKAGE, test_it=TESTS)
    run = run_reported("pytest")
    found = {test.name: test.skipped_in for test in run.report.tests}
    own, package = "test_it.py", "pkg.py"
    assert found == {
        "test_mark": own, "test_known": own, "TestUnit::test_decorated": own, "TestUnit::test_expected": own,
        "test_own_skip": own, "test_own_xfail": own, "TestUnit::test_own": own,
        "test_pkg_skip": package, "test_pkg_xfail": package, "test_pkg_unittest": package,
        "TestUnit::test_pkg": package, "TestUnit::test_pkg_pytest": package,
    }  # fmt: skip


def test_where_unittest_skipped_a_test(files, run_reported):
    files(pkg=PACKAGE, test_it="import unittest, pkg\n" + TESTS[TESTS.index("class TestUnit") :])
    run = run_reported("unittest", "test_it")
    found = {test.name.rpartition(".")[2]: test.skipped_in for test in run.report.tests if test.outcome == "SKIPPED"}
    assert found == {"test_own": "test_it.py", "test_pkg": "pkg.py", "test_decorated": "test_it.py"}


@pytest.mark.parametrize("module", ["pytest", "unittest"])
def test_a_run_that_is_broken_off_has_no_outcomes(files, run_reported, module):
    files(
        test_it="""
import os, unittest
class T(unittest.TestCase):
    def test_a(self): pass
    def test_b(self): os._exit(0)
"""
    )
    run = run_reported(module, "test_it.py" if module == "pytest" else "test_it")
    assert run.returncode == 0 and not run.report.is_whole and run.report.was_started


def test_pytest_that_ends_while_it_loads_a_conftest_was_started(files, run_reported):
    files(conftest="import os\nos._exit(0)\n", test_it="def test_a(): pass\n")
    run = run_reported("pytest")
    assert run.returncode == 0 and not run.report.is_whole


@pytest.mark.parametrize("start", ["pytest.main([path])", "subprocess.run([sys.executable, '-m', 'pytest', path])"])
def test_a_nested_run_is_seen_as_nested(files, run_reported, tmp_path, start):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "case_it.py").write_text("def test_inner(): pass\n")
    files(
        test_it=f"""
        import pytest, subprocess, sys
        path = {str(tmp_path / "inner" / "case_it.py")!r}
        def test_outer(): {start}
    """
    )
    assert run_reported("pytest", "test_it.py").reported == {"test_it.py::test_outer": "PASSED"}


def test_two_sessions_in_one_process_both_count(files, run_reported):
    files(
        test_a="def test_a(): pass\n",
        test_b="def test_b(): assert 0\n",
        run="import pytest\npytest.main(['test_a.py'])\npytest.main(['test_b.py'])\n",
    )
    assert run_reported("run").reported == {"test_a.py::test_a": "PASSED", "test_b.py::test_b": "FAILED"}


def test_xdists_workers_report(files, run_reported):
    files(test_it="import os\ndef test_a(): pass\ndef test_b(): assert 0\ndef test_c(): os._exit(1)\n")
    run = run_reported("pytest", "-p", "xdist", "-n", "2", "test_it.py")
    assert run.reported == {
        "test_it.py::test_a": "PASSED",
        "test_it.py::test_b": "FAILED",
        "test_it.py::test_c": "ERROR",
    }


UNCHANGED = """
import os
PYTESTS_OWN = {"PYTEST_VERSION", "PYTEST_CURRENT_TEST", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"}
def test_variables(): assert not [name for name in os.environ if "PYTEST" in name and name not in PYTESTS_OWN]
def test_cache(cache): cache.set("x/y", 1)
def test_plugins(pytestconfig): assert not pytestconfig.pluginmanager.list_plugin_distinfo()
"""


def test_the_run_is_not_changed(files, run_reported):
    files(test_it=UNCHANGED)
    run = run_reported("pytest", "test_it.py", "-p", "no:junitxml")
    assert set(run.reported.values()) == {"PASSED"} and run.returncode == 0, run.output


CANARY_TESTS = """
import asyncio, unittest, pytest
def test_plain(): pass
@pytest.mark.parametrize("v", ["a b", "c::d"])
def test_each(v): pass
@pytest.fixture
def given(): return 1
def test_fixture(given): assert given
def test_left_out(): pass
class TestIn:
    def test_method(self): pass
class TestUnit(unittest.TestCase):
    def test_unit(self): pass
    def test_subtests(self):
        for i in range(2):
            with self.subTest(i=i): pass
class TestAsync(unittest.IsolatedAsyncioTestCase):
    async def test_async(self): await asyncio.sleep(0)
def documented():
    '''
    >>> 1
    1
    '''
"""


def test_in_the_canary_run_every_selected_test_fails(files, run_reported):
    files(test_it=CANARY_TESTS)
    honest = run_reported("pytest", "--doctest-modules").report
    keys = [test.key for test in honest.tests if test.outcome == "PASSED" and test.name != "test_left_out"]
    assert len(keys) == 9, honest
    found = run_reported("pytest", "--doctest-modules", canary=keys).report
    assert {test.key: test.outcome for test in found.tests} == dict.fromkeys(keys, "FAILED")


def test_in_the_canary_run_of_unittest_every_selected_test_fails(files, run_reported):
    files(
        test_it="import asyncio, unittest\n"
        + CANARY_TESTS[CANARY_TESTS.index("class TestUnit") : CANARY_TESTS.index("def documented")]
    )
    honest = run_reported("unittest", "test_it").report
    keys = [test.key for test in honest.tests if "subtests" not in test.name]
    found = run_reported("unittest", "test_it", canary=keys).report
    assert {test.key: test.outcome for test in found.tests} == dict.fromkeys(keys, "FAILED") and len(keys) == 2


FORGERIES = {
    "reports": """
import _pytest.reports as reports
original = reports.TestReport.__init__
def init(self, *arguments, **named):
    original(self, *arguments, **named)
    self.outcome = "passed"
reports.TestReport.__init__ = init
""",
    "no run": """
import _pytest.python
_pytest.python.Function.runtest = lambda self: None
""",
    "unittest": """
import unittest
unittest.TestResult.addFailure = lambda self, test, error: self.addSuccess(test)
""",
    "unittest not run": """
import unittest
def run(self, result=None):
    result.startTest(self)
    result.addSuccess(self)
unittest.TestCase.run = run
""",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_passes_do_not_fail_in_the_canary_run(files, run_reported, name):
    unit = "unittest" in name
    test = (
        "import unittest\nclass T(unittest.TestCase):\n    def test_x(self): self.fail()\n"
        if unit
        else "def test_x(): assert 0\n"
    )
    files(pkg=FORGERIES[name], test_it=f"import pkg\n{test}")
    module, path = ("unittest", "test_it") if unit else ("pytest", "test_it.py")
    forged = run_reported(module, path).report
    assert [found.outcome for found in forged.tests] == ["PASSED"]
    again = run_reported(module, path, canary=[forged.tests[0].key]).report
    assert [found.outcome for found in again.tests] != ["FAILED"]


EMPTIED = """
import types
def empty(*arguments, **named): pass
def empty_tests_of(module):
    for value in list(vars(module).values()):
        for function in [value, *(vars(value).values() if isinstance(value, type) else ())]:
            if isinstance(function, types.FunctionType) and function.__name__.startswith("test"):
                function.__code__ = empty.__code__.replace(co_filename=function.__code__.co_filename)
"""


@pytest.mark.parametrize("module", ["pytest", "unittest"])
def test_tests_emptied_after_collection_have_not_passed(files, run_reported, module):
    test = "class T(unittest.TestCase):\n    def test_x(self): self.fail()\n"
    set_up = "def setUpModule(): pkg.empty_tests_of(sys.modules[__name__])\n"
    files(pkg=EMPTIED, test_it=f"import pkg, sys, unittest\n{test}{set_up}")
    run = run_reported(module, "test_it.py" if module == "pytest" else "test_it")
    assert [found.outcome for found in run.report.tests] == ["PASSED"]
    assert [found.outcome for found in run.report.without_forged({"pkg.py"}).tests] == ["FAILED"]
