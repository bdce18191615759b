"""swebench's log parsers by name, imported on first use: the package takes a second to import."""

from collections.abc import Iterable, Mapping, Sequence
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


def parser_names_by_repository() -> Mapping[str, str]:
    """The names of the parsers for SWE-bench's Python repositories."""
    from swebench.harness.log_parsers.python import MAP_REPO_TO_PARSER_PY

    return {repository: parser.__name__ for repository, parser in MAP_REPO_TO_PARSER_PY.items()}


def parse_log(parser: str, log: str, spec: Any) -> dict[str, str]:
    """Outcome by test id, by swebench's parser of that name. Empty where the parser fails: the tests printed the
    log."""
    try:
        return parsers()[parser](log, spec)
    except (LookupError, ValueError, AttributeError, TypeError):
        return {}


def names_in_parser_form(parser: str, names: Iterable[str], spec: Any = None) -> dict[str, str]:
    """The name that the parser gives to each test, by the name that the test's runner prints.

    Printed names: pytest's node id; for unittest and Django `test_x (module.Class)` or the first line of the test's
    docstring; for SymPy the function. A parser may shorten a name, so two may become one. A name is left out where the
    parser reads no passed test, or several, from its line. All are where the parser reads none of the forms in
    PASSED_LINES.
    """
    form = next((line for line in PASSED_LINES if _passed_name(parser, line.format(PROBE), spec)), None)
    if form is None:
        return {}
    found = ((name, _passed_name(parser, form.format(name), spec)) for name in names)
    return {name: parsed for name, parsed in found if parsed}


def names_of_tests(parser: str, tests: Sequence[ReportedTest], spec: Any) -> list[tuple[str, ...]]:
    """For each test its ids in the parser's form: with the repository as base, then as the runner prints it, where a
    docstring's first line replaces a unittest name."""
    shown = [test.description or test.printed for test in tests]
    forms = names_in_parser_form(parser, {*shown, *(test.id for test in tests)}, spec)
    pairs = zip(tests, shown, strict=True)
    return [tuple(dict.fromkeys(forms[name] for name in (test.id, line) if name in forms)) for test, line in pairs]


def _passed_name(parser: str, line: str, spec: Any) -> str:
    """The only test in the line, if it has passed; else ""."""
    outcomes = parse_log(parser, line, spec)
    return next(iter(outcomes)) if list(outcomes.values()) == [PASSED] else ""
