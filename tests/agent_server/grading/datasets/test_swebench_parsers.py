"""Names of tests in the form of swebench's parsers."""

import pytest

from agent_server.grading.datasets.swebench_parsers import names_in_parser_form, parse_log


@pytest.mark.parametrize(
    "parser, printed, parsed",
    [
        ("parse_log_requests", "tests/test_a.py::test_x[/etc/a/b]", "tests/test_a.py::test_x[/b]"),
        ("parse_log_pylint", "tests/test_a.py::test_x[//etc/a]", "tests/test_a.py::test_x[//etc/a]"),
        ("parse_log_pydicom", "tests/test_a.py::test_x[/a/*/b]", "tests/test_a.py::test_x[/a/*/b]"),
        ("parse_log_pytest", "tests/test_a.py::test_x[a b]", "tests/test_a.py::test_x[a"),
        ("parse_log_pytest", "tests/test_a.py::test_x[a - b]", "tests/test_a.py::test_x[a"),
        ("parse_log_pytest_v2", "tests/test_a.py::test_x[a - b]", "tests/test_a.py::test_x[a - b]"),
        ("parse_log_pytest_v2", "tests/test_a.py::test_x[\\x1b[31mred]", "tests/test_a.py::test_x[\\x1bred]"),
        ("parse_log_pytest_v2", "tests/test_a.py::test_x[\x1b[31mred]", "tests/test_a.py::test_x[red]"),
        ("parse_log_matplotlib", "a.py::test_x[MouseButton.LEFT]", "a.py::test_x[1]"),
        ("parse_log_seaborn", "tests/test_a.py::test_x[k]", "tests/test_a.py::test_x[k]"),
        ("parse_log_django", "test_x (core.tests.A)", "test_x (core.tests.A)"),
        ("parse_log_django", "test_x (core.tests.A.test_x)", "test_x (core.tests.A.test_x)"),
        ("parse_log_django", "The first line of a docstring (#123).", "The first line of a docstring (#123)."),
        ("parse_log_sympy", "test_super_sub", "test_super_sub"),
    ],
)
def test_a_name_as_the_parser_gives_it(parser, printed, parsed):
    assert names_in_parser_form(parser, [printed]) == {printed: parsed}


def test_several_names_may_become_one():
    names = ["t.py::test_x[/a/b]", "t.py::test_x[/c/b]"]
    assert names_in_parser_form("parse_log_requests", names) == dict.fromkeys(names, "t.py::test_x[/b]")


def test_names_are_those_of_a_real_summary():
    """The parser reads each name from its own line as from the whole summary."""
    names = ["tests/test_a.py::A::test_x[1-/x/y]", "tests/test_a.py::test_é[ü]", "test_a.py::test[a::b]"]
    summary = "\n".join(f"PASSED {name}" for name in names)
    for parser in ("parse_log_requests", "parse_log_pytest", "parse_log_pytest_v2", "parse_log_seaborn"):
        assert set(names_in_parser_form(parser, names).values()) == set(parse_log(parser, summary, None))


@pytest.mark.parametrize("name", ["a\nPASSED b", "", " "])
def test_a_name_that_is_no_single_test_is_left_out(name):
    assert names_in_parser_form("parse_log_pytest", [name, "t.py::test_x"]) == {"t.py::test_x": "t.py::test_x"}


@pytest.mark.parametrize("parser", ["parse_log_gotest", "no_such_parser"])
def test_other_parsers_give_no_names(parser):
    assert names_in_parser_form(parser, ["t.py::test_x"]) == {}
