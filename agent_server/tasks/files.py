"""Finds the files of a mode's rows in R2E_DATA_PATH.

Invariant: a mode has one file, or the parts of one split of one dataset. What could be meant twice is refused.
"""

from pathlib import Path

from client.errors import ConfigError
from client.wire import Mode

# A mode's splits in the folders that the Hugging Face hub gives out, in order of preference.
SPLITS: dict[Mode, tuple[str, ...]] = {"train": ("train",), "eval": ("eval", "test", "validation")}


def find_file(data_path: Path, mode: Mode) -> Path:
    """See `look_for_file`. Raises ConfigError where there is none."""
    if path := look_for_file(data_path, mode):
        return path
    raise ConfigError(
        f"R2E_DATA_PATH={data_path} has no {mode}.parquet or {mode}.jsonl, and no dataset in it has"
        f" data/{SPLITS[mode][0]}-*.parquet; set a folder with both modes, or one file for both"
    )


def look_for_file(data_path: Path, mode: Mode) -> Path | None:
    """The file with the mode's rows, or None. A name with `*` stands for all parts of a split. Raises ConfigError.

    In a folder: MODE.parquet or MODE.jsonl; else data/SPLIT-*.parquet of the dataset that the folder is or holds, as in
    R2E-Gym-Lite/data/train-00000-of-00004.parquet.
    """
    if data_path.is_file():
        return data_path
    for suffix in (".parquet", ".jsonl"):
        if (path := data_path / f"{mode}{suffix}").is_file():
            return path
    for split in SPLITS[mode]:
        parts = f"{split}-*.parquet"
        folders = {path.parent for pattern in ("data", "*/data") for path in data_path.glob(f"{pattern}/{parts}")}
        if len(folders) > 1:
            found = ", ".join(map(str, sorted(folders)))
            raise ConfigError(
                f"R2E_DATA_PATH={data_path} has {split} rows of several datasets: {found}; keep one of them there"
            )
        if folders:
            return folders.pop() / parts
    return None


def expand(path: Path) -> list[Path]:
    """The files that a name of `look_for_file` stands for, in the order of their names."""
    return sorted(path.parent.glob(path.name)) if "*" in path.name else [path]
