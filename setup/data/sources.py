"""Which dataset is meant: short names, `NAME[:SPLIT][@REVISION]`, and which files of a repository make a split.

Invariant: no network and no disk here; a name that means nothing is refused with the nearest ones that mean something.
"""

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from client.errors import DatasetError

# Short name -> repository on the hub, the split taken when none is named.
NAMED = {
    "r2e-gym-subset": ("R2E-Gym/R2E-Gym-Subset", "train"),
    "r2e-gym-lite": ("R2E-Gym/R2E-Gym-Lite", "train"),
    "r2e-gym-v1": ("R2E-Gym/R2E-Gym-V1", "train"),
    "swe-bench": ("SWE-bench/SWE-bench", "test"),
    "swe-bench-verified": ("SWE-bench/SWE-bench_Verified", "test"),
    "swe-bench-lite": ("SWE-bench/SWE-bench_Lite", "test"),
    "swe-gym": ("SWE-Gym/SWE-Gym", "train"),
    "swe-smith": ("SWE-bench/SWE-smith", "train"),
    "swe-smith-py": ("SWE-bench/SWE-smith-py", "train"),
}
SUFFIXES = (".parquet", ".jsonl")  # the first is taken where a split has both
SHARD = re.compile(r"-\d{5}-of-\d{5}.*$")


@dataclass(frozen=True, slots=True)
class Source:
    """`split` is None where the dataset's only one is meant, `revision` (branch, tag or commit) where its main branch is."""

    dataset: str
    split: str | None
    revision: str | None

    def __str__(self) -> str:
        return self.dataset + (f":{self.split}" if self.split else "") + (f"@{self.revision}" if self.revision else "")


def parse(text: str) -> Source:
    """`NAME[:SPLIT][@REVISION]`, NAME a short name or `owner/name`. Raises DatasetError."""
    rest, _, revision = text.partition("@")
    name, _, split = rest.partition(":")
    if name.lower() in NAMED:
        name, default = NAMED[name.lower()]
        return Source(name, split or default, revision or None)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise DatasetError(
            f"{name!r} is no dataset: write owner/name, or one of {', '.join(NAMED)}{_near(name, NAMED)}"
        )
    return Source(name, split or None, revision or None)


def choose(source: Source, splits: dict[str, list[str]]) -> tuple[str, list[str]]:
    """The split that is meant, and its files in order. Raises DatasetError."""
    if not splits:
        raise DatasetError(
            f"{source.dataset} has no parquet and no jsonl files at this revision; the hub keeps a parquet copy of many datasets:"
            f" try {source.dataset}@refs/convert/parquet"
        )
    split = source.split or (next(iter(splits)) if len(splits) == 1 else None)
    if split in splits:
        return split, splits[split]
    there = ", ".join(sorted(splits))
    if split is None:
        raise DatasetError(
            f"{source.dataset} has several splits, name one as {source.dataset}:SPLIT; there are {there}"
        )
    raise DatasetError(f"{source.dataset} has no split {split!r}{_near(split, splits)}; there are {there}")


def splits_of(paths: Iterable[str], card: dict) -> dict[str, list[str]]:
    """Files by split, from what the dataset's card says (`configs`), else from their names: `data/train-00000-of-00002.parquet`,
    `train.jsonl`, `train/0000.parquet`. Where two configurations have a split of one name it is called `config/split`."""
    files = sorted(path for path in paths if path.endswith(SUFFIXES))
    named = _by_card(files, card) or _by_name(files)
    splits_named = [split for _, split in named]
    found = {}
    for (config, split), its in named.items():
        suffix = next(suffix for suffix in SUFFIXES if any(path.endswith(suffix) for path in its))
        name = split if splits_named.count(split) == 1 else f"{config}/{split}"
        found[name] = [path for path in its if path.endswith(suffix)]
    return found


def _by_card(files: list[str], card: dict) -> dict[tuple[str, str], list[str]]:
    found = {}
    for config in card.get("configs") or ():
        entries = config.get("data_files") or ()
        for entry in [entries] if isinstance(entries, str | dict) else entries:
            split, patterns = (
                (entry.get("split", "train"), entry.get("path") or ()) if isinstance(entry, dict) else ("train", entry)
            )
            patterns = [patterns] if isinstance(patterns, str) else patterns
            if its := [path for path in files if any(_matches(path, pattern) for pattern in patterns)]:
                found[str(config.get("config_name", "default")), str(split)] = its
    return found


def _matches(path: str, pattern: str) -> bool:
    """As a shell: a star does not go past a slash, two do."""
    return fnmatchcase(path, pattern) and ("**" in pattern or path.count("/") == pattern.count("/"))


def _by_name(files: list[str]) -> dict[tuple[str, str], list[str]]:
    found = defaultdict(list)
    for path in map(PurePosixPath, files):
        stem, folder = SHARD.sub("", path.stem), path.parent
        if stem.isdigit() and folder.name:
            stem, folder = folder.name, folder.parent
        found[str(folder), stem].append(str(path))
    return dict(found)


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
