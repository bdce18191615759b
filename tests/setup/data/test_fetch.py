"""`python -m setup.data fetch` and `check`: selections, revisions, errors, offline runs."""

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from agent_server.tasks.catalog import Catalog
from setup.data import rows
from setup.data.rows import Selection
from tests.setup.data.conftest import Command
from tests.setup.data.hub_server import TOKEN
from tests.setup.data.sample_repository import DATASET, FILES, row_ids, sample_rows, to_parquet, write_parquet


def test_two_modes_become_the_folder_that_the_agent_server_reads(command: Command):
    commit = command.hub.add(DATASET, FILES)
    command.fetch()
    command.fetch("eval", f"{DATASET}:dev@{commit}")
    catalog = Catalog(command.folder)
    assert catalog.ids("train") == row_ids(0, 60) and catalog.ids("eval") == row_ids(60, 70)
    train = command.manifest()
    assert (train["revision"], train["split"], train["rows"], train["images"], train["file"]) == (
        commit,
        "train",
        60,
        4,
        "train.parquet",
    )
    assert [source["path"] for source in train["sources"]] == [path for path in FILES if "train" in path]
    assert (
        train["columns"]["FAIL_TO_PASS"].startswith("list<")
        and command.manifest("eval")["request"]["revision"] == commit
    )
    assert command.visible_files() == {"train.parquet", "eval.parquet", "manifest.json"} and not command.partial_blobs()


def test_a_run_with_nothing_to_do_sends_no_request(command: Command):
    command.hub.add(DATASET, FILES)
    command.fetch()
    requests = len(command.hub.requests)
    assert "nothing to do" in command.fetch() and len(command.hub.requests) == requests


def test_another_selection_of_the_same_files_downloads_nothing(command: Command):
    command.hub.add(DATASET, FILES)
    command.fetch()
    sent = command.sent_bytes()
    assert sent == sum(len(data) for path, data in FILES.items() if "train" in path)
    command.fetch("train", "r2e-gym-subset", "--columns", "number,instance_id")
    assert command.sent_bytes() == sent and list(command.manifest()["columns"]) == ["number", "instance_id"]


def test_rows_with_an_empty_column_are_left_out(command: Command):
    """Most rows of SWE-smith have no problem statement."""
    empty = [{"problem_statement": None}, {"problem_statement": ""}, {"FAIL_TO_PASS": []}, {"FAIL_TO_PASS": None}]
    split = [row | change for row, change in zip(sample_rows(0, 6), [*empty, {}, {}], strict=True)]
    command.hub.add(DATASET, {"README.md": FILES["README.md"], "data/train-0.parquet": to_parquet(split)})
    condition = ("--where", "problem_statement!=")
    command.fetch("train", "r2e-gym-subset", *condition)
    assert command.manifest()["request"]["filled"] == ["problem_statement"]
    assert command.manifest()["rows"] == 4
    assert "nothing to do" in command.fetch("train", "r2e-gym-subset", *condition)
    command.fetch("train", "r2e-gym-subset", *condition, "--where", "FAIL_TO_PASS!=", "--where", "repo_name=pillow")
    assert pq.read_table(command.folder / "train.parquet")["instance_id"].to_pylist() == ["row-5"]


def test_selections_apply_in_order(command: Command, tmp_path: Path):
    command.hub.add(DATASET, FILES)
    (tmp_path / "ids").write_text("\n".join(row_ids(0, 40)) + "\n\n")
    options = [
        "--where",
        "repo_name=pandas",
        "--where",
        "repo_name=numpy",
        "--where",
        "image_name=images/0:1",
        "--ids",
        str(tmp_path / "ids"),
        "--skip",
        "1",
    ]
    command.fetch("train", "r2e-gym-subset", *options)
    expected = [row["instance_id"] for row in sample_rows(0, 40) if row["number"] % 3 < 2 and row["number"] % 4 == 0][
        1:
    ]
    assert command.ids() == expected
    command.fetch("train", "r2e-gym-subset", *options, "--limit", "2")
    assert command.ids() == expected[:2] and command.manifest()["images"] == 1


def test_files_past_the_limit_are_not_fetched(command: Command):
    command.hub.add(DATASET, FILES)
    command.fetch("train", "r2e-gym-subset", "--skip", "5", "--limit", "25")
    assert command.ids() == row_ids(5, 30)
    assert (
        not command.hub.requests_to("/cdn/R2E-Gym/R2E-Gym-Subset/", "GET")[1:]
        and len(command.manifest()["sources"]) == 1
    )


