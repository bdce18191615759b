"""Dataset classes by name, and selection of a class by a row's columns.

`auto` selects by columns, a name one of the built-in classes, `MODULE:CLASS` one of the user's.
Invariant: a row is graded by the class that its task names, in every process.
"""

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from agent_server.grading.datasets.base import Dataset
from agent_server.grading.datasets.eval_script import EvalScript
from agent_server.grading.datasets.r2e import R2E
from agent_server.grading.datasets.swebench import SweBench
from agent_server.grading.datasets.swebench_live import SweBenchLive
from agent_server.grading.datasets.swebench_multilingual import SweBenchMultilingual
from agent_server.grading.datasets.swebench_pro import SweBenchPro
from agent_server.grading.datasets.swerebench import SweRebench
from agent_server.grading.datasets.swerebench_v2 import SweRebenchV2
from agent_server.grading.datasets.swesmith import SweSmith
from client.errors import ConfigError

AUTO = "auto"
DATASETS: tuple[type[Dataset], ...] = (  # tried in this order
    R2E, SweBenchPro, SweRebenchV2, SweRebench, SweBenchLive, SweBenchMultilingual, SweBench, SweSmith, EvalScript,
)  # fmt: skip
BY_NAME = {kind.name: kind for kind in DATASETS}
# Names of Dataset in 0.1.0. A class that still has them would be used without its overrides: its hidden tests, say,
# would lie open to the agent.
RENAMED = {
    "columns": "identifying_columns", "wanted": "read_columns", "texts": "text_columns", "kept": "task_columns",
    "fault": "reason_ungradable", "hidden": "hidden_paths", "fix": "apply_gold", "script": "test_script",
}  # fmt: skip


@cache
def load_dataset(name: str) -> Dataset:
    """The class with a built-in name, or `MODULE:CLASS`. Raises ConfigError."""
    if name in BY_NAME:
        return BY_NAME[name]()
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ConfigError(f"AGENT_SERVER_DATASET={name} must be {AUTO}, one of {', '.join(BY_NAME)}, or MODULE:CLASS")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as missing:
        raise ConfigError(
            f"AGENT_SERVER_DATASET={name} cannot be imported: {missing}; correct it, or set PYTHONPATH to its folder"
        ) from missing
    if not (isinstance(kind, type) and issubclass(kind, Dataset)):
        raise ConfigError(
            f"AGENT_SERVER_DATASET={name} is no subclass of agent_server.grading.datasets.base.Dataset; derive it"
        )
    renamed = [f"{old} to {new}" for old, new in RENAMED.items() if _overrides(kind, old) and not _overrides(kind, new)]
    if renamed:
        raise ConfigError(f"AGENT_SERVER_DATASET={name} uses names of an earlier version; rename {', '.join(renamed)}")
    kind.name = name
    return kind()


def _overrides(kind: type[Dataset], attribute: str) -> bool:
    return getattr(kind, attribute, None) is not getattr(Dataset, attribute, None)


def dataset_for_row(row: Mapping[str, Any], where: str) -> Dataset:
    """The class whose columns the row has. Raises ConfigError with the columns that each class misses."""
    for kind in DATASETS:
        if (dataset := load_dataset(kind.name)).recognises(row):
            return dataset
    lacking = "; ".join(
        f"{kind.name} lacks {', '.join(sorted(kind.identifying_columns - row.keys())) or 'a filled base_commit'}"
        for kind in DATASETS
    )
    raise ConfigError(
        f"{where} is of no known kind: {lacking}. Name your own class with AGENT_SERVER_DATASET=MODULE:CLASS"
    )
