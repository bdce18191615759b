"""Reports what SymPy's own runner (`bin/test`) runs.

Invariant: an outcome is recorded only by the runner's own call for it. The runner's file lies in the repository, so the
canary run is what notices a changed one.
"""

import os
import sys
import types

OUTCOMES = {
    "test_pass": "PASSED",
    "test_fail": "FAILED",
    "test_exception": "ERROR",
    "test_skip": "SKIPPED",
    "test_xfail": "XFAIL",
    "test_xpass": "XPASS",
}


def patch(module, recorder, tools):
    """Let the runner's reporter report. The older of the two modules only re-exports the newer one."""
    reporter = getattr(module, "PyTestReporter", None)
    if reporter is None or hasattr(reporter, "reporter_patched"):
        return
    reporter.reporter_patched = True
    state = {"session": None, "file": "", "test": None}

    def before(name, action):
        original = getattr(reporter, name)

        def method(self, *arguments, **named):
            action(*arguments, **named)
            return original(self, *arguments, **named)

        setattr(reporter, name, method)

    def start(*arguments, **named):
        state["session"] = recorder.open_session("sympy")
        recorder.write(state["session"], "root", os.getcwd())

    def enter_file(filename, *arguments):
        state["file"] = os.path.abspath(filename)

    def enter_test(function):
        state["test"] = function
        if recorder.canary is not None and recorder.is_selected(state["file"], function.__name__):
            _fail_after_pass(function)

    def record(outcome):
        def action(*arguments, **named):
            function = state["test"]
            if function is not None and state["session"]:
                file = tools.defining_file(function)
                origin = tools.files_of_traceback(sys.exc_info()[2]) if outcome in ("SKIPPED", "XFAIL") else ""
                recorder.write(state["session"], "function", function.__name__, state["file"], file, outcome, origin)

        return action

    before("start", start)
    before("entering_filename", enter_file)
    before("entering_test", enter_test)
    for name, outcome in OUTCOMES.items():
        before(name, record(outcome))
    before("finish", lambda *arguments, **named: recorder.close_session(state["session"]))


def _fail_after_pass(function):
    """Replace the function's code, since the runner holds the function itself. One with a closure keeps its code."""
    if function.__closure__:
        return
    function.__globals__["_reporter_original"] = types.FunctionType(function.__code__, function.__globals__)

    def checked():
        _reporter_original()  # noqa: F821  a global of the test's module
        raise AssertionError("raised by the canary run after the test has passed")

    function.__code__ = checked.__code__
