"""Reports what pytest collects and runs: a plugin that every plugin manager of a process gets.

Invariant: outcomes are those that pytest itself logs. Every pytest from 3 to 9 has the hooks used here.
"""

import os
import sys

ORIGIN = "_reporter_origin"  # attribute of a report: the files whose code skipped or xfailed the test


def patch(config_module, recorder, tools):
    """Add the plugin to each new PytestPluginManager."""
    manager = config_module.PytestPluginManager
    original = manager.__init__
    plugin_class = _plugin_class(config_module.hookimpl, recorder, tools)

    def __init__(self, *arguments, **named):
        original(self, *arguments, **named)
        with recorder:
            self.register(plugin_class(), "%s.%d" % (__name__, id(self)))

    manager.__init__ = __init__


def _path(node):
    return os.path.abspath(str(getattr(node, "path", None) or node.fspath))


def _key(item):
    return _path(item), item.nodeid.partition("::")[2]


def _plugin_class(hookimpl, recorder, tools):
    class Reporter:
        """The plugin of one plugin manager."""

        def __init__(self):
            self._session = None
            self._root = ""
            self._codes = {}  # of the collected tests, by node id

        @hookimpl(tryfirst=True)
        def pytest_cmdline_main(self, config):
            with recorder:
                self._open(config)

        @hookimpl(tryfirst=True)
        def pytest_sessionstart(self, session):
            with recorder:
                self._open(session.config)
                recorder.write(self._session, "root", self._root)

        def _open(self, config):
            if self._session is None:
                self._root = str(getattr(config, "rootpath", None) or config.rootdir)
                is_worker = hasattr(config, "workerinput") or hasattr(config, "slaveinput")
                self._session = recorder.open_session("pytest", is_worker)

        @hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items):
            with recorder:
                if recorder.canary is not None:
                    items[:] = [item for item in items if recorder.is_selected(*_key(item))]

        def pytest_collection_finish(self, session):
            with recorder:
                for item in session.items:
                    self._codes[item.nodeid] = tools.code_of(getattr(item, "obj", None))
                    defined = tools.defining_file(getattr(item, "obj", None))
                    printed = session.config.cwd_relative_nodeid(item.nodeid)
                    recorder.write(
                        self._session, "item", item.nodeid, _path(item), type(item).__name__, defined, printed
                    )

        def pytest_collectstart(self, collector):
            with recorder:
                if type(collector).__name__ == "Module":
                    recorder.write(self._session, "module", _path(collector))

        def pytest_collectreport(self, report):
            with recorder:
                if report.outcome != "passed":
                    recorder.write(self._session, "collect", report.nodeid, report.outcome)

        @hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_call(self, item):
            with recorder:
                code = tools.code_of(getattr(item, "obj", None))
                if self._codes.get(item.nodeid, code) is not code:
                    recorder.write(self._session, "redefined", item.nodeid)
                if recorder.canary is not None:
                    _fail_after_pass(item, tools)
            yield

        @hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_makereport(self, item, call):
            raised = call.excinfo  # before plugins replace it; pytest itself fills in that of a unittest.TestCase
            outcome = yield
            with recorder:
                report = outcome.get_result()
                if report.outcome == "skipped" or hasattr(report, "wasxfail"):
                    setattr(report, ORIGIN, _origin(item, raised or call.excinfo, tools))

        def pytest_runtest_logreport(self, report):
            with recorder:
                if report.outcome != "failed" and (hasattr(report, "context") or hasattr(report, "node")):
                    return  # a sub-test, whose test is reported too; or from a worker of xdist, which has written it
                outcome = report.outcome
                if hasattr(report, "wasxfail"):
                    outcome = {"skipped": "xfailed", "passed": "xpassed"}.get(outcome, outcome)
                origin = getattr(report, ORIGIN, "")
                recorder.write(self._session, "phase", report.nodeid, report.when, outcome, origin)

        @hookimpl(tryfirst=True)
        def pytest_sessionfinish(self):
            with recorder:
                recorder.close_session(self._session)

        def pytest_unconfigure(self):
            with recorder:
                recorder.close_session(self._session)

    return Reporter


def _origin(item, raised, tools):
    """The files of the code that skipped or xfailed the test, or that made the mark which did, the innermost first."""
    unittest = sys.modules.get("unittest")
    skip_test = getattr(unittest, "SkipTest", None)
    outcomes = sys.modules.get("_pytest.outcomes") or sys.modules.get("_pytest.runner")
    skip, xfail = (getattr(getattr(outcomes, name, None), "Exception", None) for name in ("skip", "xfail"))
    value = raised.value if raised is not None else None
    control = tuple(kind for kind in (skip, xfail, skip_test) if kind)
    files = tools.files_of_traceback(value.__traceback__) if isinstance(value, control) else ""
    if hasattr(item, "addSkip") and not isinstance(value, skip_test or ()):
        # A unittest.TestCase: pytest raises a skip or xfail of its own in place of what the test raised.
        method, test_class = getattr(item, "obj", None), getattr(item, "cls", None)
        what = "skip" if skip and isinstance(value, skip) else "expecting_failure"
        return tools.files_of_unittest_mark(unittest, what, method, test_class) or files
    names = ("xfail",) if not (skip and isinstance(value, (skip, skip_test or skip))) else ("skip", "skipif")
    marks = [item.get_closest_marker(name) for name in names] if hasattr(item, "get_closest_marker") else []
    return "\n".join([files] + [getattr(mark, "reporter_files", "") for mark in marks if mark is not None])


def _fail_after_pass(item, tools):
    """Let the test of this item fail after it has passed."""
    function = getattr(item, "obj", None)
    if callable(function):
        item.obj = tools.raise_after(function)
        if getattr(item, "_testcase", None) is not None:  # pytest before 5.4 calls the method of the test case
            setattr(item._testcase, item.name, item.obj)
    else:
        item.runtest = tools.raise_after(item.runtest)
