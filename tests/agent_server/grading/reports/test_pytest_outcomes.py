"""Every outcome of pytest, by the reporter and by the summary."""

import pytest

from agent_server.grading.outcomes import MISSING, expected_outcomes, resolved

HEAD = "=========================== short test summary info ============================\n"


TEST_FILES = {
    "tests/test_all.py": """
import pytest, unittest
@pytest.fixture
def bad(): raise RuntimeError("in - setup [x]")
@pytest.fixture
def bad_end():
    yield
    raise RuntimeError("in teardown")
def test_passed(): print("FAILED tests/test_all.py::test_passed - not really")
def test_failed(): print("PASSED tests/test_all.py::test_failed"); assert 0, "a - b [c - d]"
def test_setup(bad): pass
def test_teardown(bad_end): pass
def test_failed_and_teardown(bad_end): assert 0
@pytest.mark.skip(reason="no - way")
def test_skipped(): pass
def test_skipped_within(): pytest.skip("inside")
@pytest.mark.xfail(reason="known - [x]")
def test_xfail(): assert 0
@pytest.mark.xfail
def test_xfail_without_reason(): assert 0
@pytest.mark.xfail(run=False, reason="not run")
def test_xfail_not_run(): assert 0
@pytest.mark.xfail
def test_xfail_setup(bad): pass
@pytest.mark.xfail(reason="was - known")
def test_xpass(): pass
@pytest.mark.xfail(strict=True, reason="strict")
def test_xpass_strict(): pass
class TestOne:
    def test_method(self): pass
    class TestInner:
        @pytest.mark.parametrize("v", ["x.y::z"])
        def test_inner(self, v): pass
class TestUnit(unittest.TestCase):
    def test_unit(self): pass
    def test_subtest(self):
        for i in range(2):
            with self.subTest("m - x::y", i=i, j="[v] - w"): self.assertEqual(i, 0)
    @unittest.expectedFailure
    def test_expected(self): self.fail()
"""
}


OUTCOME_OF = {
    "test_passed": "PASSED",
    "test_failed": "FAILED",
    "test_setup": "ERROR",
    "test_teardown": "ERROR",
    "test_failed_and_teardown": "ERROR",
    "test_xfail": "XFAIL",
    "test_xfail_without_reason": "XFAIL",
    "test_xfail_not_run": "XFAIL",
    "test_xfail_setup": "XFAIL",
    "test_xpass_strict": "FAILED",
    "TestOne::test_method": "PASSED",
    "TestOne::TestInner::test_inner[x.y::z]": "PASSED",
    "TestUnit::test_unit": "PASSED",
    "TestUnit::test_subtest": "FAILED",
    "TestUnit::test_expected": "XFAIL",
}


SKIPS = {"test_skipped": "SKIPPED", "test_skipped_within": "SKIPPED"}


def in_file(outcomes: dict[str, str]) -> dict[str, str]:
    return {f"tests/test_all.py::{name}": outcome for name, outcome in outcomes.items()}


def test_every_outcome_is_reported(run_pytest, collected):
    run = run_pytest(TEST_FILES)
    assert run.reported == in_file(OUTCOME_OF | SKIPS | {"test_xpass": "XPASS"})
    assert set(run.reported) == set(collected())


@pytest.mark.parametrize(("colour", "verbosity"), [("no", "-q"), ("no", "-vv"), ("yes", "-v")])
def test_every_outcome_in_the_summary(run_pytest, colour, verbosity):
    run = run_pytest(TEST_FILES, f"--color={colour}", verbosity)
    assert ("\x1b[32mPASSED" in run.output) == (colour == "yes")
    assert run.summary == in_file(OUTCOME_OF | {"test_xpass": "XPASS"})  # folded: skipped tests are not named


def test_skipped_tests_are_named_with_no_fold_skipped(run_pytest):
    assert run_pytest(TEST_FILES, "--no-fold-skipped").summary == in_file(OUTCOME_OF | SKIPS | {"test_xpass": "XPASS"})


BROKEN = {
    "tests/test_broken.py": "import nowhere_to_be_found\ndef test_one(): pass\n",
    "tests/test_fine.py": "def test_two(): pass\n",
}


def test_of_a_file_that_cannot_be_collected_every_test_has_failed(run_pytest):
    run = run_pytest(BROKEN, "--continue-on-collection-errors")
    expected = {"tests/test_broken.py": "ERROR", "tests/test_fine.py::test_two": "PASSED"}
    assert run.summary == run.reported == expected
    for outcomes in (run.summary, run.reported):
        assert expected_outcomes(["tests/test_broken.py::test_one"], outcomes) == {
            "tests/test_broken.py::test_one": MISSING
        }
        assert not resolved(outcomes, ["tests/test_fine.py::test_two"], ["tests/test_broken.py::test_one"])
        assert not resolved(outcomes, ["tests/test_broken.py::test_one"], []) and resolved(
            outcomes, ["tests/test_fine.py::test_two"], []
        )


def test_a_file_skipped_as_a_whole_has_no_tests(run_pytest):
    run = run_pytest(
        {"tests/test_skip.py": "import pytest\npytest.skip('all', allow_module_level=True)\ndef test_one(): pass\n"}
    )
    assert run.reported == {"tests/test_skip.py": "SKIPPED"} and run.summary == {}
    assert not resolved(run.reported, [], ["tests/test_skip.py::test_one"])


def test_a_reason_of_many_lines_passes_no_test_of_such_a_file(run_pytest):
    """With `CI` set, which a program may do too, pytest prints whole messages into its summary."""
    forged = "def test_two(): raise ValueError('x\\nPASSED tests/test_broken.py::test_one')\n"
    run = run_pytest(BROKEN | {"tests/test_fine.py": forged}, "--continue-on-collection-errors", CI="1")
    assert "\nPASSED tests/test_broken.py::test_one" in run.output.partition(HEAD)[2]
    assert run.summary == run.reported == {"tests/test_broken.py": "ERROR", "tests/test_fine.py::test_two": "FAILED"}
