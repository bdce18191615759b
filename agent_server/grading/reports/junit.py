"""Parser of pytest's junit report.

Invariant: text that is no XML reports no test and raises nothing, so that breaking the report avoids no grade.

The report withstands everything that is merely printed, so it is preferred to the summary. It does not withstand a
program that overwrites it: the code under test runs with the rights of the runner.
"""

from collections.abc import Iterable, Mapping
from itertools import takewhile
from xml.etree import ElementTree

from agent_server.grading.outcomes import OUTCOMES, record_worse

ELEMENTS = {"failure": "FAILED", "error": "ERROR", "skipped": "SKIPPED"}
# Of an expected failure: the `type`, or in pytest 3, which gives none, the `message`.
EXPECTED_FAILURE = {"pytest.xfail", "expected test failure"}


def parse_junit(report: str, files: Iterable[str] = ()) -> dict[str, str]:
    """Outcome by node id, from the text of pytest's `--junitxml` report. `files`: paths of the expected ids.

    Run pytest with `-o junit_family=xunit1`, whose entries name a file, and with `--rootdir=.`: ids are relative to
    pytest's root, which otherwise may lie below the working directory. An entry's `classname` is its path and classes
    joined by dots, so the path is found by comparison with `files` and with the entry's `file`. The `file` alone is not
    enough: for an inherited test it names the file of the base class. Without both (xunit2), classes begin at the first
    capital letter.

    pytest writes the report at its very end: a run that was killed has none. The format has no XPASS; such a test is
    PASSED here.
    """
    try:
        root = ElementTree.fromstring(report)
    except (ElementTree.ParseError, ValueError):
        return {}
    modules = {_module(file): file for file in files}
    outcomes: dict[str, str] = {}
    for case in root.iter("testcase"):
        record_worse(outcomes, _node_id(case, modules), _outcome(case))
    return outcomes


def _outcome(case: ElementTree.Element) -> str:
    found = [
        "XFAIL" if child.tag == "skipped" and _is_expected_failure(child) else ELEMENTS[child.tag]
        for child in case
        if child.tag in ELEMENTS
    ]
    return max(found, key=OUTCOMES.index, default="PASSED")


def _is_expected_failure(child: ElementTree.Element) -> bool:
    return child.get("type", child.get("message")) in EXPECTED_FAILURE


def _node_id(case: ElementTree.Element, expected_modules: Mapping[str, str]) -> str:
    classname, name, file = (case.get(key, "") for key in ("classname", "name", "file"))
    modules = dict(expected_modules)
    if file:
        modules[_module(file)] = file
    if not classname:  # a file that could not be collected, or was skipped as a whole
        return modules.get(name) or _path(name.split("."))
    parts = [part for part in classname.split(".") if part != "()"]  # an instance, in pytest 3
    for end in range(len(parts), 0, -1):
        if path := modules.get(".".join(parts[:end])):
            return "::".join((path, *parts[end:], name))
    path_parts = [parts[0], *takewhile(lambda part: not part[:1].isupper(), parts[1:])]
    return "::".join((_path(path_parts), *parts[len(path_parts) :], name))


def _module(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".")


def _path(parts: Iterable[str]) -> str:
    return "/".join(parts) + ".py"
