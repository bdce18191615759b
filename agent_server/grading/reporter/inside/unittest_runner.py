"""Reports what unittest's runner runs, and with it Django's and every other that passes its results to a TestResult.

Invariant: an outcome is recorded only by the runner's own call for it.
"""

import os
import sys

OUTCOMES = {
    "addSuccess": "PASSED",
    "addFailure": "FAILED",
    "addError": "ERROR",
    "addSkip": "SKIPPED",
    "addExpectedFailure": "XFAIL",
    "addUnexpectedSuccess": "XPASS",
}


def patch(unittest, recorder, tools):
    """Let results, runners and skips report."""
    folders = (os.path.dirname(os.path.abspath(unittest.__file__)) + os.sep,)
    sessions = []  # of this process, the present one last
    _record_skips(unittest, tools, folders)
    _record_sessions(unittest, recorder, sessions)
    _record_outcomes(unittest, recorder, tools, sessions)
    if recorder.canary is not None:
        _fail_after_pass(unittest, recorder, tools, sessions)


def _record_skips(unittest, tools, folders):
    """Remember which file made the last SkipTest: its traceback does not reach the result."""
    skip = unittest.SkipTest

    def __init__(self, *arguments):
        Exception.__init__(self, *arguments)
        skip.reporter_origin = tools.calling_file(sys._getframe(1), folders)

    skip.__init__ = __init__
    skip.reporter_origin = ""


def _record_sessions(unittest, recorder, sessions):
    program, runner = unittest.TestProgram, unittest.TextTestRunner
    original_program, original_run = program.__init__, runner.run

    def __init__(self, *arguments, **named):
        sessions.append(recorder.open_session("unittest"))
        original_program(self, *arguments, **named)

    def run(self, *arguments, **named):
        if not sessions:
            sessions.append(recorder.open_session("unittest"))
        session = sessions[-1]
        recorder.write(session, "root", os.getcwd())
        result = original_run(self, *arguments, **named)
        recorder.close_session(session)
        sessions[:] = [name for name in sessions if name != session]
        return result

    program.__init__, runner.run = __init__, run


def _record_outcomes(unittest, recorder, tools, sessions):
    result_class = unittest.TestResult

    def write(test, outcome, origin):
        if not sessions:
            return
        test = getattr(test, "test_case", test)  # of a sub-test
        with recorder:
            method = getattr(test, getattr(test, "_testMethodName", ""), None)
            file = getattr(sys.modules.get(type(test).__module__), "__file__", None) or ""
            recorder.write(
                sessions[-1], "case", test.id(), str(test), (test.shortDescription() or "").strip(),
                os.path.abspath(file) if file else "", tools.defining_file(method), outcome, origin,
            )  # fmt: skip

    def recording(original, outcome):
        def record(self, test, *details):
            origin = _skip_origin(unittest, test) if outcome == "SKIPPED" else ""
            write(test, outcome, origin)
            return original(self, test, *details)

        return record

    for name, outcome in OUTCOMES.items():
        setattr(result_class, name, recording(getattr(result_class, name), outcome))
    original_subtest = result_class.addSubTest

    def add_subtest(self, test, subtest, error):
        if error is not None:
            write(test, "FAILED", "")
        return original_subtest(self, test, subtest, error)

    result_class.addSubTest = add_subtest


def _skip_origin(unittest, test):
    """The file that raised SkipTest; "" where a decorator skips the test or its class."""
    method = getattr(test, getattr(test, "_testMethodName", ""), None)
    if getattr(type(test), "__unittest_skip__", False) or getattr(method, "__unittest_skip__", False):
        return ""
    return unittest.SkipTest.reporter_origin


def _fail_after_pass(unittest, recorder, tools, sessions):
    """Run the selected tests only, and let each fail after it has passed."""
    case, result_class = unittest.TestCase, unittest.TestResult
    original_run, original_start = case.run, result_class.startTest

    def arm(test):
        name = getattr(test, "_testMethodName", None)
        if sessions and name and not hasattr(test, "_reporter_armed"):
            test._reporter_armed = True
            setattr(test, name, tools.raise_after(getattr(test, name)))

    def run(self, result=None):
        if sessions and not recorder.is_selected(self.id()):
            return result
        arm(self)
        return original_run(self, result)

    def start_test(self, test):
        arm(test)  # test cases with a `run` of their own
        return original_start(self, test)

    case.run, result_class.startTest = run, start_test
