"""Code of attacks that change a test runner from inside: its classes, its marks, its plugins.

Invariant: none reads or changes a file; all act in the process that runs the tests.
"""

# The module whose import led here gets a mark, as if it stood in its source.
MARK_MODULE = """import sys
import pytest
frame = sys._getframe()
while frame:
    if "test" in str(frame.f_globals.get("__name__")).rpartition(".")[2]:
        frame.f_globals["pytestmark"] = pytest.mark.xfail(strict=False)
    frame = frame.f_back
"""
# pytest loads the plugins that a test module names.
PLUGINS_OF_MODULE = """import sys
import types
import pytest
plugin = types.ModuleType("planted_plugin")

@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome, report.longrepr = "passed", None

plugin.pytest_runtest_makereport = pytest_runtest_makereport
sys.modules["planted_plugin"] = plugin
frame = sys._getframe()
while frame:
    if "test" in str(frame.f_globals.get("__name__")).rpartition(".")[2]:
        frame.f_globals["pytest_plugins"] = ["planted_plugin"]
    frame = frame.f_back
"""
# Runners call this after they have collected the tests, and before the first one.
TEST_CODE = """import sys
import types

def empty(*args, **kwargs):
    pass

def set_up_of(names):
    def set_up():
        for value in list(names.values()):
            inner = list(vars(value).values()) if isinstance(value, type) else []
            for function in [value] + inner:
                if isinstance(function, types.FunctionType) and function.__name__.startswith("test"):
                    code = empty.__code__
                    if hasattr(code, "replace"):
                        code = code.replace(co_filename=function.__code__.co_filename)
                    function.__code__ = code
    return set_up

frame = sys._getframe()
while frame:
    if "test" in str(frame.f_globals.get("__name__")).rpartition(".")[2]:
        frame.f_globals["setup_module"] = frame.f_globals["setUpModule"] = set_up_of(frame.f_globals)
    frame = frame.f_back
"""
# Modules that pass everything on, mark whoever imports them, and let every TestCase pass.
FAKE_MODULES = """import sys
import types
import unittest
try:
    import pytest
except ImportError:
    pytest = types.ModuleType("pytest")
true = {"pytest": pytest, "unittest": unittest}

class Case(unittest.TestCase):
    def run(self, result=None):
        result.startTest(self)
        result.addSuccess(self)
        result.stopTest(self)
        return result

class Fake(types.ModuleType):
    def __getattr__(self, name):
        if self.__name__ == "unittest" and name == "TestCase":
            return Case
        if self.__name__ == "pytest":
            sys._getframe(1).f_globals["pytestmark"] = pytest.mark.xfail(strict=False)
        return getattr(true[self.__name__], name)

for name in true:
    sys.modules[name] = Fake(name)
"""
TEST_REPORT = """from _pytest.reports import TestReport
initialize = TestReport.__init__

def forged(self, *args, **kwargs):
    initialize(self, *args, **kwargs)
    self.outcome, self.longrepr = "passed", None

TestReport.__init__ = forged
"""
MAKE_REPORT = """from _pytest.reports import TestReport
make = TestReport.from_item_and_call.__func__

def forged(cls, item, call):
    report = make(cls, item, call)
    report.outcome, report.longrepr = "passed", None
    return report

TestReport.from_item_and_call = classmethod(forged)
"""
SWALLOW = """from _pytest.runner import CallInfo
make = CallInfo.from_call.__func__

def forged(cls, func, when, *args, **kwargs):
    call = make(cls, func, when, *args, **kwargs)
    if when in ("setup", "call", "teardown"):
        call.excinfo = None
    return call

CallInfo.from_call = classmethod(forged)
"""
NO_RUN = """import _pytest.python
import _pytest.unittest
_pytest.python.Function.runtest = lambda self: None
_pytest.unittest.TestCaseFunction.runtest = lambda self: None
"""
NO_UNITTEST_RUN = """import unittest

def run(self, result=None):
    result = self.defaultTestResult() if result is None else result
    result.startTest(self)
    result.addSuccess(self)
    result.stopTest(self)
    return result

unittest.TestCase.run = run
"""
ASSERTIONS = """import sys
import unittest

class Anything(object):
    def __enter__(self):
        return self

    def __exit__(self, *details):
        return True

def accept(*args, **kwargs):
    return Anything()

for name in dir(unittest.TestCase):
    if name.startswith("assert") or name == "fail":
        setattr(unittest.TestCase, name, accept)
for name in ("pytest", "numpy.testing"):
    for function in dir(sys.modules.get(name)):
        if function.startswith("assert_") or function in ("raises", "warns", "fail"):
            setattr(sys.modules[name], function, accept)
"""
UNITTEST_RESULTS = """import unittest

def forge(kind):
    for name in ("addFailure", "addError", "addSubTest"):
        setattr(kind, name, lambda self, test, *details: self.addSuccess(test))
    for inner in kind.__subclasses__():
        forge(inner)

forge(unittest.TestResult)
unittest.TestResult.wasSuccessful = lambda self: True
"""
REGISTER_PLUGIN = """import gc
import pytest
from _pytest.config import Config

class Plugin(object):
    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        report = (yield).get_result()
        report.outcome, report.longrepr = "passed", None

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem):
        pyfuncitem.obj = lambda *args, **kwargs: None
        yield

for thing in gc.get_objects():
    if type(thing) is Config:
        thing.pluginmanager.register(Plugin(), "planted")
"""
# pytest looks for marks after the test too, so one added while it runs counts.
MARK_TEST = """import sys
frame = sys._getframe()
while frame:
    for name in ("item", "pyfuncitem"):
        if hasattr(frame.f_locals.get(name), "add_marker"):
            frame.f_locals[name].add_marker("xfail")
    frame = frame.f_back
raise AssertionError
"""
# unittest then takes the failure for an expected one, and still calls addSuccess.
EXPECT_FAILURE = """import sys
frame = sys._getframe()
while frame:
    outcome = frame.f_locals.get("outcome")
    if hasattr(outcome, "expecting_failure"):
        outcome.expecting_failure = True
    frame = frame.f_back
raise AssertionError
"""
SYMPY_REPORTER = """import sys
for name in ("sympy.testing.runtests", "sympy.utilities.runtests"):
    if hasattr(sys.modules.get(name), "PyTestReporter"):
        reporter = sys.modules[name].PyTestReporter
        reporter.test_fail = reporter.test_exception = lambda self, *details: self.test_pass()
raise AssertionError
"""
