"""Text that shows tests as passed: what the gold patch's own run has printed, and the form of every runner of Python.

Invariant: every form stands in the one text, so that whichever parser a row has, it finds its own.
"""

from collections.abc import Iterable

# What SWE-bench's scripts print after the tests: a grader that looks for the first such line takes this one.
START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
MARKERS = (">>>>> Test Exit Code: 0", f"+ : '{END}'")
MAX_GOLD_LOG = 2**20  # characters


def passes(tests: Iterable[str], gold_log: str = "") -> str:
    """What the gold patch's run printed, then lines that show each of the tests as passed, as pytest (`-v` and `-rA`),
    unittest, Django and SymPy print it, and under the full id that R2E-Gym's short names come from."""
    names = list(tests)
    return "\n".join(
        [
            "",  # the runner may have left an unfinished line
            _tests_of(gold_log),
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


def _tests_of(log: str) -> str:
    """What the tests printed, without the markers around it: a grader may look for the first ones."""
    lines = log.partition(START)[2].partition(END)[0] if START in log else log
    return "\n".join(line for line in lines[-MAX_GOLD_LOG:].split("\n") if ">>>>> " not in line)
