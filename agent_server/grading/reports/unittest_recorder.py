"""Records unittest's outcomes inside a sandbox, one line per outcome. Installed there as sitecustomize.py.

Invariant: an outcome is recorded only by unittest's own call for it. Runs in every Python from 3.5 on and imports only
the standard library.
"""

import json
import os

REPORT = "UNITTEST_REPORT"  # environment variable: the path of the report


def record_outcomes(path):
    """Let every unittest result of this process, of whatever class, append its outcomes to `path`."""
    import unittest

    def append(test, outcome):
        line = json.dumps([test.id(), outcome]) + "\n"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line.encode())  # one write per line: test runners fork
        finally:
            os.close(descriptor)

    def recording(method, outcome):
        def record(self, test, *details):
            append(test, outcome)
            return method(self, test, *details)

        return record

    outcomes = {
        "addSuccess": "PASSED", "addFailure": "FAILED", "addError": "ERROR", "addSkip": "SKIPPED",
        "addExpectedFailure": "XFAIL", "addUnexpectedSuccess": "XPASS",
    }  # fmt: skip
    for name, outcome in outcomes.items():
        setattr(unittest.TestResult, name, recording(getattr(unittest.TestResult, name), outcome))


if os.environ.get(REPORT):
    record_outcomes(os.environ[REPORT])
