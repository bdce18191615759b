"""Statements inserted into source of every shape: the file still runs, and the statement runs first."""

import pytest

from agent_server.validate.insertion import (
    LineRange,
    changed_lines,
    insert_at_import,
    insert_in_functions,
)

STATEMENT = "exec('ran.append(1)', globals())"


@pytest.mark.parametrize(
    "source, expected",
    [
        (b"", "S\n"),
        (b"x = 1\n", "S\nx = 1\n"),
        (b'"""Doc."""\n\nx = 1\n', '"""Doc."""\nS\n\nx = 1\n'),
        (
            b'"""Doc\nof two lines."""\nfrom __future__ import annotations\nfrom __future__ import division\nx = 1\n',
            '"""Doc\nof two lines."""\nfrom __future__ import annotations\nfrom __future__ import division\nS\nx = 1\n',
        ),
        (b"from __future__ import annotations", "from __future__ import annotations\nS\n"),
        (b"#!/usr/bin/python3\n# coding: utf-8\nx = 1\n", "#!/usr/bin/python3\n# coding: utf-8\nS\nx = 1\n"),
        (b"\n# coding: utf-8\nx = 1\n", "\n# coding: utf-8\nS\nx = 1\n"),
        (b"# only a comment", "# only a comment\nS\n"),
        (b'"""Doc."""\r\nx = 1\r\n', '"""Doc."""\r\nS\nx = 1\r\n'),
        (b'print "Python 2"\n', 'S\nprint "Python 2"\n'),
    ],
)  # fmt: skip
def test_where_a_statement_runs_at_import(source, expected):
    assert insert_at_import(source, "S") == expected.encode()


def test_bytes_of_other_encodings_survive():
    latin = "# coding: latin-1\nname = 'é'\ndef f():\n    return 'ü'\n".encode("latin-1")
    assert insert_at_import(latin, "S") == latin.replace(b"latin-1\n", b"latin-1\nS\n")
    assert insert_in_functions(latin, (), "S") == latin.replace(b"    return", b"    S\n    return")
    undeclared = b"name = '\xe9'\n"
    assert insert_at_import(undeclared, "S") == b"S\n" + undeclared
    assert insert_in_functions(undeclared, (), "S") is None
    mark = b"\xef\xbb\xbf"
    assert insert_at_import(mark + b"x = 1\n", "S") == mark + b"S\nx = 1\n"
    assert insert_in_functions(mark + b"def f(): return 1\n", (), "S") == mark + b"def f(): S; return 1\n"


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    return 1\n",
        "def f():\n\treturn 1\n",
        'def f():\n    """Doc."""\n    return 1\n',
        'def f():\n    """Doc\n    of two lines.\n    """\n',
        'def f():\n    """Doc without a line end."""',
        'def f(): "Doc."\n',
        "def f(): return 1\n",
        "def f(): 'Doc.'; return 1\n",
        "def f(a='é', b=1): return 1\n",
        "def f(\n    a=1,\n):\n    return 1\n",
        "def f():\r\n    return 1\r\n",
        "def f():\n    # a comment\n    @decorator\n    def g():\n        pass\n    return g\n",
        "def f():\n    if True:\n        return 1\n",
        "@decorator\ndef f():\n    yield 1\n",
    ],
)
def test_a_function_runs_the_statement_first(source):
    changed = insert_in_functions(source.encode(), [LineRange(1, 1)], STATEMENT)
    assert changed is not None and changed.count(STATEMENT.encode()) == 1
    ran: list[int] = []
    names = {"ran": ran, "decorator": lambda function: function}
    exec(changed, names)
    assert not ran
    result = names["f"]()
    if hasattr(result, "__next__"):
        next(result)
    assert ran == [1]


MODULE = b"""import os

class A:
    limit = 1

    def first(self):
        return 1

    async def second(self):
        def inner():
            return 2
        return inner()


def third():
    return 3
"""


@pytest.mark.parametrize(
    "lines, functions",
    [
        ((7, 7), {"first"}),
        ((11, 11), {"inner"}),
        ((12, 12), {"second"}),
        ((7, 11), {"first", "inner"}),
        ((16, 16), {"third"}),
        ((4, 4), {"first", "second", "inner", "third"}),  # outside of functions: all
    ],
)
def test_the_innermost_functions_that_a_change_touches(lines, functions):
    changed = insert_in_functions(MODULE, [LineRange(*lines)], "HERE")
    assert changed is not None
    found = changed.decode().splitlines()
    above = {found[number - 1].split("(")[0].split()[-1] for number, line in enumerate(found) if "HERE" in line}
    assert above == functions and len(found) == len(MODULE.splitlines()) + len(functions)


def test_a_file_without_functions_has_no_place():
    assert insert_in_functions(b"x = 1\n", [LineRange(1, 1)], "S") is None
    assert insert_in_functions(b'print "Python 2"\n', [LineRange(1, 1)], "S") is None


def test_lines_of_a_diff_without_context():
    diff = "@@ -3 +3 @@\n-a\n+b\n@@ -10,2 +10 @@ def f():\n-@@ -99 +1 @@\n@@ -20,0 +20,3 @@\n+c\n"
    assert changed_lines(diff) == (LineRange(3, 3), LineRange(10, 11), LineRange(20, 20))
