"""Rows of every known format are recognised, read lazily, and refused with a reason where they cannot be graded."""

import json
import math
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from agent_server.grading.datasets.base import Dataset, parse_test_ids
from agent_server.grading.datasets.registry import load_dataset
from agent_server.grading.datasets.swebench_scripts import eval_script
from agent_server.tasks import unusable
from agent_server.tasks.catalog import Catalog
from agent_server.tasks.rows import open_rows
from agent_server.tasks.unusable import UnusableRow
from client.errors import ConfigError, DatasetError, StorageError
from tests.agent_server.conftest import DEMO, ROOT

SMITH = {
    "instance_id": "x",
    "image_name": "i:1",
    "problem_statement": "p",
    "patch": "d",
    "FAIL_TO_PASS": ["a.py::b"],
    "PASS_TO_PASS": [],
    "test_cmd": "pytest",
}
BENCH = {
    "instance_id": "astropy__astropy-1",
    "repo": "astropy/astropy",
    "version": "5.0",
    "base_commit": "c0ffee",
    "patch": "d",
    "problem_statement": "p",
    "test_patch": "diff --git a/t/test_a.py b/t/test_a.py\n",
    "FAIL_TO_PASS": '["t/test_a.py::b[x]"]',
    "PASS_TO_PASS": "[]",
    "hints_text": math.nan,
}
GYM = BENCH | {"instance_id": "getmoto__moto-1", "repo": "getmoto/moto"}
R2E = {
    "docker_image": "n/a:1",
    "problem_statement": "p",
    "expected_output_json": '{"test_a": "PASSED", "T.test_b[x - y]": "FAILED"}',
    "commit_hash": "1",
    "repo_name": "a",
}
SCRIPT = {"instance_id": "s", "problem_statement": "p", "eval_script": "true", "image": "own:1"}
LIVE = BENCH | {"image": "own:1", "rebuild_cmds": [], "test_cmds": ["pytest"], "print_cmds": [], "log_parser": "pytest"}
REBENCH = BENCH | {"image": "own:1", "install_config": {"install": "pip install .", "test_cmd": "pytest"}}
PRO = {
    "instance_id": "p",
    "base_commit": "c0ffee",
    "problem_statement": "p",
    "test_patch": "d",
    "before_repo_set_cmd": "true",
    "selected_test_files_to_run": "['a.py']",
    "fail_to_pass": "['a.py | b']",
    "pass_to_pass": "[]",
    "dockerhub_tag": "1",
    "run_script": "true",
    "parser_script": "pass",
}
BAD_VALUES = ("[x", "[1]", "{}", '"text"', "5", "nul", 5, True, 1.5, {"a": [1]}, [None], [["a"]], "[" * 100_000)


def catalog(tmp_path, *rows: dict, **options) -> Catalog:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Catalog(path, **options)


@pytest.mark.parametrize(
    "row, kind, image",
    [
        (SMITH, "swesmith", "i:1"),
        (BENCH, "swebench", "swebench/sweb.eval.x86_64.astropy_1776_astropy-1:latest"),
        (
            BENCH
            | {"image": "mine:2", "eval_script": "x", "log_parser": "parse_log_pytest", "eval_type": "pass_and_fail"},
            "swebench",
            "mine:2",
        ),
        (GYM, "swebench", "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-1:latest"),
        (R2E, "r2e", "n/a:1"),
        (SCRIPT, "eval_script", "own:1"),
    ],
)
def test_kinds_are_recognised_by_their_columns(tmp_path, row, kind, image):
    found = catalog(tmp_path, row)
    (task_id,) = found.ids("train")
    task = found.get("train", task_id)
    assert (task.dataset, task.image_name, found.image_names(), task.problem_statement) == (kind, image, {image}, "p")
    json.dumps(task.as_dict())


@pytest.mark.parametrize("value", [["a::b", "c::d"], '["a::b", "c::d"]'])
def test_lists_of_tests_come_as_list_or_text(value):
    assert parse_test_ids(value) == ("a::b", "c::d")


@pytest.mark.parametrize("tests", [["a.py::b[\ud83d]"], '["a.py::b[\\ud83d]"]'], ids=["list", "text"])
def test_half_a_surrogate_pair_in_a_row_is_replaced(tmp_path, tests):
    """JSON's escapes can name one, which no request and no file can hold."""
    found = catalog(tmp_path, SMITH | {"problem_statement": "fix \ud83d, not \U0001f600", "FAIL_TO_PASS": tests})
    task = found.get("train", "x")
    assert task.problem_statement == "fix \ufffd\ufffd\ufffd, not \U0001f600"
    assert task.fail_to_pass == ("a.py::b[\ufffd\ufffd\ufffd]",)
    json.dumps(task.as_dict(), ensure_ascii=False).encode()


