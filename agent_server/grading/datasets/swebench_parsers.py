"""Log parsers by name, imported on first use: swebench's, which takes a second, and `MODULE:FUNCTION` of others.

Invariant: a row names swebench's parsers only. A module's is named by the class of its dataset.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from agent_server.grading.reporter.report import ReportedTest

PASSED = "PASSED"
# A passed test as each runner prints it. The first form that a parser understands is the parser's.
PASSED_LINES = ("PASSED {}", "{} ... ok", "{} ok")
PROBE = "test_probe"


def parsers() -> Mapping[str, Any]:
    """swebench's log parsers by name."""
    from swebench.harness.log_parsers import PARSER_REGISTRY

    return PARSER_REGISTRY


def parse_log(parser: str, log: str, spec: Any) -> dict[str, str]:
    """Outcome by test id, by the parser of that name. Empty where the parser fails: the tests printed the log."""
    try:
        return _parser(parser)(log, spec)
    except (ImportError, LookupError, ValueError, AttributeError, TypeError):
        return {}


def is_importable(parser: str) -> bool:
    """Whether there is a parser `MODULE:FUNCTION`."""
    try:
        return callable(_parser(parser))
    except (ImportError, LookupError, AttributeError):
        return False


def is_pythons(parser: str) -> bool:
    """Whether it is swebench's parser of a runner of Python's, which can report outcomes itself."""
    from swebench.harness.log_parsers import python

    return parser in parsers() and parsers()[parser].__module__ == python.__name__


def names_in_parser_form(parser: str, names: Iterable[str], spec: Any = None) -> dict[str, str]:
    """The name that the parser gives to each test, by the name that the test's runner prints.

    Printed names: pytest's node id; for unittest and Django `test_x (module.Class)` or the first line of the test's
    docstring; for SymPy the function. A parser may shorten a name, so two may become one. A name is left out where the
    parser reads no passed test, or several, from its line. All are where the parser reads none of the forms in
    PASSED_LINES.
    """
    if not (form := _passed_line(parser)):
        return {}
    found = ((name, _passed_name(parser, form.format(name), spec)) for name in names)
    return {name: parsed for name, parsed in found if parsed}


def names_of_tests(parser: str, tests: Sequence[ReportedTest], spec: Any) -> list[tuple[str, ...]]:
    """For each test its ids in the parser's form, the surest first."""
    forms = names_in_parser_form(parser, {name for test in tests for name in test.ids}, spec)
    return [tuple(dict.fromkeys(forms[name] for name in test.ids if name in forms)) for test in tests]


def _passed_name(parser: str, line: str, spec: Any) -> str:
    """The only test in the line, if it has passed; else ""."""
    outcomes = parse_log(parser, line, spec)
    return next(iter(outcomes)) if list(outcomes.values()) == [PASSED] else ""


@cache
def _passed_line(parser: str) -> str:
    """The form of PASSED_LINES that the parser reads; "" for none."""
    return next((line for line in PASSED_LINES if _passed_name(parser, line.format(PROBE), None)), "")


def _parser(name: str) -> Callable[[str, Any], dict[str, str]]:
    module, _, attribute = name.rpartition(":")
    if not module:
        return parsers()[name]
    found = importlib.import_module(module)
    parse = getattr(found, "NAME_TO_PARSER", {}).get(attribute) or getattr(found, attribute)
    return lambda log, spec: parse(log)
