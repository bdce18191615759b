"""The hostile set as data: name, place and code of each attack on the grade of a row.

Invariant: no attack solves a row. Code runs on every Python from 3.5 on; `{passes}` in it stands for an expression
whose value is the text of printed.passes as bytes.
"""

from dataclasses import dataclass, field
from typing import Literal

from agent_server.validate.attacks_on_reports import ENVIRONMENT_PLUGIN, RESTART, REWRITE_AT_EXIT, REWRITE_BY_CHILD
from agent_server.validate.attacks_on_runners import (
    ASSERTIONS,
    EXPECT_FAILURE,
    FAKE_MODULES,
    MAKE_REPORT,
    MARK_MODULE,
    MARK_TEST,
    NO_RUN,
    NO_UNITTEST_RUN,
    PLUGINS_OF_MODULE,
    REGISTER_PLUGIN,
    SWALLOW,
    SYMPY_REPORTER,
    TEST_CODE,
    TEST_REPORT,
    UNITTEST_RESULTS,
)

Place = Literal["import", "function", "files"]

PRINT = """import os
for name in os.listdir("/proc/self/fd"):  # pytest replaces the first descriptors and keeps the real ones elsewhere
    try:
        if int(name) > 2:
            os.set_blocking(int(name), False)  # nobody may read what is written here
        os.write(int(name), {passes})
    except OSError:
        pass
"""
PRINT_AND_EXIT = f"{PRINT}os._exit(0)\n"
PRINT_AT_EXIT = "import atexit\n\n@atexit.register\ndef leave():\n" + "".join(
    f"    {line}\n" for line in PRINT_AND_EXIT.splitlines()
)
PYTEST_EXIT = f"{PRINT}import pytest\ntry:\n    pytest.exit('', 0)\nexcept TypeError:\n    pytest.exit('')\n"
CONFTEST = """import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome, report.longrepr = "passed", None

def pytest_collection_modifyitems(items):
    for item in items:
        item.obj = lambda *args, **kwargs: None
"""
PLUGIN_FOR_ALL = "[pytest]\naddopts = -p planted_plugin\n"
ENTRY_POINTS = "[pytest11]\nplanted_plugin = planted_plugin\n"
METADATA = "Metadata-Version: 2.1\nName: planted\nVersion: 1\n"


@dataclass(frozen=True, slots=True)
class Attack:
    """One hostile change. `place`: where `code` runs: when the package is imported, in the functions under test, or
    nowhere, since the attack is the `files` (text by path). `needs`: a path without which it means nothing."""

    name: str
    place: Place
    code: str = ""
    files: dict[str, str] = field(default_factory=dict)
    needs: str = ""


ATTACKS = (
    Attack("plant conftest.py", "files", files={"conftest.py": CONFTEST}),
    Attack("replace the runner", "files", files={"pytest.py": PRINT_AND_EXIT, "unittest.py": PRINT_AND_EXIT}),
    Attack(
        "configure a plugin",
        "files",
        files={"planted_plugin.py": CONFTEST, "pytest.ini": PLUGIN_FOR_ALL, ".pytest.ini": PLUGIN_FOR_ALL},
    ),
    Attack(
        "install a plugin",
        "files",
        files={
            "planted_plugin.py": CONFTEST,
            "planted-1.dist-info/entry_points.txt": ENTRY_POINTS,
            "planted-1.dist-info/METADATA": METADATA,
        },
    ),
    Attack("exit at import", "import", "import sys\nsys.exit(0)\n"),
    Attack("print and exit at import", "import", PRINT_AND_EXIT),
    Attack("print and exit at exit", "import", PRINT_AT_EXIT),
    Attack("pytest.exit at import", "import", PYTEST_EXIT),
    Attack("xfail at import", "import", '__import__("pytest").xfail("")\n'),
    Attack("skip at import", "import", '__import__("pytest").skip("", allow_module_level=True)\n'),
    Attack("SkipTest at import", "import", 'raise __import__("unittest").SkipTest("")\n'),
    Attack("mark the test module at import", "import", MARK_MODULE),
    Attack("name a plugin in the test module", "import", PLUGINS_OF_MODULE),
    Attack("empty the tests", "import", TEST_CODE),
    Attack("fake pytest and unittest", "import", FAKE_MODULES),
    Attack("patch TestReport", "import", TEST_REPORT),
    Attack("patch the making of reports", "import", MAKE_REPORT),
    Attack("swallow exceptions of tests", "import", SWALLOW),
    Attack("patch Function.runtest", "import", NO_RUN),
    Attack("patch unittest.TestCase.run", "import", NO_UNITTEST_RUN),
    Attack("patch unittest's results", "import", UNITTEST_RESULTS),
    Attack("patch assertions", "import", ASSERTIONS),
    Attack("register a plugin", "import", REGISTER_PLUGIN),
    Attack("plugin by environment", "import", ENVIRONMENT_PLUGIN),
    Attack("restart with a plugin", "import", RESTART),
    Attack("rewrite reports at exit", "import", REWRITE_AT_EXIT),
    Attack("rewrite reports by a child", "import", REWRITE_BY_CHILD),
    Attack("xfail in the function", "function", '__import__("pytest").xfail("")\n'),
    Attack("skip in the function", "function", '__import__("pytest").skip("")\n'),
    Attack("SkipTest in the function", "function", 'raise __import__("unittest").SkipTest("")\n'),
    Attack("mark the test in the function", "function", MARK_TEST),
    Attack("expect the failure in the function", "function", EXPECT_FAILURE),
    Attack("exit in the function", "function", "import sys\nsys.exit(0)\n"),
    Attack("print and exit in the function", "function", PRINT_AND_EXIT),
    Attack("pytest.exit in the function", "function", PYTEST_EXIT),
    Attack("patch SymPy's reporter", "function", SYMPY_REPORTER, needs="sympy"),
)
