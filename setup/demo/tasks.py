"""The demo tasks: a repository of one-function modules, and rows that each break one of them.

    python -m setup.demo.tasks repository DIR     write the repository of the image's /testbed
    python -m setup.demo.tasks rows SIF DIR       write DIR/{train,eval,warmup}.parquet, measured in the image

Invariant: every row is measured. FAIL_TO_PASS and PASS_TO_PASS are pytest's results in the image for the good and
the broken modules, and each row's `fix_command` was run there and restored the committed state. Formula:
FAIL_TO_PASS = passed(good) - passed(broken), PASS_TO_PASS = passed(good) & passed(broken), of the row's own test
file only (as in SWE-smith).
"""

import argparse
import difflib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from client.atomic_write import replacing
from client.errors import SetupError
from setup.demo import eval_functions, train_functions, warmup
from setup.demo.function import Function

IMAGE_NAME = "demo/quickstart:1"
SPLITS = {"warmup": warmup.FUNCTIONS, "train": train_functions.FUNCTIONS, "eval": eval_functions.FUNCTIONS}
ALL_FUNCTIONS = [function for functions in SPLITS.values() for function in functions]

SCHEMA = pa.schema(
    [
        (name, pa.string())
        for name in ("instance_id", "repo", "image_name", "patch", "problem_statement", "test_cmd", "file")
    ]
    + [(name, pa.list_(pa.string())) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")]
)
WARMUP_SCHEMA = SCHEMA.append(pa.field("fix_command", pa.string()))

# Prints "PASSED tests/test_total.py::test_total_1" etc. for every test of the good and then of the broken
# repository, and checks that all fixes together restore the commit. Modules are disjoint, so one run with all bugs
# measures all rows.
MEASURE = """
set -eu
cd /testbed
test -z "$(git status --porcelain)"
run_tests() {
  python3 -m pytest -rA -q -p no:cacheprovider tests >/tmp/report 2>&1 || test $? -eq 1
  grep -E '^(PASSED|FAILED|ERROR) ' /tmp/report
}
echo '== good'; run_tests
for patch in /rows/*.patch; do git apply "$patch"; done
echo '== broken'; run_tests
sh -eu /rows/fixes.sh
git diff --stat --exit-code
echo '== fixed'
"""


def outcome(function: Function, source: str, arguments: str) -> str:
    """Call the function in `source`; returns e.g. "returns 3" or "raises TypeError"."""
    namespace: dict[str, object] = {}
    exec(source, namespace)  # from our own tables
    try:
        return f"returns {eval(f'{function.name}({arguments})', namespace)!r}"
    except Exception as error:  # the bug may raise anything
        return f"raises {type(error).__name__}"


def problem_statement(function: Function) -> str:
    """Describe the first call that the bug breaks: "Bug in total.py: total([1, 2]) returns -1 but should return 3."."""
    for arguments in function.calls:
        actual = outcome(function, function.buggy_source, arguments)
        expected = outcome(function, function.source, arguments)
        if actual != expected:
            should = expected.replace("returns", "return", 1)
            return f"Bug in {function.file}: {function.name}({arguments}) {actual} but should {should}."
    raise SetupError(f"{function.name}: the bug breaks none of its calls {function.calls}; add one that it breaks")


def test_source(function: Function) -> str:
    lines = [f"from {function.name} import {function.name}"]
    for number, arguments in enumerate(function.calls, start=1):
        expected = outcome(function, function.source, arguments).removeprefix("returns ")
        lines += [
            "",
            "",
            f"def test_{function.name}_{number}():",
            f"    assert {function.name}({arguments}) == {expected}",
        ]
    return "\n".join(lines) + "\n"


def write_repository(folder: Path) -> None:
    """Write every function's module and tests."""
    (folder / "tests").mkdir(parents=True)
    for function in ALL_FUNCTIONS:
        (folder / function.file).write_text(function.source)
        (folder / function.test_file).write_text(test_source(function))


def bug_patch(function: Function) -> str:
    """Return the bug as a unified diff with a/ and b/ prefixes, for `git apply` in /testbed."""
    before, after = function.source.splitlines(keepends=True), function.buggy_source.splitlines(keepends=True)
    return "".join(difflib.unified_diff(before, after, f"a/{function.file}", f"b/{function.file}"))


def measure(sif: Path) -> tuple[set[str], set[str]]:
    """Run MEASURE in the image. Returns the tests that pass in the good and in the broken repository. Raises
    SetupError."""
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
            f"the demo rows cannot be measured in {sif} (exit code {ran.returncode}):"
            f" {(ran.stdout + ran.stderr)[-1500:]}\nremedy: delete {sif} and run the set-up again"
        )
    passed = re.compile(r"^PASSED (\S+)$", re.MULTILINE)
    return set(passed.findall(good)), set(passed.findall(broken))


def build_rows(functions: tuple[Function, ...], good: set[str], broken: set[str]) -> list[dict]:
    """Make a row of each function from the tests that pass in the good and in the broken repository. Raises
    SetupError."""
    rows = []
    for function in functions:
        tests = [f"{function.test_file}::test_{function.name}_{number + 1}" for number in range(len(function.calls))]
        fail_to_pass = [test for test in tests if test in good and test not in broken]
        pass_to_pass = [test for test in tests if test in good and test in broken]
        if not fail_to_pass or len(fail_to_pass) + len(pass_to_pass) != len(tests):
            raise SetupError(
                f"{function.name}: every test must pass without the bug and at least one fail with it; of {tests},"
                f" {fail_to_pass} fail and {pass_to_pass} pass; correct its calls"
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
    # The tables are sorted by kind. Taking every fifth row mixes the kinds, so that one training step has several.
    return [row for start in range(5) for row in rows[start::5]]


def write_rows(sif: Path, folder: Path) -> None:
    """Measure all rows in the image and write them, one parquet file per split. Raises SetupError."""
    good, broken = measure(sif)
    folder.mkdir(parents=True, exist_ok=True)
    for split, functions in SPLITS.items():
        schema = WARMUP_SCHEMA if split == "warmup" else SCHEMA  # training rows must not contain the solution
        table = pa.Table.from_pylist(build_rows(functions, good, broken), schema=schema)
        with replacing(folder / f"{split}.parquet") as temporary:
            pq.write_table(table, temporary)


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
