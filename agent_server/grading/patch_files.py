"""Names of the files that a diff changes, read as `git apply` reads them.

Invariant: lines of hunks are never headers, whatever they look like. Takes linear time on any text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

HUNK = re.compile(r"@@ -\d{1,9}(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@")
OLD, NEW = re.compile(r"(?:rename|copy) from (.*)"), re.compile(r"(?:rename|copy) to (.*)")
# git's quoted names: escapes as in C, bytes in octal.
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
LETTERS = {b"a": b"\a", b"b": b"\b", b"t": b"\t", b"n": b"\n", b"v": b"\v", b"f": b"\f", b"r": b"\r"}


@dataclass(slots=True)
class FileChange:
    """A file's name in the repository before and after; "" where there is no such file."""

    old: str
    new: str


def file_changes(patch: str) -> list[FileChange]:
    """The files of a unified diff, in its order, with or without git's headers; of other text, none.

    Bytes of a name that are not UTF-8 are surrogates.
    """
    changes: list[FileChange] = []
    in_header = False  # of the last of `changes`
    for line in _headers(patch):
        if line.startswith("diff --git "):
            changes.append(FileChange(*_names_in_header(line.removeprefix("diff --git "))))
            in_header = True
        elif line.startswith("@@ "):
            in_header = False
        elif line.startswith("--- "):
            if not in_header:
                changes.append(FileChange("", ""))
                in_header = True
            changes[-1].old = _name(line[4:])
        elif in_header:
            _read_header(line, changes[-1])
    return [change for change in changes if change.old or change.new]


def _headers(patch: str) -> Iterator[str]:
    """The lines outside of hunks, and the first line of each hunk."""
    old = new = 0  # lines left in the hunk
    for line in patch.split("\n"):
        kind = line[:1]
        if (old > 0 or new > 0) and kind in ("", " ", "-", "+", "\\", "\r"):
            old -= kind not in ("+", "\\")
            new -= kind not in ("-", "\\")
            continue
        old = new = 0
        if hunk := HUNK.match(line):
            old, new = (1 if count is None else int(count) for count in hunk.groups())
        yield line.removesuffix("\r")


def _read_header(line: str, change: FileChange) -> None:
    if line.startswith("+++ "):
        change.new = _name(line[4:])
    elif line.startswith("new file mode "):
        change.old = ""
    elif line.startswith("deleted file mode "):
        change.new = ""
    elif found := OLD.match(line):
        change.old = _unquoted(found[1])
    elif found := NEW.match(line):
        change.new = _unquoted(found[1])


def _names_in_header(names: str) -> tuple[str, str]:
    """Both names of `diff --git`. Spaces in names make the line ambiguous. Without a rename both names are the same,
    and of a rename the later lines have them."""
    if first := QUOTED.match(names):
        return _name(first[0]), _name(names[first.end() + 1 :])
    if names.endswith('"') and (start := names.find(' "')) > 0:
        return _name(names[:start]), _name(names[start + 1 :])
    middle = len(names) // 2
    if names[middle : middle + 1] == " " and _name(names[:middle]) == _name(names[middle + 1 :]):
        return _name(names[:middle]), _name(names[middle + 1 :])
    old, _, new = names.rpartition(" b/") if " b/" in names else names.rpartition(" ")
    return _name(old), _name(f"b/{new}" if " b/" in names else new)


def _name(text: str) -> str:
    """A name without its first folder, as `git apply` strips `a/` and `b/`; "" for /dev/null."""
    name = _unquoted(text) if text.startswith('"') else text.split("\t")[0]
    return "" if name == "/dev/null" else name.partition("/")[2]


def _unquoted(text: str) -> str:
    if not (quoted := QUOTED.match(text)):
        return text
    escaped = quoted[1].encode(errors="surrogateescape")
    return ESCAPE.sub(_character, escaped).decode(errors="surrogateescape")


def _character(escape: re.Match[bytes]) -> bytes:
    code = escape[1]
    return bytes([int(code, 8) & 0xFF]) if len(code) == 3 else LETTERS.get(code, code)
