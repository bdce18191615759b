"""The files of a mode's rows: one file, MODE.parquet, or the parts of a dataset as the hub and Relax lay them out."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from agent_server.tasks.catalog import Catalog
from agent_server.tasks.files import expand, find_file
from client.errors import ConfigError
from setup.images.rows import image_names


def write(path: Path, *names: str) -> None:
    """Rows of R2E-Gym with these commits and images."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {"problem_statement": "p", "expected_output_json": '{"test_a": "PASSED"}', "repo_name": "r"}
    rows = [fields | {"docker_image": f"namanjain12/r_final:{name}", "commit_hash": name} for name in names]
    parquet.write_table(pa.Table.from_pylist(rows), path)


@pytest.fixture
def relax_folder(tmp_path) -> Path:
    """R2E_DATA_PATH of Relax's users: two datasets of the hub, beside other files."""
    data = tmp_path / "R2E-Gym-Lite" / "data"
    write(data / "train-00001-of-00002.parquet", "c", "d")
    write(data / "train-00000-of-00002.parquet", "a", "b")
    write(data / "dev_10pr_v1-00000-of-00001.parquet", "dev")
    write(tmp_path / "SWE-bench_Verified" / "data" / "test-00000-of-00001.parquet", "e")
    (tmp_path / "wheels").mkdir()
    return tmp_path


def test_the_layout_of_relaxs_users(relax_folder):
    catalog = Catalog(relax_folder)
    commits = [catalog.get_row("train", task_id)[0]["commit_hash"] for task_id in catalog.ids("train")]
    assert commits == ["a", "b", "c", "d"]  # in the order of the parts, also when each is read by its number
    assert [catalog.get_row("eval", task_id)[0]["commit_hash"] for task_id in catalog.ids("eval")] == ["e"]
    assert image_names(relax_folder, "auto") == [f"namanjain12/r_final:{name}" for name in "abcde"]


def test_a_folder_may_be_the_dataset_itself(relax_folder):
    dataset = relax_folder / "R2E-Gym-Lite"
    parts = [f"{dataset}/data/train-0000{number}-of-00002.parquet" for number in (0, 1)]
    assert [str(path) for path in expand(find_file(dataset, "train"))] == parts
    with pytest.raises(ConfigError, match=r"no eval.parquet or eval.jsonl, and no dataset in it has data/eval-\*"):
        find_file(dataset, "eval")


def test_files_named_for_their_mode_come_first(relax_folder):
    (relax_folder / "train.jsonl").write_text(json.dumps({"instance_id": "x"}))
    assert find_file(relax_folder, "train") == relax_folder / "train.jsonl"


def test_two_datasets_with_one_split_are_refused(relax_folder):
    write(relax_folder / "other" / "data" / "train-00000-of-00001.parquet", "f")
    with pytest.raises(ConfigError, match="several datasets: .*R2E-Gym-Lite/data, .*other/data; keep one"):
        Catalog(relax_folder)