@pytest.mark.parametrize("value", [None, math.nan, "", "[]", []])
def test_an_empty_list_has_many_spellings(tmp_path, value):
    assert parse_test_ids(value) == ()
    assert catalog(tmp_path, SMITH | {"PASS_TO_PASS": value}).get("train", "x").pass_to_pass == ()
    with pytest.raises(ConfigError, match="row 'x': its FAIL_TO_PASS is empty"):
        catalog(tmp_path, SMITH | {"FAIL_TO_PASS": value})


@pytest.mark.parametrize(
    "rows, expected",
    [
        ([SMITH, SMITH], "row 'x': its id occurs twice"),
        ([SMITH | {"image_name": None}], "it names no image"),
        ([SMITH | {"patch": ""}], "its patch, which makes the bug, is empty"),
        ([SMITH | {"test_cmd": None}], "it has no test_cmd, and swesmith has no profile of 'x'"),
        ([SMITH | {"problem_statement": ""}], "its problem_statement is empty"),
        ([SMITH | {"instance_id": ""}], "row 0: it has no instance_id"),
        ([SMITH | {"FAIL_TO_PASS": "not json"}], "row 'x': Expecting value"),
        ([BENCH | {"log_parser": "parse_nothing"}], "swebench has no log_parser 'parse_nothing'"),
        ([BENCH | {"test_patch": ""}], "it has neither an eval_script nor a test_patch"),
        ([BENCH | {"version": "9.9"}], "the harness knows no test command of astropy/astropy '9.9'"),
        ([BENCH | {"log_parser": "parse_log_gotest"}], "AGENT_SERVER_DATASET=swebench_multilingual to trust printed"),
        ([BENCH | {"image_assets": '{"test_patch": [{"path": "a.png"}]}'}], "its tests need the files in image_assets"),
        ([R2E | {"expected_output_json": "{"}], "its expected_output_json is not JSON"),
        ([R2E | {"expected_output_json": '{"a": "FAILED"}'}], "has no test that should pass"),
        ([SCRIPT | {"image": None}], "AGENT_SERVER_DEFAULT_IMAGE is not set"),
        ([SCRIPT | {"log_parser": "parse_log_pytest"}], "it has a log_parser and no FAIL_TO_PASS"),
        (
            [SCRIPT | {"log_parser": "parse_log_gotest", "FAIL_TO_PASS": ["a"]}],
            "parse_log_gotest reads what a runner prints that cannot report in another way",
        ),
        (
            [SCRIPT | {"log_parser": "mine", "FAIL_TO_PASS": ["a"]}],
            "log_parser is pytest or unittest or one of swebench's, not 'mine'",
        ),
        ([{"instance_id": "x", "question": "y"}], "is of no known kind: r2e lacks"),
        ([], "has no rows"),
    ],
)
def test_a_row_that_cannot_be_graded_is_refused_with_its_reason(tmp_path, rows, expected):
    with pytest.raises(ConfigError) as refused:
        catalog(tmp_path, *rows)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    "row",
    [SMITH, BENCH, R2E, SCRIPT | {"log_parser": "pytest", "FAIL_TO_PASS": ["a.py::b"]}, LIVE, REBENCH, PRO],
    ids=["swesmith", "swebench", "r2e", "eval_script", "swebench_live", "swerebench", "swebench_pro"],
)
def test_what_is_accepted_at_the_start_becomes_a_task(tmp_path, row):
    """Whatever a column holds: a row that no worker can be started for is refused before the server listens."""
    accepted = catalog(tmp_path, row)
    kind = accepted.get("train", accepted.ids("train")[0]).dataset
    columns = {*row, "PASS_TO_PASS", "eval_type"} - {"instance_id"}
    refused = set()
    for column in sorted(columns):
        for value in BAD_VALUES:
            try:
                found = catalog(tmp_path, row | {column: value}, dataset=kind)
            except ConfigError as reason:
                assert "cannot be graded" in str(reason)
                refused.add(column)
                continue
            json.dumps(found.get("train", found.ids("train")[0]).as_dict())
    assert refused >= {"PASS_TO_PASS", "FAIL_TO_PASS"} & row.keys()


