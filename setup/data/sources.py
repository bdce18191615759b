"""Dataset names: parsing `NAME[:SPLIT][@REVISION]`, and mapping a repository's files to splits.

Invariant: no network and no disk. An unknown name is refused with the nearest known one.
"""

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from client.errors import DatasetError

# Short name -> repository on the hub, default split.
SHORT_NAMES = {
    "r2e-gym-subset": ("R2E-Gym/R2E-Gym-Subset", "train"),
    "r2e-gym-lite": ("R2E-Gym/R2E-Gym-Lite", "train"),
    "r2e-gym-v1": ("R2E-Gym/R2E-Gym-V1", "train"),
    "swe-bench": ("SWE-bench/SWE-bench", "test"),
    "swe-bench-verified": ("SWE-bench/SWE-bench_Verified", "test"),
    "swe-bench-lite": ("SWE-bench/SWE-bench_Lite", "test"),
    "swe-bench-multilingual": ("SWE-bench/SWE-bench_Multilingual", "test"),
    "swe-bench-live": ("SWE-bench-Live/SWE-bench-Live", "lite"),
    "swe-bench-pro": ("ScaleAI/SWE-bench_Pro", "test"),
    "swe-rebench": ("nebius/SWE-rebench", "filtered"),
    "swe-rebench-v2": ("nebius/SWE-rebench-V2", "train"),
    "swe-gym": ("SWE-Gym/SWE-Gym", "train"),
    "swe-smith": ("SWE-bench/SWE-smith", "train"),
    "swe-smith-py": ("SWE-bench/SWE-smith-py", "train"),
}
SUFFIXES = (".parquet", ".jsonl")  # in order of preference
SHARD = re.compile(r"-\d{5}-of-\d{5}.*$")


@dataclass(frozen=True, slots=True)
class Source:
    """A dataset on the hub. `split` None: its only split. `revision` (branch, tag or commit) None: its main branch."""

    dataset: str
    split: str | None
    revision: str | None

    def __str__(self) -> str:
        return self.dataset + (f":{self.split}" if self.split else "") + (f"@{self.revision}" if self.revision else "")


def parse(text: str) -> Source:
    """Parse `NAME[:SPLIT][@REVISION]`; NAME is a short name or `owner/name`. Raises DatasetError."""
    rest, _, revision = text.partition("@")
    name, _, split = rest.partition(":")
    if name.lower() in SHORT_NAMES:
        name, default = SHORT_NAMES[name.lower()]
        return Source(name, split or default, revision or None)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise DatasetError(
            f"{name!r} is no dataset name; use owner/name, or one of {', '.join(SHORT_NAMES)}"
            + _suggestion(name, SHORT_NAMES)
        )
    return Source(name, split or None, revision or None)


def select_split(source: Source, splits: dict[str, list[str]]) -> tuple[str, list[str]]:
    """Return the requested split's name and its files in order. Raises DatasetError."""
    if not splits:
        raise DatasetError(
            f"{source.dataset} has no parquet and no jsonl files at this revision; the hub keeps a parquet copy of many"
            f" datasets: try {source.dataset}@refs/convert/parquet"
        )
    split = source.split or (next(iter(splits)) if len(splits) == 1 else None)
    if split in splits:
        return split, splits[split]
    available = ", ".join(sorted(splits))
    if split is None:
        raise DatasetError(f"{source.dataset} has several splits; name one as {source.dataset}:SPLIT from {available}")
    raise DatasetError(
        f"{source.dataset} has no split {split!r}{_suggestion(split, splits)}; its splits are {available}"
    )


def list_splits(paths: Iterable[str], card: dict[str, Any]) -> dict[str, list[str]]:
    """Group files by split, as the dataset card's `configs` declare them, else by file name:
    `data/train-00000-of-00002.parquet`, `train.jsonl`, `train/0000.parquet`. If two configurations share a split's
    name, it is called `config/split`."""
    files = sorted(path for path in paths if path.endswith(SUFFIXES))
    groups = _by_card(files, card) or _by_name(files)
    split_names = [split for _, split in groups]
    splits = {}
    for (config, split), members in groups.items():
        suffix = next(suffix for suffix in SUFFIXES if any(path.endswith(suffix) for path in members))
        name = split if split_names.count(split) == 1 else f"{config}/{split}"
        splits[name] = [path for path in members if path.endswith(suffix)]
    return splits


def _by_card(files: list[str], card: dict[str, Any]) -> dict[tuple[str, str], list[str]]:
    groups = {}
    for config in card.get("configs") or ():
        entries = config.get("data_files") or ()
        for entry in [entries] if isinstance(entries, str | dict) else entries:
            split, patterns = (
                (entry.get("split", "train"), entry.get("path") or ()) if isinstance(entry, dict) else ("train", entry)
            )
            patterns = [patterns] if isinstance(patterns, str) else patterns
            if members := [path for path in files if any(_matches(path, pattern) for pattern in patterns)]:
                groups[str(config.get("config_name", "default")), str(split)] = members
    return groups


def _matches(path: str, pattern: str) -> bool:
    """Match like a shell: `*` stops at a slash, `**` does not."""
    return fnmatchcase(path, pattern) and ("**" in pattern or path.count("/") == pattern.count("/"))


def _by_name(files: list[str]) -> dict[tuple[str, str], list[str]]:
    groups = defaultdict(list)
    for path in map(PurePosixPath, files):
        stem, folder = SHARD.sub("", path.stem), path.parent
        if stem.isdigit() and folder.name:
            stem, folder = folder.name, folder.parent
        groups[str(folder), stem].append(str(path))
    return dict(groups)


def _suggestion(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