def test_rows_in_both_modes_cause_a_warning(command: Command):
    command.hub.add(DATASET, FILES)
    command.fetch("train", "r2e-gym-subset", "--skip", "10")
    assert "warning" not in command.fetch("eval", "r2e-gym-subset", "--limit", "10")
    assert "warning: 2 rows are in train and in eval" in command.fetch("eval", "r2e-gym-subset", "--limit", "12")


def test_a_gated_dataset_needs_a_token_and_the_token_goes_to_the_hub_only(command: Command):
    command.hub.add(DATASET, FILES, gated=True)
    for token in ({}, {"HF_TOKEN": "hf_other"}):
        stderr = command.fetch(code=78, **token)
        assert (
            f"{DATASET} is gated; accept its conditions" in stderr
            and "HF_TOKEN" in stderr
            and command.visible_files() == set()
        )
    command.fetch(HF_TOKEN=TOKEN)
    assert command.ids() == row_ids(0, 60)
    assert all("authorization" not in request.headers for request in command.hub.requests_to("/cdn/"))


@pytest.mark.parametrize(
    "dataset, options, message",
    [
        ("r2e-gym-subsett", (), "'r2e-gym-subsett' is no dataset name; .*did you mean r2e-gym-subset"),
        ("nobody/nothing", (), "nobody/nothing .*it has no such dataset, or needs a token; .*HF_TOKEN"),
        ("r2e-gym-subset:trian", (), "no split 'trian' .did you mean train.*its splits are dev, train"),
        (DATASET, (), "several splits; name one as R2E-Gym/R2E-Gym-Subset:SPLIT from dev, train"),
        ("r2e-gym-subset@v9", (), "no revision 'v9'"),
        ("r2e-gym-subset", ("--columns", "instnce_id"), "no column 'instnce_id' .did you mean instance_id"),
        ("r2e-gym-subset", ("--where", "repo=pandas"), "no column 'repo'"),
        ("r2e-gym-subset", ("--where", "pandas"), "'pandas' is neither COLUMN=VALUE nor COLUMN!="),
        ("r2e-gym-subset", ("--where", "!="), "'!=' is neither COLUMN=VALUE nor COLUMN!="),
        ("r2e-gym-subset", ("--where", "repo_name!=x"), "'repo_name!=x' is neither COLUMN=VALUE nor COLUMN!="),
        ("r2e-gym-subset", ("--where", "statement!="), "no column 'statement'"),
        ("r2e-gym-subset", ("--where", "repo_name=pndas"), "no row is selected"),
        ("r2e-gym-subset", ("--where", "FAIL_TO_PASS=x"), "rows cannot be selected by a column of type list"),
        ("r2e-gym-subset", ("--ids", "IDS"), "1 of 2 ids match no row, among them row-x"),
        ("r2e-gym-subset", ("--ids", "NONE"), "cannot be read"),
        ("r2e-gym-subset", ("--limit", "0"), "--limit 0 at least 1"),
        ("empty/none", (), "no parquet and no jsonl files .*empty/none@refs/convert/parquet"),
        ("broken/rows", (), "train.parquet cannot be read as parquet"),
    ],
)
def test_an_unknown_name_is_an_error_and_changes_nothing(
    command: Command, tmp_path: Path, dataset: str, options: tuple[str, ...], message: str
):
    command.hub.add(DATASET, FILES)
    command.hub.add("empty/none", {"README.md": b"nothing"})
    command.hub.add("broken/rows", {"train.parquet": b"PAR1" + b"x" * 2000 + b"PAR1"})
    (tmp_path / "ids").write_text("row-1\nrow-x\n")
    command.folder.mkdir()
    rows.write(
        [write_parquet(tmp_path, sample_rows(0, 3))], Selection(), command.folder / "train.parquet", "an earlier run"
    )
    (command.folder / ".lock").touch()
    before = {path: path.read_bytes() for path in command.folder.iterdir()}
    options = tuple(
        {"IDS": str(tmp_path / "ids"), "NONE": str(tmp_path / "none")}.get(option, option) for option in options
    )
    stderr = command.fetch("train", dataset, *options, code=78)
    assert re.search(message, stderr), stderr
    assert "Traceback" not in stderr and {path: path.read_bytes() for path in command.folder.iterdir()} == before