@pytest.mark.parametrize("value", ["[x", "[1]", [None], 5, {"a": 1}])
def test_a_list_of_tests_that_is_none_is_refused_by_its_column(tmp_path, value):
    with pytest.raises(ConfigError, match="row 'x': its PASS_TO_PASS is no list of tests"):
        catalog(tmp_path, SMITH | {"PASS_TO_PASS": value})


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda path, _: path.rename(path.with_suffix(".moved")), "No such file"),
        (lambda path, _: path.write_text(""), "must stay as they were"),
        (lambda path, write: write([SMITH]), "must stay as they were"),
        (lambda path, write: write([SMITH | {"instance_id": "y"}, SMITH]), "has row 'x' in the place of 'y'"),
    ],
    ids=["moved", "emptied", "shortened", "reordered"],
)
def test_a_file_that_changed_while_it_serves_is_named(tmp_path, suffix, change, expected):
    path = tmp_path / f"rows.{suffix}"

    def write(rows: list[dict]) -> None:
        if suffix == "parquet":
            parquet.write_table(pa.Table.from_pylist(rows), path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    write([SMITH, SMITH | {"instance_id": "y"}])
    found = Catalog(path)
    change(path, write)
    with pytest.raises(DatasetError, match=expected):
        found.get("train", "y")


def test_many_faults_are_counted_and_some_are_shown(tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)30 rows cannot be graded.*and 20 more"):
        catalog(tmp_path, *(SMITH | {"instance_id": f"x{n}", "test_cmd": ""} for n in range(30)))


def test_excluded_rows_are_left_out(tmp_path):
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"excluded": ["x"]}))
    found = catalog(tmp_path, SMITH, SMITH | {"instance_id": "y"}, exclude=report)
    assert found.ids("train") == ["y"] and found.get("train", "y").task_id == "y"
    report.write_text("{}")
    with pytest.raises(ConfigError, match="must be a report of `python -m agent_server validate`"):
        catalog(tmp_path, SMITH, exclude=report)


BAD_ROWS = [
    (SMITH | {"instance_id": "no-statement", "problem_statement": ""}, "its problem_statement is empty"),
    (SMITH | {"instance_id": "", "image_name": "i:1"}, "it has no instance_id"),
    (SMITH, "its id occurs twice"),
    (SMITH | {"instance_id": "no-json", "FAIL_TO_PASS": "not json"}, "Expecting value: line 1 column 1 (char 0)"),
    (SMITH | {"instance_id": "no-image", "image_name": "i:2"}, "i__2.sif does not exist"),
    (SMITH | {"instance_id": "bad-image", "image_name": "i:3"}, "i__3.sif is not a SIF file"),
]


@pytest.fixture
def images(tmp_path):
    """A folder with the image i:1, unpacked, and a file that is no image as i:3."""
    (tmp_path / "images" / "i__1").mkdir(parents=True)
    (tmp_path / "images" / "i__3.sif").write_text("<html>")
    return tmp_path / "images"


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_unusable_rows_are_left_out_with_their_reasons(tmp_path, images, suffix):
    rows = [SMITH, *(row for row, _ in BAD_ROWS), SMITH | {"instance_id": "y", "problem_statement": "last"}]
    if suffix == ".jsonl":
        found = catalog(tmp_path, *rows, skip_without_image_in=images)
    else:
        rows = [row if isinstance(row["FAIL_TO_PASS"], str) else row | {"FAIL_TO_PASS": '["a.py::b"]'} for row in rows]
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
        found = Catalog(tmp_path / "rows.parquet", skip_without_image_in=images)
    assert found.ids("train") == ["x", "y"] and found.image_names() == {"i:1"}
    assert found.get("train", "y").problem_statement == "last"
    assert [row.row for row in found.unusable] == ["no-statement", 2, "x", "no-json", "no-image", "bad-image"]
    for row, (_, reason) in zip(found.unusable, BAD_ROWS, strict=True):
        assert reason in row.reason and row.file == f"rows{suffix}"


def test_unusable_rows_of_a_folder_are_counted_by_file(tmp_path, images):
    bad = SMITH | {"instance_id": "z", "problem_statement": None}
    for mode in ("train", "eval"):
        (tmp_path / f"{mode}.jsonl").write_text(json.dumps(SMITH) + "\n" + json.dumps(bad) + "\n")
    found = Catalog(tmp_path, skip_without_image_in=images)
    assert [(row.file, row.row) for row in found.unusable] == [("train.jsonl", "z"), ("eval.jsonl", "z")]


def test_a_file_without_a_usable_row_is_refused(tmp_path, images):
    with pytest.raises(ConfigError, match="has no usable row.*\n  row 'x': its problem_statement is empty"):
        catalog(tmp_path, SMITH | {"problem_statement": ""}, skip_without_image_in=images)


