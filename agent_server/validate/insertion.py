"""Inserts a statement into Python source: where it runs at import, or at the start of the functions that a change
touches.

Invariant: everything else of the file stays byte for byte, whatever its encoding and line ends.
"""

import ast
import codecs
import io
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass

LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$")  # lines as Python's tokenizer sees them
HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+", re.MULTILINE)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class LineRange:
    """Lines of the old side of a change, counted from 1, both ends included."""

    first: int
    last: int


def changed_lines(diff: str) -> tuple[LineRange, ...]:
    """The lines that one file's diff without context (`-U0`) changes. Lines that are only added count for the line
    above them."""
    ranges = []
    for start, count in HUNK.findall(diff):
        lines = max(1, int(count or "1"))
        ranges.append(LineRange(int(start), int(start) + lines - 1))
    return tuple(ranges)


def insert_at_import(source: bytes, statement: str) -> bytes:
    """With the statement after the docstring and the `__future__` imports; at the top where the source is none of
    this Python's."""
    try:
        text, encoding = _decode(source)
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return _after_comments(source, statement)
    end = 0
    for number, node in enumerate(body):
        if (number == 0 and _is_docstring(node)) or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            end = node.end_lineno or node.lineno
        else:
            break
    lines = LINE.findall(text)
    if not end:
        return _after_comments(source, statement)
    lines[end - 1] = _with_line_end(lines[end - 1])
    lines.insert(end, statement + "\n")
    return "".join(lines).encode(encoding)


def insert_in_functions(source: bytes, changed: Iterable[LineRange], statement: str) -> bytes | None:
    """With the simple statement at the start of each function that a changed line lies in, innermost first; of all
    functions, where the change lies outside of them. None for a source without functions, or none of this Python's."""
    try:
        text, encoding = _decode(source)
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    touched = {node for lines in changed for node in _innermost(functions, lines)} or set(functions)
    if not touched:
        return None
    lines = LINE.findall(text)
    for function in sorted(touched, key=lambda function: function.body[0].lineno, reverse=True):
        _insert_in_function(lines, function, statement)
    return "".join(lines).encode(encoding)


def _innermost(functions: list[Function], lines: LineRange) -> list[Function]:
    """The functions that hold one of the lines, without those that hold another of them."""
    holding = [function for function in functions if _overlaps(function, lines)]
    return [
        function
        for function in holding
        if not any(inner is not function and inner in ast.walk(function) for inner in holding)
    ]


def _overlaps(function: Function, lines: LineRange) -> bool:
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    return first <= lines.last and lines.first <= (function.end_lineno or function.lineno)


def _insert_in_function(lines: list[str], function: Function, statement: str) -> None:
    docstring, rest = function.body[:1], function.body[1:]
    node: ast.stmt
    if not _is_docstring(docstring[0]):
        node = docstring[0]
    elif rest:
        node = rest[0]
    else:
        node = docstring[0]
        end = (node.end_lineno or node.lineno) - 1
        if not _before(lines, node).strip():  # a docstring alone: the statement goes below it
            lines[end] = _with_line_end(lines[end])
            lines.insert(end + 1, f"{_before(lines, node)}{statement}\n")
            return
    before = _before(lines, node)
    if before.strip():  # the body stands on the line of its `def`, or behind a semicolon
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = f"{before}{statement}; {line[len(before) :]}"
        return
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
    lines.insert(first - 1, f"{before}{statement}\n")


def _before(lines: list[str], node: ast.stmt) -> str:
    """What stands before the node on its line. Columns of ast count bytes of UTF-8."""
    return lines[node.lineno - 1].encode()[: node.col_offset].decode()


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _decode(source: bytes) -> tuple[str, str]:
    """Text and encoding, as Python reads a source file. Raises SyntaxError, ValueError."""
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    return source.decode(encoding), encoding


def _after_comments(source: bytes, statement: str) -> bytes:
    """With the statement below the comments at the top, one of which may name the encoding."""
    mark = codecs.BOM_UTF8 if source.startswith(codecs.BOM_UTF8) else b""
    lines = source[len(mark) :].splitlines(keepends=True)
    end = next((number for number, line in enumerate(lines) if line.strip() and not line.startswith(b"#")), len(lines))
    head = [line if line.endswith((b"\n", b"\r")) else line + b"\n" for line in lines[:end]]
    return mark + b"".join([*head, statement.encode() + b"\n", *lines[end:]])


def _with_line_end(line: str) -> str:
    return line if line.endswith(("\n", "\r")) else line + "\n"
