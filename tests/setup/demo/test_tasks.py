"""The demo tasks: sound tables, and rows on disk whose tests behave in a real sandbox as the rows state."""

import ast
import builtins
import subprocess
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from client.errors import SetupError
from setup.demo import tasks
from setup.demo.function import KINDS, Function

SPLITS = ("warmup", "train", "eval")


@pytest.fixture(scope="module")
def rows(demo_cache: Path) -> dict[str, list[dict]]:
    return {split: pq.read_table(demo_cache / "tasks" / f"{split}.parquet").to_pylist() for split in SPLITS}


def in_sandbox(demo_cache: Path, script: str) -> str:
    image = demo_cache / "images" / "demo__quickstart__1.sif"
    command = [
        "apptainer",
        "exec",
        "--containall",
        "--writable-tmpfs",
        "--no-home",
        "--pwd",
        "/testbed",
        str(image),
        "sh",
        "-c",
        script,
    ]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def shape(source: str) -> str:
    """The program with every name replaced by its order of appearance. Equal shapes are the same program."""
    tree, seen = ast.parse(source), {}
    for node in ast.walk(tree):
        for field in ("id", "arg", "name"):
            if isinstance(getattr(node, field, None), str) and getattr(node, field) not in dir(builtins):
                setattr(node, field, seen.setdefault(getattr(node, field), f"n{len(seen)}"))
    return ast.dump(tree)


def test_the_splits_share_no_function_and_no_bug():
    programs = Counter((shape(function.source), shape(function.buggy_source)) for function in tasks.ALL_FUNCTIONS)
    assert max(programs.values()) == 1
    assert len({function.name for function in tasks.ALL_FUNCTIONS}) == len(tasks.ALL_FUNCTIONS) == 80


@pytest.mark.parametrize("split, count", [("warmup", 25), ("train", 35), ("eval", 20)])
def test_the_rows_are_complete_and_mixed(rows, split: str, count: int):
    assert len(rows[split]) == count
    for row in rows[split]:
        assert row["image_name"] == "demo/quickstart:1"
        assert row["FAIL_TO_PASS"] and not set(row["FAIL_TO_PASS"]) & set(row["PASS_TO_PASS"])
        assert all(test.startswith(f"tests/test_{row['file']}::") for test in row["FAIL_TO_PASS"] + row["PASS_TO_PASS"])
        assert row["problem_statement"].startswith(f"Bug in {row['file']}: ") and len(row["problem_statement"]) < 110
        assert ("fix_command" in row) == (split == "warmup"), "only warm-up rows contain the solution"
    kinds = [row["instance_id"].split(".")[1].split("__")[0] for row in rows[split]]
    assert set(kinds) == set(KINDS)
    assert len(set(kinds[:5])) >= 3, "neighbouring rows should differ in kind"


def test_one_row_of_each_kind_and_split_behaves_as_stated(rows, demo_cache: Path):
    """Each row by its own patch and test command, as in a session: broken, then restored at once.

    A stale .pyc would fail the test: bug and fix have the same size and fall into the same second.
    """
    chosen, script = {}, ["set -e"]
    for split in SPLITS:
        for row in rows[split]:
            chosen.setdefault((split, row["instance_id"].split(".")[1].split("__")[0]), row)
    for row in chosen.values():
        script += [
            f"cat >/tmp/bug.patch <<'PATCH'\n{row['patch']}PATCH",
            f"echo '@@@ broken {row['instance_id']}'; git apply /tmp/bug.patch && ! {row['test_cmd']}",
            f"echo '@@@ good {row['instance_id']}'; git apply -R /tmp/bug.patch && {row['test_cmd']}",
        ]
    output = in_sandbox(demo_cache, "\n".join(script))
    parts = dict(part.split("\n", 1) for part in output.split("@@@ ")[1:])
    assert len(chosen) == 15
    for row in chosen.values():
        broken, good = parts[f"broken {row['instance_id']}"], parts[f"good {row['instance_id']}"]
        for test in row["FAIL_TO_PASS"]:
            assert f"FAILED {test} " in broken and f"PASSED {test}\n" in good
        for test in row["PASS_TO_PASS"]:
            assert f"PASSED {test}\n" in broken and f"PASSED {test}\n" in good


def test_every_scripted_fix_repairs_its_row(rows, demo_cache: Path):
    script = ["set -e"]
    for row in rows["warmup"]:
        script += [
            f"git apply <<'PATCH'\n{row['patch']}PATCH",
            "! git diff --quiet",
            row["fix_command"],
            f"git diff --exit-code || {{ echo {row['file']}; exit 1; }}",
        ]
    in_sandbox(demo_cache, "\n".join(script + ["echo repaired"]))


def test_the_image_holds_one_clean_commit_and_no_history(demo_cache: Path):
    assert in_sandbox(demo_cache, "git log --oneline | wc -l; git status --porcelain; git reflog | wc -l").split() == [
        "1",
        "1",
    ]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"good": "a"}, "must occur exactly once in the good source"),
        ({"bad": "one"}, "must occur exactly once in the buggy source"),
        ({"bad": "a / b"}, "have a special meaning in sed"),
        ({"bad": "a * b"}, "has a special meaning as a regular expression"),
        ({"kind": "typo"}, "kind 'typo' is none of"),
    ],
)
def test_a_table_entry_that_sed_cannot_repair_is_refused(change: dict, message: str):
    sound = {
        "kind": "operator",
        "good": "a + b",
        "bad": "a - b",
        "calls": ("1, 2",),
        "source": "def one(a, b):\n    return a + b\n",
    }
    Function(**sound)
    with pytest.raises(AssertionError, match=message):
        Function(**sound | change)


def test_a_bug_that_breaks_no_call_is_refused():
    harmless = Function("operator", "a + b", "b + a", ("1, 2",), "def one(a, b):\n    return a + b\n")
    with pytest.raises(SetupError, match="breaks none of its calls"):
        tasks.problem_statement(harmless)
    with pytest.raises(SetupError, match="one fail with it"):
        passed = {"tests/test_one.py::test_one_1"}
        tasks.build_rows((harmless,), passed, passed)


def test_a_corrupt_image_is_an_error_with_a_remedy(tmp_path: Path):
    broken = tmp_path / "broken.sif"
    broken.write_bytes(b"not an image")
    with pytest.raises(SetupError, match="remedy: delete .*broken.sif"):
        tasks.measure(broken)
