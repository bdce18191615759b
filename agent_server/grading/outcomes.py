"""What each test did, as the test runner itself reports it: pytest's junit report, pytest's `-rA` summary, or unittest's
verbose output.

Invariant: a test has passed only by its own entry in the runner's report, never by a word somewhere in the output; one
that is absent has failed, and of two entries the worse counts.

None of the three can be trusted against a program that sets out to deceive: the code under test runs with the rights of
the runner, and may print a summary after pytest's (an `atexit` function) or overwrite the junit report. The junit report
withstands all that is merely printed, so it is the one to prefer.
"""

import json
import re
from collections.abc import Iterable, Mapping
from itertools import takewhile
from xml.etree import ElementTree

OUTCOMES = ("PASSED", "XFAIL", "SKIPPED", "XPASS", "FAILED", "ERROR")  # from best to worst
MISSING = "MISSING"  # the runner said nothing of an expected test
SOLVES = frozenset({"PASSED", "XFAIL"})
KEEPS = SOLVES | {"SKIPPED"}

# --- what counts ----------------------------------------------------------------------------------------------------------


def is_passed(word: str) -> bool:
    """Does `word` count for a FAIL_TO_PASS test? SWE-bench's rule (`test_passed` of its harness): PASSED and XFAIL do;
    SKIPPED, XPASS, FAILED, ERROR and MISSING do not."""
    return word in SOLVES


def is_maintained(word: str) -> bool:
    """Does `word` count for a PASS_TO_PASS test? SWE-bench's rule (`test_maintained`): as in `is_passed`, and SKIPPED too,
    since a skipped test is no regression."""
    return word in KEEPS


def resolved(outcomes: Mapping[str, str], fail_to_pass: Iterable[str], pass_to_pass: Iterable[str]) -> bool:
    """SWE-bench's rule: every test that should pass now does, and every one that passed before still does.
    `outcomes` is what one of the readers below gives."""
    solved = all(map(is_passed, expected_outcomes(fail_to_pass, outcomes).values()))
    return solved and all(map(is_maintained, expected_outcomes(pass_to_pass, outcomes).values()))


def expected_outcomes(tests: Iterable[str], outcomes: Mapping[str, str]) -> dict[str, str]:
    """The word of each test in `tests`, in their order; MISSING where there is none.

    Hundreds of SWE-bench's ids are cut within their brackets (`test_log[a` of `test_log[a b]`). SWE-bench's rule for those:
    all ids that begin so are meant, if they agree on having passed; where they do not, the test is MISSING. Of those that
    agree the worst word is given.
    """
    return {test: _look_up(short_unittest_id(test), outcomes) for test in tests}


def _look_up(test: str, outcomes: Mapping[str, str]) -> str:
    if test in outcomes or test.count("[") <= test.count("]"):
        return outcomes.get(test, MISSING)
    words = {word for name, word in outcomes.items() if name.startswith(test)}
    return max(words, key=OUTCOMES.index) if len(set(map(is_passed, words))) == 1 else MISSING


def note(found: dict[str, str], test: str, word: str) -> None:
    """Of two words of a test the worse counts."""
    found[test] = max(found.get(test, word), word, key=OUTCOMES.index)


# --- pytest's junit report ------------------------------------------------------------------------------------------------


def parse_junit(report: str, files: Iterable[str] = ()) -> dict[str, str]:
    """Node id to word, from the text of pytest's `--junitxml` report. `files`: the paths in the ids that are looked for.

    Run pytest with `-o junit_family=xunit1`, whose entries name a file, and with `--rootdir=.`: ids are relative to pytest's
    root, which otherwise may lie below the working directory. An entry's `classname` is its path and classes joined by
    dots, so the path is found by comparison: with `files` and with `file`. Only `file` is not enough, since for an inherited
    test it names the file of the base class. Without both (xunit2), classes begin at the first capital letter.

    pytest writes the report at its very end: a run that was killed has none. What is no XML tells of no test, rather than
    raising: whoever breaks the report must not be spared the grade. The format knows no XPASS; such a test is PASSED here.
    """
    try:
        root = ElementTree.fromstring(report)
    except (ElementTree.ParseError, ValueError):
        return {}
    modules = {_module(file): file for file in files}
    found: dict[str, str] = {}
    for case in root.iter("testcase"):
        note(found, _node_id(case, modules), _junit_word(case))
    return found


