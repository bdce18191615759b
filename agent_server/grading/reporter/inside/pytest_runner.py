"""Reports what pytest collects and runs: a plugin that every plugin manager of a process gets.

Invariant: outcomes are those that pytest itself logs. Every pytest from 3 to 9 has the hooks used here.
"""

import os
import sys

ORIGIN = "_reporter_origin"  # attribute of a report: the file that skipped or xfailed the test, "" for a mark


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


def _runner_folders():
    """Folders of pytest, pluggy and unittest: code there belongs to the runner."""
    modules = [sys.modules.get(name) for name in ("_pytest", "pytest", "pluggy", "unittest")]
    files = [getattr(module, "__file__", None) for module in modules]
    return tuple(os.path.dirname(os.path.abspath(file)) + os.sep for file in files if file and "__init__" in file)


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
                    defined = tools.defining_file(getattr(item, "obj", None))
                    recorder.write(self._session, "item", item.nodeid, _path(item), type(item).__name__, defined)

        def pytest_collectreport(self, report):
            with recorder:
                if report.outcome != "passed":
                    recorder.write(self._session, "collect", report.nodeid, report.outcome)

        @hookimpl(hookwrapper=True, tryfirst=True)
        def pytest_runtest_call(self, item):
            with recorder:
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
    """The file whose code skipped or xfailed the test; "" where a mark did."""
    if raised is None:
        return ""
    skip_test = getattr(sys.modules.get("unittest"), "SkipTest", None)
    outcomes = sys.modules.get("_pytest.outcomes") or sys.modules.get("_pytest.runner")
    control = [getattr(outcomes, name).Exception for name in ("skip", "xfail") if hasattr(outcomes, name)]
    if not isinstance(raised.value, tuple(control + [skip_test] * bool(skip_test))):
        return ""  # any other exception of a test that is marked as xfail
    file = tools.innermost_file(raised.value.__traceback__, _runner_folders())
    if not file and hasattr(item, "addSkip") and isinstance(raised.value, control[0]):
        # Of a unittest.TestCase that raised SkipTest, pytest raises a skip of its own.
        method, test_class = getattr(item, "obj", None), getattr(item, "cls", None)
        marked = getattr(method, "__unittest_skip__", False) or getattr(test_class, "__unittest_skip__", False)
        file = "" if marked else getattr(skip_test, "reporter_origin", "")
    return file


def _fail_after_pass(item, tools):
    """Let the test of this item fail after it has passed."""
    function = getattr(item, "obj", None)
    if callable(function):
        item.obj = tools.raise_after(function)
        if getattr(item, "_testcase", None) is not None:  # pytest before 5.4 calls the method of the test case
            setattr(item._testcase, item.name, item.obj)
    else:
        item.runtest = tools.raise_after(item.runtest)
