"""setup/data/sources.py: splits of a repository, and short names."""

import pytest

from setup.data import sources


@pytest.mark.parametrize(
    "paths, card, splits",
    [
        (
            [
                "data/train-00000-of-00002.parquet",
                "data/train-00001-of-00002.parquet",
                "data/dev_10pr_v1-00000-of-00001.parquet",
                "x.md",
            ],
            {},
            {"train": 2, "dev_10pr_v1": 1},
        ),
        (["train.jsonl", "train.parquet", "test.jsonl"], {}, {"train": 1, "test": 1}),
        (
            ["default/train/0000.parquet", "default/train/0001.parquet", "default/test/0000.parquet"],
            {},
            {"train": 2, "test": 1},
        ),
        (
            ["a/train/0000.parquet", "b/train/0000.parquet", "b/test/0000.parquet"],
            {},
            {"a/train": 1, "b/train": 1, "test": 1},
        ),
        (
            ["rows/x-1.parquet", "rows/x-2.parquet", "rows/old/x-3.parquet"],
            {"configs": [{"config_name": "c", "data_files": [{"split": "new", "path": ["rows/x-*"]}]}]},
            {"new": 2},
        ),
        (["rows/x.parquet", "y.parquet"], {"configs": [{"config_name": "c", "data_files": "**/x*"}]}, {"train": 1}),
        (["pool/train.parquet"], {"configs": [{"config_name": "c"}]}, {"train": 1}),
    ],
)
def test_splits_come_from_the_card_or_from_file_names(paths: list[str], card: dict, splits: dict[str, int]):
    assert {name: len(files) for name, files in sources.list_splits(paths, card).items()} == splits


def test_every_short_name_parses_to_its_dataset_and_split():
    for name, (dataset, split) in sources.SHORT_NAMES.items():
        assert sources.parse(name) == sources.Source(dataset, split, None)
        assert sources.parse(f"{name}:other@refs/pr/1") == sources.Source(dataset, "other", "refs/pr/1")