def test_offline_runs_use_the_cache_alone(command: Command, tmp_path: Path):
    commit = command.hub.add(DATASET, FILES)
    command.fetch()
    command.hub.requests.clear()
    command.folder = tmp_path / "elsewhere"
    command.fetch(HF_HUB_OFFLINE="1")
    assert command.ids() == row_ids(0, 60) and command.manifest()["revision"] == commit and not command.hub.requests
    assert "data/dev-00000-of-00001.parquet of R2E-Gym/R2E-Gym-Subset is not in the cache" in command.fetch(
        "eval", f"{DATASET}:dev", code=75, HF_HUB_OFFLINE="1"
    )
    stderr = command.fetch("eval", "swe-gym", code=75, HF_HUB_OFFLINE="1")
    assert (
        "has no SWE-Gym/SWE-Gym" in stderr and "run once without HF_HUB_OFFLINE" in stderr and not command.hub.requests
    )
    blob = max(command.cache.glob("hub/datasets--*/blobs/*"), key=lambda path: path.stat().st_size)
    blob.write_bytes(b"x" * blob.stat().st_size)
    assert "has the checksum" in command.fetch("train", "r2e-gym-subset", "--skip", "1", code=78, HF_HUB_OFFLINE="1")


def test_an_unreachable_hub_is_a_temporary_error(command: Command):
    stderr = command.fetch(code=75, HF_ENDPOINT="http://127.0.0.1:9")
    assert (
        "http://127.0.0.1:9 cannot be reached" in stderr and "HF_HUB_OFFLINE=1" in stderr and "Traceback" not in stderr
    )
    command.hub.broken = 500
    assert "answered HTTP 500" in command.fetch(code=75)


def test_a_proxy_is_used(command: Command):
    command.hub.add(DATASET, FILES)
    proxy = command.environment["HF_ENDPOINT"]
    command.fetch(HF_ENDPOINT="http://hub.invalid", HTTP_PROXY=proxy, NO_PROXY="127.0.0.1")
    assert command.ids() == row_ids(0, 60)


def test_a_new_revision_is_taken_on_request(command: Command):
    old = command.hub.add(DATASET, FILES)
    command.fetch()
    new = command.hub.add(DATASET, {"data/train.parquet": to_parquet(sample_rows(100, 105))})
    assert (
        f"nothing to do: {command.folder / 'train.parquet'} has the 60 rows of {DATASET}:train at {old}"
        in command.fetch()
    )
    (command.folder / "train.parquet").unlink()
    command.fetch()
    assert command.manifest()["revision"] == old and command.ids() == row_ids(0, 60), "a repair keeps the revision"
    command.fetch("train", "r2e-gym-subset", "--update")
    assert command.manifest()["revision"] == new and command.ids() == row_ids(100, 105)
    command.fetch("train", f"r2e-gym-subset@{old}")
    assert command.manifest()["revision"] == old and command.ids() == row_ids(0, 60)


def test_rows_from_elsewhere_are_not_overwritten(command: Command):
    command.hub.add(DATASET, FILES)
    command.folder.mkdir()
    own = to_parquet(sample_rows(0, 1))
    (command.folder / "train.parquet").write_bytes(own)
    assert "was not written by this program" in command.fetch(code=78)
    assert (command.folder / "train.parquet").read_bytes() == own


def test_rows_written_just_before_a_kill_are_recognised(command: Command):
    commit = command.hub.add(DATASET, FILES)
    command.fetch()
    (command.folder / "manifest.json").unlink()
    assert rows.read_origin(command.folder / "train.parquet") == f"{DATASET}:train@{commit}"
    command.fetch()
    assert command.manifest()["rows"] == 60


def test_check_compares_the_folder_with_its_manifest(command: Command):
    assert "has no manifest.json" in command.run("check", str(command.folder), code=78)
    command.hub.add(DATASET, FILES)
    command.fetch()
    (command.folder / "eval.parquet").write_bytes(to_parquet(sample_rows(0, 1)))
    assert "eval.parquet is not in manifest.json" in command.run("check", str(command.folder), code=1)
    (command.folder / "eval.parquet").unlink()
    command.fetch("eval", f"{DATASET}:dev")
    assert "matches its manifest" in command.run("check", str(command.folder))
    (command.folder / "train.parquet").write_bytes(to_parquet(sample_rows(0, 59)))
    assert "train.parquet is not the file that was written" in command.run("check", str(command.folder), code=1)
    (command.folder / "eval.parquet").unlink()
    assert "eval.parquet is missing" in command.run("check", str(command.folder), code=1)
    (command.folder / "manifest.json").write_text("{")
    assert "is not a manifest" in command.run("check", str(command.folder), code=78)
