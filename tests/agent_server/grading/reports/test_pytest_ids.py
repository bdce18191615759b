"""Node ids with any characters, inherited tests, doctests, and files of unusual names."""

import re

import pytest

from agent_server.grading.reports.pytest_summary import parse_pytest_summary

HEAD = "=========================== short test summary info ============================\n"


IDS = [
    "a b",
    "a - b",
    "a:b::c",
    "x/y.py",
    "]",
    "[",
    "a]b - c[d",
    "é☃",
    "tab\there",
    "new\nline",
    "\x1b[31mred\x1b[0m",
    "",
    " lead",
    "trail ",
    "a - ",
    " - ",
    "\\back",
    "'q\"<&>",
    "PASSED",
    "1 passed in 0.1s",
    "x" * 300,
    "at setup of",
]


PARAMETRISED = f"""
import pytest
IDS = {IDS!r}
@pytest.mark.parametrize("v", IDS, ids=IDS)
def test_good(v): pass
@pytest.mark.parametrize("v", IDS, ids=IDS)
def test_bad(v): assert v == 1, "boom - [ - ] :: more"
@pytest.mark.parametrize("v", IDS, ids=IDS)
@pytest.mark.xfail(reason="known - [x]")
def test_known(v): assert 0
@pytest.mark.parametrize("v", IDS, ids=IDS)
def test_end(v, bad_end): pass
@pytest.fixture
def bad_end():
    yield
    raise RuntimeError("[x] - y]")
"""


@pytest.mark.parametrize("colour", ["yes", "no"])
def test_ids_of_any_characters(run_pytest, collected, colour):
    run = run_pytest({"tests/deep er/test_ids.py": PARAMETRISED}, f"--color={colour}")
    outcome = {"test_good": "PASSED", "test_bad": "FAILED", "test_known": "XFAIL", "test_end": "ERROR"}
    expected = {name: outcome[re.search(r"::(\w+)\[", name)[1]] for name in collected()}
    assert len(expected) == 4 * len(IDS) and run.summary == expected and run.reported == expected


def test_an_id_that_looks_like_an_id_with_a_reason():
    """A known id, since the order is passed before failed; an unknown one is cut at the first place that may be its
    end."""
    lines = "PASSED t.py::t[a] - b]\nPASSED t.py::t[a]\nERROR t.py::t[a] - b] - boom\nFAILED t.py::t[c] - d]\n"
    assert parse_pytest_summary(HEAD + lines) == {
        "t.py::t[a] - b]": "ERROR",
        "t.py::t[a]": "PASSED",
        "t.py::t[c]": "FAILED",
    }


def test_an_inherited_test_belongs_to_the_file_that_inherits_it(run_pytest):
    base, child = (
        "class Base:\n    def test_inherited(self): pass\n",
        "from base_of import Base\nclass TestChild(Base): pass\n",
    )
    run = run_pytest({"tests/base_of.py": base, "tests/test_child.py": child})
    assert run.report.tests[0].defined_in == "tests/base_of.py"
    assert run.reported == run.summary == {"tests/test_child.py::TestChild::test_inherited": "PASSED"}


def test_files_and_classes_of_any_names(run_pytest):
    odd = {"tests/Odd/Test_it.py": "class test_low:\n    def test_x(self): pass\n"}
    run = run_pytest(odd, "-o", "python_files=Test_*", "-o", "python_classes=test_*")
    assert run.reported == run.summary == {"tests/Odd/Test_it.py::test_low::test_x": "PASSED"}


def test_doctests_have_ids_too(run_pytest):
    good = 'def f():\n    """\n    >>> 1\n    1\n    """\n'
    run = run_pytest({"pkg/mod.py": good, "pkg/test_guide.txt": ">>> 1\n2\n"}, "--doctest-modules")
    assert (
        run.reported == run.summary == {"pkg/mod.py::mod.f": "PASSED", "pkg/test_guide.txt::test_guide.txt": "FAILED"}
    )
