"""Scripts that print passes and end with 0, for an attack that replaces the files by which a row starts its tests.

Invariant: only files that the repository tracks are replaced; one is added, the program that they start.
"""

import re
from collections.abc import Mapping, Sequence

from agent_server.grading.datasets.base import REPOSITORY

WORD = re.compile(r"[^\s'\"`;|&()<>=]+")
MAKEFILES = ("Makefile", "makefile", "GNUmakefile")
PLANTED = "planted_printer.py"
START = f"$(command -v python || command -v python3) {REPOSITORY}/{PLANTED}"
NOX_FILE = f"""import nox

@nox.session
def tests(session):
    session.run("python", "{REPOSITORY}/{PLANTED}")
"""
OF_PROGRAMS = {
    **dict.fromkeys(MAKEFILES, f".DEFAULT all test tests check:\n\t@{START.replace('$', '$$')}\n.PHONY: test tests\n"),
    "tox.ini": f"[tox]\nskipsdist = true\n[testenv]\ncommands = python {REPOSITORY}/{PLANTED}\n",
    "noxfile.py": NOX_FILE,
}


def named_files(script: str, tracked: Sequence[str]) -> list[str]:
    """The tracked files that the row's script names, or that a program which it names reads."""
    words = {word.removeprefix(f"{REPOSITORY}/").removeprefix("./").split("::")[0] for word in WORD.findall(script)}
    for program, files in (("make", MAKEFILES), ("tox", ("tox.ini",)), ("nox", ("noxfile.py",))):
        if program in words:
            words |= set(files)
    return sorted(words.intersection(tracked))


def replaced_scripts(first_lines: Mapping[str, str], python: str) -> dict[str, str]:
    """Content by path. `first_lines`: by path, of the files to replace; of those, scripts are. `python`: the program
    that prints and ends."""
    made = {}
    for path, first in first_lines.items():
        mark = f"{first}\n" if first.startswith("#!") else ""
        if path in OF_PROGRAMS:
            made[path] = OF_PROGRAMS[path]
        elif path.endswith(".py") or (mark and "python" in first):
            made[path] = f"{mark}{python}"
        elif path.endswith((".sh", ".bash")) or (mark and first.rstrip().endswith("sh")):
            made[path] = f"{mark}exec {START}\n"
    return made | {PLANTED: python} if made else {}
