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
    sessions = []  # of this process, the present one last
    _record_skips(unittest, tools)
    _record_sessions(unittest, recorder, sessions)
    _record_outcomes(unittest, recorder, tools, sessions)
    if recorder.canary is not None:
        _fail_after_pass(unittest, recorder, sessions, tools)


def _record_skips(unittest, tools):
    """Remember the files that made the last SkipTest, whose traceback does not reach the result, and those that
    decorate a test."""
    skip_test = unittest.SkipTest

    def __init__(self, *arguments):
        Exception.__init__(self, *arguments)
        skip_test.reporter_files = tools.files_of_callers(sys._getframe(1))

    skip_test.__init__ = __init__
    skip_test.reporter_files = ""

    def remembering(original, what):
        def decorate(argument):
            files = tools.files_of_callers(sys._getframe(1))

            def mark(test):
                setattr(test, "reporter_files_" + what, files)
                return test

            made = original(argument)
            if hasattr(made, "__unittest_%s__" % what):
                return mark(made)
            return lambda test: mark(made(test))

        return decorate

    for name, what in (("skip", "skip"), ("expectedFailure", "expecting_failure")):
        decorator = remembering(getattr(unittest, name), what)
        setattr(unittest, name, decorator)
        setattr(unittest.case, name, decorator)


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
    result_class, case = unittest.TestResult, unittest.TestCase
    original_init = case.__init__
    codes = {}  # of the collected tests, by class and method: runners pickle the test cases themselves
    assertions = {name: value for name, value in vars(case).items() if name.startswith(("assert", "fail"))}

    def __init__(self, *arguments, **named):
        original_init(self, *arguments, **named)
        with recorder:
            name = self._testMethodName
            codes.setdefault((type(self), name), tools.code_of(getattr(self, name, None)))

    def defining_file(test, method):
        """File of the test's code; of an assertion's, where that was replaced; "?" for code replaced after
        collection."""
        code = tools.code_of(method)
        if codes.get((type(test), getattr(test, "_testMethodName", "")), code) is not code:
            return "?"
        for name, value in assertions.items():
            replaced = vars(case).get(name)
            if replaced is not value:
                file = tools.defining_file(replaced)
                return file if os.path.exists(file) else "?"
        return tools.defining_file(method)

    case.__init__ = __init__

    def write(test, outcome, origin):
        if not sessions:
            return
        test = getattr(test, "test_case", test)  # of a sub-test
        with recorder:
            method = getattr(test, getattr(test, "_testMethodName", ""), None)
            file = getattr(sys.modules.get(type(test).__module__), "__file__", None) or ""
            recorder.write(
                sessions[-1], "case", test.id(), str(test), (test.shortDescription() or "").strip(),
                os.path.abspath(file) if file else "", defining_file(test, method), outcome, origin,
            )  # fmt: skip

    def recording(original, outcome):
        def record(self, test, *details):
            write(test, outcome, _origin(unittest, tools, test, outcome))
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


def _origin(unittest, tools, test, outcome):
    """The files of the code that skipped the test or expects its failure, the innermost first."""
    what = {"SKIPPED": "skip", "XFAIL": "expecting_failure"}.get(outcome)
    if what is None:
        return ""
    test = getattr(test, "test_case", test)  # of a sub-test
    method = getattr(test, getattr(test, "_testMethodName", ""), None)
    return tools.files_of_unittest_mark(unittest, what, method, type(test))


def _fail_after_pass(unittest, recorder, sessions, tools):
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
