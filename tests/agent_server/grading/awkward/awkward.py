"""An awkward repository: its files, how its tests are run, and what they report.

Invariant: what is expected is what the runner prints when nothing of the grader is there; test_awkward.py checks it.
"""

from dataclasses import dataclass, field

PASS = "def test_a():\n    assert True\n"
FAIL = "def test_b():\n    assert False\n"
BOTH = PASS + FAIL
PASSED, FAILED, SKIPPED, XFAIL, XPASS, ERROR = "PASSED", "FAILED", "SKIPPED", "XFAIL", "XPASS", "ERROR"


@dataclass(frozen=True, slots=True)
class Awkward:
    """One repository.

    `files`: text by path. `script`: bash that runs the tests in it. `expected`: outcome by test id, relative to the
    repository. `returncode`: of the script. `environment`: of environments.py, first on the PATH. `prepare`: bash that
    belongs to building the image. `variables`: of the image. `is_ordered`: whether two runs print their lines in the
    same order. `prints`: whose lines they are, pytest or unittest. `shown`: how printed ids begin, and what of the
    repository that stands for, where it is not the path from where the runner was started.
    """

    files: dict[str, str]
    script: str
    expected: dict[str, str]
    returncode: int = 1
    environment: str = "plain"
    prepare: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    is_ordered: bool = True
    prints: str = "pytest"
    shown: tuple[str, str] = ("", "")


def both(path: str) -> dict[str, str]:
    """The outcomes of BOTH in a file."""
    return {f"{path}::test_a": PASSED, f"{path}::test_b": FAILED}
