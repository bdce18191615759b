"""Awkward repositories: options, variables and exit codes of their own."""

from tests.agent_server.grading.awkward.awkward import BOTH, PASS, PASSED, Awkward, both

CACHE = """
def pytest_configure(config):
    config.cache.set("awkward/seen", config.cache.get("awkward/seen", 0) + 1)
"""
CACHE_TEST = """
def test_cache(cache, pytestconfig):
    assert cache.get("awkward/seen", 0) == 1
    assert pytestconfig.cache is not None
"""
OWN_SITE = "import builtins\n\nbuiltins.customized = True\n"
VARIABLES = """
import os

ALLOWED = {"PYTEST_VERSION", "PYTEST_CURRENT_TEST"}  # pytest's own


def test_pager():
    assert "PAGER" not in os.environ


def test_variables():
    assert [name for name in os.environ if "PYTEST" in name and name not in ALLOWED] == []
    assert "PYTHONPATH" not in os.environ


def test_children():
    import subprocess, sys
    code = "import sys; print([name for name in sys.modules if 'pytest' in name], sys.flags.dont_write_bytecode)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[] 0\\n"
"""
EXIT_STATUS = "def pytest_sessionfinish(session):\n    session.exitstatus = 3\n"
CRASH = "import atexit, os\n\natexit.register(os._exit, 7)\n"
ABORT = "import os, sys\n\n\ndef pytest_unconfigure():\n    sys.stdout.flush()\n    os.abort()\n"
JUNIT = "import sys, xml.etree.ElementTree as tree\nsys.exit(len(list(tree.parse('own.xml').iter('testcase'))) + 40)\n"
SWITCHES = {
    "no cache and no junit": Awkward(
        {"test_a.py": BOTH, "pytest.ini": "[pytest]\naddopts = -v -p no:cacheprovider -p no:junitxml\n"},
        "pytest", both("test_a.py"),
    ),
    "own options in the image": Awkward(
        {"test_a.py": BOTH}, "pytest", both("test_a.py"), variables={"PYTEST_ADDOPTS": "-v --strict-markers"}
    ),
    "no entry points": Awkward(
        {"test_a.py": BOTH}, "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 pytest -v", both("test_a.py"), environment="plugins"
    ),
    "empty environment": Awkward({"test_a.py": BOTH}, "env -i /opt/venvs/plain/bin/pytest -v", both("test_a.py")),
    "isolated Python": Awkward({"test_a.py": BOTH}, "python -I -m pytest -v", both("test_a.py")),
    "variables are watched": Awkward(
        {"test_a.py": VARIABLES}, "pytest -v",
        {f"test_a.py::{name}": PASSED for name in ("test_pager", "test_variables", "test_children")}, returncode=0,
    ),
    "own sitecustomize": Awkward(
        {"site/sitecustomize.py": OWN_SITE, "test_a.py": "def test_a():\n    assert customized\n"},
        "PYTHONPATH=/testbed/site pytest -v", {"test_a.py::test_a": PASSED}, returncode=0,
    ),
    "cache": Awkward(
        {"conftest.py": CACHE, "test_a.py": CACHE_TEST + BOTH}, "pytest -v --ff",
        {"test_a.py::test_cache": PASSED} | both("test_a.py"),
    ),
    "last failed first": Awkward(
        {"test_a.py": BOTH}, "pytest -v; pytest -v --lf", both("test_a.py"),
    ),
    "own junit report": Awkward(
        {"test_a.py": BOTH, "count.py": JUNIT}, "pytest -v --junitxml=own.xml; python count.py", both("test_a.py"),
        returncode=42,
    ),
    "warnings are errors": Awkward(
        {"test_a.py": BOTH, "pytest.ini": "[pytest]\nfilterwarnings = error\n"},
        "python -X dev -W error -m pytest -v", both("test_a.py"),
    ),
    "stops at the first failure": Awkward({"test_a.py": BOTH, "test_b.py": PASS}, "pytest -v -x", both("test_a.py")),
    "coverage threshold": Awkward(
        {"pkg.py": "def f():\n    return 1\n\n\ndef g():\n    return 2\n", "test_a.py": "import pkg\n" + PASS},
        "pytest -v -p no:randomly --cov=pkg --cov-fail-under=100", {"test_a.py::test_a": PASSED},
        environment="plugins",
    ),
    "own exit status": Awkward(
        {"conftest.py": EXIT_STATUS, "test_a.py": PASS}, "pytest -v", {"test_a.py::test_a": PASSED}, returncode=3
    ),
    "crash at exit": Awkward(
        {"conftest.py": CRASH, "test_a.py": PASS}, "pytest -v", {"test_a.py::test_a": PASSED}, returncode=7
    ),
    "abort after the session": Awkward(
        {"conftest.py": ABORT, "test_a.py": PASS}, "pytest -v", {"test_a.py::test_a": PASSED}, returncode=134
    ),
    "exit code ignored": Awkward(
        {"test_a.py": BOTH}, "set -o pipefail; pytest -v | tee log || true; (pytest -q >/dev/null & wait)",
        both("test_a.py"), returncode=0,
    ),
}  # fmt: skip
