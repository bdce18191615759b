"""The verbose output of unittest."""

from hypothesis import given
from hypothesis import strategies as st

from agent_server.grading.outcomes import OUTCOMES, resolved
from agent_server.grading.reports.unittest_output import parse_unittest_output

UNITTEST = '''
import sys, unittest
class A(unittest.TestCase):
    def test_ok(self): pass
    def test_doc(self):
        """First line of it.

        more"""
    def test_doc_fail(self):
        """Second doc ... ok"""
        self.fail("x")
    def test_fail(self): self.fail("ERROR: test_ok (test_u.A.test_ok)")
    def test_error(self): raise RuntimeError("e")
    @unittest.skip("why ... ok")
    def test_skip(self): pass
    @unittest.expectedFailure
    def test_xfail(self): self.fail()
    @unittest.expectedFailure
    def test_xpass(self): pass
    def test_print(self): print("-" * 70 + "\\nhello", file=sys.stderr)
    def test_print_without_newline(self): sys.stderr.write("no newline")
    def test_print_fail(self):
        print("all ... ok\\nok", file=sys.stderr)
        self.fail()
    def test_sub(self):
        for i in range(3):
            with self.subTest("msg [x]", i=i): self.assertNotEqual(i, 1)
    def test_sub_skip(self):
        with self.subTest(i=0): self.skipTest("s")
    def test_zz_last_of_its_class(self): pass
class B(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise RuntimeError("class")
    def test_b(self): pass
class D(unittest.TestCase):
    def tearDown(self): raise RuntimeError("end")
    def test_d(self): pass
    def test_d_fail(self): self.fail()
'''


def test_every_outcome_of_unittest(tmp_path, run_reported):
    (tmp_path / "test_u.py").write_text(UNITTEST)
    run = run_reported("unittest", "-v", "test_u", "nowhere_to_be_found")
    outcome = {
        "test_ok": "PASSED",
        "test_doc": "PASSED",
        "test_doc_fail": "FAILED",
        "test_fail": "FAILED",
        "test_error": "ERROR",
        "test_skip": "SKIPPED",
        "test_xfail": "XFAIL",
        "test_xpass": "XPASS",
        "test_print": "PASSED",
        "test_print_without_newline": "PASSED",
        "test_print_fail": "FAILED",
        "test_sub": "FAILED",
        "test_sub_skip": "SKIPPED",
        "test_zz_last_of_its_class": "PASSED",
    }
    outcomes = parse_unittest_output(run.output)
    assert outcomes == run.reported == {f"{name} (test_u.A)": outcome for name, outcome in outcome.items()} | {
        "setUpClass (test_u.B)": "ERROR", "test_d (test_u.D)": "ERROR", "test_d_fail (test_u.D)": "ERROR",
        "nowhere_to_be_found (unittest.loader._FailedTest)": "ERROR",
    }  # fmt: skip
    assert resolved(outcomes, ["test_ok (test_u.A)"], ["test_doc (test_u.A.test_doc)", "test_skip (test_u.A)"])
    assert not resolved(outcomes, ["test_b (test_u.B)"], [])


def test_unittest_of_older_pythons_names_the_class_alone():
    """Lines of Python 3.8: a class that fails to set up is an ERROR on a line of its own."""
    end = (
        f"\n{'=' * 70}\nERROR: setUpClass (pkg.B)\n{'-' * 70}\nTraceback\n\n{'-' * 70}\nRan "
        "2 tests in 0.001s\n\nFAILED (failures=1)\n"
    )
    entries = "test_a (pkg.A) ... ok\ntest_b (pkg.A)\nWhat it does. ... FAIL\ntest_c (pkg.A) ... ok\nERROR\n"
    assert parse_unittest_output(entries + end) == {
        "test_a (pkg.A)": "PASSED",
        "test_b (pkg.A)": "FAILED",
        "test_c (pkg.A)": "PASSED",
        "setUpClass (pkg.B)": "ERROR",
    }


def test_the_test_in_which_unittest_was_ended_has_not_passed():
    assert parse_unittest_output("test_a (pkg.A) ... ok\ntest_b (pkg.A) ... this is ok") == {"test_a (pkg.A)": "PASSED"}


IDS = ["test_a (b) ... ", "test_a (b.test_a)", "  test_a (b) (i=1) ... "]


PIECES = st.sampled_from([*IDS, "ok", "FAIL", "ERROR", "skipped 'x'", "\n", "=" * 70, ": ", "Ran 1"])


@given(st.text() | st.lists(PIECES).map("".join))
def test_any_text_is_parsed(text):
    assert set(parse_unittest_output(text).values()) <= set(OUTCOMES)
