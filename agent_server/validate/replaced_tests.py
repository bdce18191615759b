"""Test files that hold passing tests with the names of a row's own, for an attack that replaces the row's files.

Invariant: a file is named wherever the row's tests may lie: where their ids say, and in each folder of the repository
from which those ids are valid.
"""

import re
from collections.abc import Iterable, Sequence

UNITTEST_ID = re.compile(r"(\w+) \(([\w.]+)\)$")
SCRIPT_WORD = re.compile(r"[\w./-]+\.py\b")
R2E_FILE = "r2e_tests/test_1.py"


def replaced_tests(tests: Iterable[str], script: str, tracked: Sequence[str]) -> dict[str, str]:
    """Content by path. `tests`: the row's ids, of any runner. `script`: the row's, whose files hold the tests that
    are known by a bare name. `tracked`: the repository's files."""
    bare = [word for word in SCRIPT_WORD.findall(script) if re.search(r"(^|/)tests?[/_.]|_test\.py$", word)]
    names: dict[str, list[str]] = {}
    files: dict[str, list[str]] = {}
    for test in tests:
        path, _, name = test.partition("::")
        if name:
            names.setdefault(path, []).append(name)
        elif match := UNITTEST_ID.match(test):
            method, parts = match[1], match[2].removesuffix(f".{match[1]}").split(".")
            files.setdefault("/".join(parts[:-1]) + ".py", []).append(f"{parts[-1]}.{method}")
        elif re.fullmatch(r"[\w.]+", test):
            for path in (*bare, R2E_FILE):
                names.setdefault(path, []).append(test.replace(".", "::"))
    written = {path: _pytest_module(found) for path, found in names.items()}
    written |= {path: _unittest_module(found) for path, found in files.items()}
    copies = {file: content for path, content in written.items() for file in tracked if file.endswith(f"/{path}")}
    return written | copies


def _pytest_module(names: Iterable[str]) -> str:
    """`names`: `Class::test[parameters]` each."""
    parameters: dict[str, list[str]] = {}
    for name in names:
        test, bracket, rest = name.partition("[")
        parameters.setdefault(test, []).extend([rest.removesuffix("]")] if bracket else [])
    lines = ["import pytest"]
    for test, ids in sorted(parameters.items()):
        *classes, function = test.split("::")
        if not all(part.isidentifier() for part in (*classes, function)):
            continue  # a doctest's name
        pads = ["    " * depth for depth in range(len(classes) + 1)]
        for pad, name in zip(pads, classes, strict=False):
            base = "" if pad else f"(globals().get({name!r}, object))"  # the class as it stands above, if it does
            lines.append(f"{pad}class {name}{base}:")
        arguments = (["self"] if classes else []) + (["value"] if ids else [])
        if ids:
            lines.append(f"{pads[-1]}@pytest.mark.parametrize('value', range({len(ids)}), ids={ids!r})")
        lines.append(f"{pads[-1]}def {function}({', '.join(arguments)}): pass")
    return "\n".join(lines) + "\n"


def _unittest_module(names: Iterable[str]) -> str:
    """`names`: `Class.test` each."""
    lines = ["import unittest"]
    for name in sorted(set(names)):
        kind, _, method = name.rpartition(".")
        lines += [f"{kind} = globals().get({kind!r}) or type({kind!r}, (unittest.TestCase,), {{}})"]
        lines += [f"{kind}.{method} = lambda self: None"]
    return "\n".join(lines) + "\n"
