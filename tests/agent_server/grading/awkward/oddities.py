"""Awkward repositories: odd ids and odd outcomes."""

from tests.agent_server.grading.awkward.awkward import (
    ERROR,
    FAILED,
    PASS,
    PASSED,
    SKIPPED,
    XFAIL,
    XPASS,
    Awkward,
)

IDS = ["a b", "a::b", "a/b", "[a]", "a]", "é-日本", "", "a - b", "x" * 200, "100%", "PASSED", "(a) [b]", "#1", "a\\b"]
PARAMETERS = f"""import pytest

IDS = {IDS!r}


@pytest.mark.parametrize("value", IDS, ids=IDS)
def test_it(value):
    assert len(value) < 100


class TestNested:
    class TestInner:
        @pytest.mark.parametrize("a", [1, 2])
        @pytest.mark.parametrize("b", ["x y", object])
        def test_two(self, a, b):
            assert a == 1
"""
PARAMETERS_INI = """[pytest]
disable_test_id_escaping_and_forfeit_all_rights_to_community_support = true
"""
MARKS = """
import sys
import unittest

import pytest


@pytest.mark.xfail
def test_xfail():
    assert False


@pytest.mark.xfail
def test_xpass():
    pass


@pytest.mark.xfail(strict=True)
def test_strict():
    pass


@pytest.mark.xfail(run=False)
def test_not_run():
    sys.exit(1)


@pytest.mark.skipif(sys.platform == "linux", reason="[x] :: y - z")
def test_skipif():
    assert False


def test_skip_in_code():
    pytest.skip("in code")


def test_xfail_in_code():
    pytest.xfail("in code")


@unittest.skip("whole class")
class Skipped(unittest.TestCase):
    def test_in_skipped(self):
        self.fail()


class Expected(unittest.TestCase):
    @unittest.expectedFailure
    def test_expected(self):
        self.fail()

    @unittest.expectedFailure
    def test_unexpected(self):
        pass
"""
MARKS_EXPECTED = {
    "test_xfail": XFAIL, "test_xpass": XPASS, "test_strict": FAILED, "test_not_run": XFAIL, "test_skipif": SKIPPED,
    "test_skip_in_code": SKIPPED, "test_xfail_in_code": XFAIL, "Skipped::test_in_skipped": SKIPPED,
    "Expected::test_expected": XFAIL, "Expected::test_unexpected": FAILED,
}  # fmt: skip
MODULE_SKIP = "import pytest\n\npytest.skip('whole module', allow_module_level=True)\n\n\ndef test_x():\n    pass\n"
IMPORT_SKIP = "import pytest\n\npytest.importorskip('nobody_has_this')\n\n\ndef test_x():\n    pass\n"
DOCTESTS = '''"""
>>> 1 + 1
2
"""


def good():
    """
    >>> 1
    1
    """


def bad():
    """
    >>> 1
    2
    """
'''
BASE = """
import pytest


class Base:
    value = 1

    def test_inherited(self):
        assert self.value == 1

    @staticmethod
    def test_static():
        pass

    @classmethod
    def test_class(cls):
        pass
"""
INHERITED = """
import functools

import pytest

from base import Base


class TestOne(Base):
    pass


class TestTwo(Base):
    value = 2


def decorated(function):
    @functools.wraps(function)
    def run(*arguments, **named):
        return function(*arguments, **named)
    return run


@decorated
def test_decorated(tmp_path):
    assert tmp_path


exec("def test_made():\\n    pass\\n")
test_lambda = lambda: None


test_partial = functools.partial(lambda value: None, 1)


@pytest.fixture(params=["p", "q"])
def each(request):
    return request.param


def test_each(each):
    assert each == "p"
"""
ODDITIES = {
    "odd parameters": Awkward(
        {"test_a.py": PARAMETERS, "pytest.ini": PARAMETERS_INI}, "pytest -v",
        {f"test_a.py::test_it[{value}]": FAILED if len(value) > 99 else PASSED for value in IDS}
        | {f"test_a.py::TestNested::TestInner::test_two[{b}-{a}]": PASSED if a == 1 else FAILED
           for a in (1, 2) for b in ("x y", "object")},
    ),
    "escaped parameters": Awkward(
        {"test_a.py": PARAMETERS}, "pytest -v",
        {f"test_a.py::test_it[{value.encode('unicode_escape').decode()}]":
         FAILED if len(value) > 99 else PASSED for value in IDS}
        | {f"test_a.py::TestNested::TestInner::test_two[{b}-{a}]": PASSED if a == 1 else FAILED
           for a in (1, 2) for b in ("x y", "object")},
    ),
    "odd names of files": Awkward(
        {"tests - x/dé[t]/test_a b.py": PASS}, "pytest -v", {"tests - x/dé[t]/test_a b.py::test_a": PASSED},
        returncode=0,
    ),
    "marks": Awkward(
        {"test_a.py": MARKS}, "pytest -v", {f"test_a.py::{name}": outcome for name, outcome in MARKS_EXPECTED.items()}
    ),
    "skipped modules": Awkward(
        {"test_a.py": MODULE_SKIP, "test_b.py": IMPORT_SKIP, "test_c.py": PASS}, "pytest -v",
        {"test_c.py::test_a": PASSED, "test_a.py": SKIPPED, "test_b.py": SKIPPED}, returncode=0,
    ),
    "broken module": Awkward(
        {"test_a.py": "import nobody_has_this\n", "test_c.py": PASS}, "pytest -v --continue-on-collection-errors",
        {"test_c.py::test_a": PASSED, "test_a.py": ERROR},
    ),
    "doctests": Awkward(
        {"pkg/__init__.py": "", "pkg/mod.py": DOCTESTS, "README.txt": ">>> 2\n2\n"},
        "pytest -v --doctest-modules --doctest-glob='*.txt'",
        {"pkg/mod.py::pkg.mod": PASSED, "pkg/mod.py::pkg.mod.good": PASSED, "pkg/mod.py::pkg.mod.bad": FAILED,
         "README.txt::README.txt": PASSED},
    ),
    "inherited and made tests": Awkward(
        {"base.py": BASE, "test_a.py": INHERITED}, "pytest -v",
        {f"test_a.py::{kind}::{name}": FAILED if (kind, name) == ("TestTwo", "test_inherited") else PASSED
         for kind in ("TestOne", "TestTwo") for name in ("test_inherited", "test_static", "test_class")}
        | {"test_a.py::test_decorated": PASSED, "test_a.py::test_made": PASSED, "test_a.py::test_lambda": PASSED,
           "test_a.py::test_partial": PASSED, "test_a.py::test_each[p]": PASSED, "test_a.py::test_each[q]": FAILED},
    ),
}  # fmt: skip
