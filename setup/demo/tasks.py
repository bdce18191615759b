"""The demo tasks: a small repository of one-function modules, and rows that each break one of them.

    python -m setup.demo.tasks repository DIR     write the repository that the image carries in /testbed
    python -m setup.demo.tasks rows SIF DIR       write DIR/{train,eval,warmup}.parquet, measured in the image

Invariant: nothing about a row is assumed. FAIL_TO_PASS and PASS_TO_PASS are what pytest in the real image said about the good and the broken
modules, and each row's `fix_command` was run there and left the repository exactly as committed.
Formula: FAIL_TO_PASS = passed(good) - passed(broken), PASS_TO_PASS = passed(good) & passed(broken), a row's own test file only (as SWE-smith).
"""

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from client.errors import SetupError
from setup.demo import eval as held_out
from setup.demo import train, warmup
from setup.demo.function import Function

IMAGE_NAME = "demo/quickstart:1"
SPLITS = {"warmup": warmup.FUNCTIONS, "train": train.FUNCTIONS, "eval": held_out.FUNCTIONS}
ALL_FUNCTIONS = [function for functions in SPLITS.values() for function in functions]

SCHEMA = pa.schema(
    [
        (name, pa.string())
        for name in ("instance_id", "repo", "image_name", "patch", "problem_statement", "test_cmd", "file")
    ]
    + [(name, pa.list_(pa.string())) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")]
)
WARMUP_SCHEMA = SCHEMA.append(pa.field("fix_command", pa.string()))

# Prints "PASSED tests/test_total.py::test_total_1" and the like for every test of the good and then of the broken repository, then checks
# that all fixes together restore what was committed: the modules are disjoint, so one run of each kind stands for all rows.
MEASURE = """
set -eu
cd /testbed
test -z "$(git status --porcelain)"
run_tests() { python3 -m pytest -rA -q -p no:cacheprovider tests >/tmp/report 2>&1 || test $? -eq 1; grep -E '^(PASSED|FAILED|ERROR) ' /tmp/report; }
echo '== good'; run_tests
for patch in /rows/*.patch; do git apply "$patch"; done
echo '== broken'; run_tests
sh -eu /rows/fixes.sh
git diff --stat --exit-code
echo '== fixed'
"""


def outcome(function: Function, source: str, arguments: str) -> str:
    """What `source` does when called: "returns 3" or "raises TypeError"."""
    namespace: dict[str, object] = {}
    exec(source, namespace)  # our own table, not input
    try:
        return f"returns {eval(f'{function.name}({arguments})', namespace)!r}"
    except Exception as error:  # whatever the bug raises is the answer
        return f"raises {type(error).__name__}"


def problem_statement(function: Function) -> str:
    """One sentence with the first call that the bug breaks, e.g. "Bug in total.py: total([1, 2]) returns -1 but should return 3."."""
    for arguments in function.calls:
        got, wanted = outcome(function, function.buggy_source, arguments), outcome(function, function.source, arguments)
        if got != wanted:
            return f"Bug in {function.file}: {function.name}({arguments}) {got} but should {wanted.replace('returns', 'return', 1)}."
    raise SetupError(f"{function.name}: the bug breaks none of its calls {function.calls}; add one that it breaks")


def test_source(function: Function) -> str:
    lines = [f"from {function.name} import {function.name}"]
    for number, arguments in enumerate(function.calls, start=1):
        wanted = outcome(function, function.source, arguments).removeprefix("returns ")
        lines += [
            "",
            "",
            f"def test_{function.name}_{number}():",
            f"    assert {function.name}({arguments}) == {wanted}",
        ]
    return "\n".join(lines) + "\n"


def write_repository(folder: Path) -> None:
    (folder / "tests").mkdir(parents=True)
    for function in ALL_FUNCTIONS:
        (folder / function.file).write_text(function.source)
        (folder / function.test_file).write_text(test_source(function))


def bug_patch(function: Function) -> str:
    """The bug as a unified diff with a/ and b/ prefixes, to be applied in /testbed with `git apply`."""
    before, after = function.source.splitlines(keepends=True), function.buggy_source.splitlines(keepends=True)
    return "".join(difflib.unified_diff(before, after, f"a/{function.file}", f"b/{function.file}"))


def measure(sif: Path) -> tuple[set[str], set[str]]:
    """Runs MEASURE in the image. Returns the tests that pass on the good and on the broken repository."""
    with tempfile.TemporaryDirectory() as rows:
        for function in ALL_FUNCTIONS:
            Path(rows, f"{function.name}.patch").write_text(bug_patch(function))
        Path(rows, "fixes.sh").write_text("\n".join(function.fix_command for function in ALL_FUNCTIONS) + "\n")
        command = [
            "apptainer",
            "exec",
            "--containall",
            "--writable-tmpfs",
            "--no-home",
            "--bind",
            f"{rows}:/rows:ro",
            str(sif),
            "sh",
            "-c",
            MEASURE,
        ]
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    good, _, rest = ran.stdout.partition("== broken\n")
    broken, _, _ = rest.partition("== fixed")
    if ran.returncode != 0 or not rest:
        raise SetupError(
            f"the demo rows could not be measured in {sif} (exit code {ran.returncode}): {(ran.stdout + ran.stderr)[-1500:]}\nremedy: delete {sif} and run the set-up again"
        )
    passed = re.compile(r"^PASSED (\S+)$", re.MULTILINE)
    return set(passed.findall(good)), set(passed.findall(broken))


def build_rows(functions: tuple[Function, ...], good: set[str], broken: set[str]) -> list[dict]:
    rows = []
    for function in functions:
        tests = [f"{function.test_file}::test_{function.name}_{number + 1}" for number in range(len(function.calls))]
        fail_to_pass = [test for test in tests if test in good and test not in broken]
        pass_to_pass = [test for test in tests if test in good and test in broken]
        if not fail_to_pass or len(fail_to_pass) + len(pass_to_pass) != len(tests):
            raise SetupError(
                f"{function.name}: of its tests {tests}, {fail_to_pass} fail with the bug and {pass_to_pass} do not; every test must pass without it and one fail with it"
            )
        rows.append(
            {
                "instance_id": f"demo__quickstart.{function.kind}__{function.name}",
                "repo": "demo/quickstart",
                "image_name": IMAGE_NAME,
                "patch": bug_patch(function),
                "problem_statement": problem_statement(function),
                "FAIL_TO_PASS": fail_to_pass,
                "PASS_TO_PASS": pass_to_pass,
                "test_cmd": f"python3 -m pytest -rA -q -p no:cacheprovider {function.test_file}",
                "file": function.file,
                "fix_command": function.fix_command,
            }
        )
    # The tables are sorted by kind; taking every fifth in turn mixes the kinds, so that one training step sees several.
    return [row for start in range(5) for row in rows[start::5]]


def write_rows(sif: Path, folder: Path) -> None:
    good, broken = measure(sif)
    folder.mkdir(parents=True, exist_ok=True)
    for split, functions in SPLITS.items():
        schema = WARMUP_SCHEMA if split == "warmup" else SCHEMA  # the fix would give the answer away
        table = pa.Table.from_pylist(build_rows(functions, good, broken), schema=schema)
        half_written = folder / f".{split}.{os.getpid()}.partial"
        pq.write_table(table, half_written)
        half_written.replace(folder / f"{split}.parquet")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m setup.demo.tasks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("repository").add_argument("folder", type=Path)
    rows = commands.add_parser("rows")
    rows.add_argument("sif", type=Path)
    rows.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    try:
        if arguments.command == "repository":
            write_repository(arguments.folder)
        else:
            write_rows(arguments.sif, arguments.folder)
    except SetupError as error:
        print(f"[setup] {error}", file=sys.stderr)
        return 78
    return 0


if __name__ == "__main__":
    sys.exit(main())