def test_the_file_of_reasons_is_replaced_and_goes_with_the_last_row(tmp_path):
    path, rows = tmp_path / "unusable.jsonl", [UnusableRow("rows.jsonl", "x", "it \u2026"), UnusableRow("r", 3, "no")]
    unusable.write(rows, path)
    assert [UnusableRow(**json.loads(line)) for line in path.read_text().splitlines()] == rows
    unusable.write([], path)
    assert not path.exists()
    with pytest.raises(StorageError, match="cannot be written"):
        unusable.write(rows, tmp_path / "nowhere" / "unusable.jsonl")


def test_rows_without_an_image_take_the_default(tmp_path):
    found = catalog(tmp_path, SCRIPT | {"image": None}, default_image="base:1")
    assert found.get("train", "s").image_name == "base:1" and found.image_names() == {"base:1"}


class CustomDataset(Dataset):
    identifying_columns = frozenset({"question"})
    read_columns = ("instance_id", "question")
    text_columns = ()

    def reason_ungradable(self, row):
        return ""

    def image(self, row):
        return "own"


def test_a_custom_dataset_class_is_one_line_of_configuration(tmp_path):
    found = catalog(tmp_path, {"instance_id": "q", "question": "y"}, dataset=f"{__name__}:CustomDataset")
    assert (
        found.get("train", "q").dataset == f"{__name__}:CustomDataset"
        and load_dataset(f"{__name__}:CustomDataset").name == f"{__name__}:CustomDataset"
    )
    for name, expected in [
        ("nothing", "one of r2e, swebench_pro"),
        ("no.module:X", "cannot be imported"),
        ("json:loads", "is no subclass of"),
    ]:
        with pytest.raises(ConfigError, match=expected):
            load_dataset(name)


def test_parquet_and_jsonl_give_the_same_rows(tmp_path):
    rows = [
        SMITH | {"instance_id": f"x{n}", "problem_statement": "p" * n or "q", "FAIL_TO_PASS": ["a.py::b"] * (n + 1)}
        for n in range(300)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet", row_group_size=70)
    one, other = Catalog(tmp_path / "rows.parquet"), catalog(tmp_path, *rows)
    assert one.ids("train") == other.ids("train") and [one.get("train", f"x{n}") for n in (0, 69, 70, 299)] == [
        other.get("train", f"x{n}") for n in (0, 69, 70, 299)
    ]
    assert sum(1 for _ in open_rows(tmp_path / "rows.parquet").scan(("instance_id",), ("patch",))) == 300


def test_an_old_row_gets_the_script_of_its_time():
    script = eval_script(
        BENCH | {"test_patch": "diff --git a/t/a.json b/t/a.json\n@@\ndiff --git a/t/test_a.py b/t/test_a.py\n@@\n"}
    )
    assert "\ngit checkout c0ffee t/a.json t/test_a.py\n" in script
    assert "\npytest -rA t/test_a.py\n: '>>>>> End" in script
    django = eval_script(
        BENCH
        | {
            "repo": "django/django",
            "version": "4.0",
            "test_patch": "diff --git a/tests/dbshell/test_x.py b/tests/dbshell/test_x.py\n",
        }
    )
    assert "--parallel 1 dbshell.test_x\n" in django


def test_fifty_thousand_rows_cost_little_memory(tmp_path):
    """At most 300 MB, the imports included."""
    rows = [
        SMITH
        | {
            "instance_id": f"x{n}",
            "problem_statement": f"{n} " * 800,
            "patch": f"d{n} " * 800,
            "PASS_TO_PASS": [f"a.py::{n}_{k}" for k in range(5)],
        }
        for n in range(500)
    ]
    writer = None
    for part in range(100):
        table = pa.Table.from_pylist([row | {"instance_id": f"{part} {row['instance_id']}"} for row in rows])
        writer = writer or parquet.ParquetWriter(tmp_path / "rows.parquet", table.schema, use_dictionary=False)
        writer.write_table(table)
    writer.close()
    script = (
        "import sys; from pathlib import Path; from agent_server.tasks.catalog import Catalog\n"
        "found = Catalog(Path(sys.argv[1])); ids = found.ids('train')\n"
        "[found.get('train', ids[n]) for n in (0, 25_000, 49_999)]\n"
        # ru_maxrss would count the parent too
        "print(len(ids), open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "rows.parquet"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    n, kilobytes = map(int, ran.stdout.split())
    assert n == 50_000 and kilobytes < 300_000


def test_the_demo_rows_are_of_a_known_kind():
    demo = Catalog(DEMO / "tasks")
    assert {demo.get(mode, demo.ids(mode)[0]).dataset for mode in ("train", "eval")} == {"swesmith"}