def _junit_word(case: ElementTree.Element) -> str:
    words = {"failure": "FAILED", "error": "ERROR", "skipped": "SKIPPED"}
    seen = [
        "XFAIL" if child.tag == "skipped" and _expected_failure(child) else words[child.tag]
        for child in case
        if child.tag in words
    ]
    return max(seen, key=OUTCOMES.index, default="PASSED")


def _expected_failure(child: ElementTree.Element) -> bool:
    return child.get("type", child.get("message")) in {
        "pytest.xfail",
        "expected test failure",
    }  # the message: pytest 3 gives no type


def _node_id(case: ElementTree.Element, modules: Mapping[str, str]) -> str:
    classname, name, file = (case.get(key, "") for key in ("classname", "name", "file"))
    modules = modules | {_module(file): file} if file else modules
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


# --- pytest's summary -----------------------------------------------------------------------------------------------------

CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # colours and the like
SUMMARY_HEAD = re.compile(r"=+ short test summary info =+")
SUMMARY_END = re.compile(
    r"(?:=+ )?\d+ [a-z].* in \d[\d.]* ?s"
)  # "2 failed, 1 passed in 0.10s", with = around it or without
SUBTEST = r"SUBFAILED(?:[\[(].*?[\])])? (?=[^\[\]()]*::)|[\[(].*?[\])] SUBFAIL "  # "SUBFAILED[message] (i=1) id", or the plugin's form
RESULT = re.compile(rf"(?:({'|'.join(OUTCOMES)}) (?:at (?:setup|call|teardown) of )?|{SUBTEST})(.+)")
LONGEST_ID = 4096  # characters; reasons may be far longer
FOLDED = re.compile(r"\[\d+\] ")  # "SKIPPED [2] file.py:7: reason" names no test


def parse_pytest_summary(output: str) -> dict[str, str]:
    """Node id to word, from the last `-rA` summary in `output`; empty without one. Skipped tests appear only where pytest
    was told `--no-fold-skipped`.

    The last summary counts, so one that a test prints is not read; one printed after pytest has ended is (`parse_junit`
    knows better). Lines after pytest's closing line are not the summary's. Where a file could not be collected, none
    of its tests has passed, whatever other lines say: with `CI` set or `-vv`, reasons have many lines, of any content.
    """
    lines = [
        CONTROL.sub("", line).removesuffix("\r") for line in output.split("\n")
    ]  # not splitlines: a reason may hold U+2028
    heads = [number for number, line in enumerate(lines) if SUMMARY_HEAD.fullmatch(line)]
    if not heads:
        return {}
    found: dict[str, str] = {}
    for line in takewhile(lambda line: not SUMMARY_END.match(line), lines[heads[-1] + 1 :]):
        match = RESULT.fullmatch(line)
        if match and not FOLDED.match(match[2]):
            word = match[1] or "FAILED"  # a subtest failed; the test itself may be called PASSED
            note(found, match[2] if word == "PASSED" else _without_reason(match[2], word, found), word)
    broken = {test for test, word in found.items() if word == "ERROR" and "::" not in test}
    return {test: word for test, word in found.items() if word not in KEEPS or test.split("::")[0] not in broken}


def _without_reason(text: str, word: str, found: Mapping[str, str]) -> str:
    """The id in "id - reason" (XPASS of pytest 7: "id reason"). Ids may hold ` - ` in their brackets, and reasons brackets: the
    longest beginning that is a known id, else the shortest that may be one."""
    separator = " " if word == "XPASS" else " - "
    beginnings = [text[: match.start()] for match in re.finditer(separator, text[:LONGEST_ID])] + [text]
    known = [beginning for beginning in beginnings if beginning in found]
    whole = (beginning for beginning in beginnings if "[" not in beginning or beginning.endswith("]"))
    return known[-1] if known else next(whole, text)


# --- unittest's verbose output --------------------------------------------------------------------------------------------

UNITTEST_START = re.compile(
    r" {0,2}(\w+ \([\w.<>]+\))(?: [\[(].*?[\])])?(?: \.\.\. ?|$)"
)  # " [message] (i=1)": a subtest
UNITTEST_END = re.compile(r"^(?:={70}\n[A-Z ]+: |-{70}\nRan \d)", re.MULTILINE)  # of the entries
UNITTEST_FAILURE = re.compile(r"^={70}\n(FAIL|ERROR|UNEXPECTED SUCCESS): (\w+ \([\w.<>]+\))", re.MULTILINE)
UNITTEST_WORD = re.compile(r"(ok|FAIL|ERROR|expected failure|unexpected success)$|(?:^|\.\.\. )(skipped) ['\"].*$")
UNITTEST_WORDS = {
    "ok": "PASSED", "FAIL": "FAILED", "ERROR": "ERROR", "skipped": "SKIPPED", "expected failure": "XFAIL",
    "unexpected success": "XPASS", "UNEXPECTED SUCCESS": "XPASS",
}  # fmt: skip


def short_unittest_id(test: str) -> str:
    """`test_x (pkg.Class.test_x)`, as Python 3.11 and later print it, as `test_x (pkg.Class)`; anything else as it is."""
    return re.sub(r"^(\w+) \(([\w.<>]+)\.\1\)$", r"\1 (\2)", test)


def parse_unittest(output: str) -> dict[str, str]:
    """`test_x (pkg.Class)` to word, from the output (both streams) of `python -m unittest -v`; Python 3.11's longer ids are
    shortened.

    A test's entry begins with its id and ends with its word; between them may stand its docstring's first line and what
    it printed. Failures told below the entries count as well; where nothing stands below, the run was ended, in its last
    test. What a test prints on a line of its own in just this form is taken for an entry: unittest has no report that could
    be told apart. Rows of SWE-bench that name a `log_parser` want that one instead: where a test has a docstring, their ids
    are the docstring.
    """
    text = CONTROL.sub("", output).replace("\r\n", "\n")
    end = UNITTEST_END.search(text)
    found: dict[str, str] = {}
    test = word = ""
    for line in text[: end.start() if end else None].split("\n"):
        start = UNITTEST_START.match(line)
        if start:
            _note_unittest(found, test, word)
            test, word = start[1], ""
        if match := UNITTEST_WORD.search(line[start.end() :] if start else line):
            # ERROR alone, after the word: setUpClass of the next class. Were it the test's own, it would be told below.
            word = word if word and line == "ERROR" and end else match[1] or match[2]
        elif line:
            word = ""
    if end:
        _note_unittest(found, test, word)
        for kind, test in UNITTEST_FAILURE.findall(text, end.start()):
            _note_unittest(found, test, kind)
    return found


def parse_unittest_report(lines: str) -> dict[str, str]:
    """`test_x (pkg.Class)` to word, from what grading/unittest_report.py wrote down: a JSON list of id and word a line."""
    found: dict[str, str] = {}
    for line in lines.splitlines():
        try:
            name, word = json.loads(line)
            path, _, method = name.rpartition(".")
        except (ValueError, TypeError, AttributeError, RecursionError):
            continue  # the process ended in the middle of it, or another wrote it
        if word in OUTCOMES:
            note(found, f"{method} ({path})", word)
    return found


def _note_unittest(found: dict[str, str], test: str, word: str) -> None:
    if test and word:
        note(found, short_unittest_id(test), UNITTEST_WORDS[word])
