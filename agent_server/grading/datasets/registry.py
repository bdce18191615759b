"""Which class knows a dataset's rows.

`auto` recognises them by their columns; a name is one of ours, `MODULE:CLASS` one of the user's.
Invariant: a row is graded by the class that its task names, in whatever process.
"""

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from agent_server.grading.datasets.base import Dataset
from agent_server.grading.datasets.eval_script import EvalScript
from agent_server.grading.datasets.r2e import R2E
from agent_server.grading.datasets.swebench import SweBench
from agent_server.grading.datasets.swesmith import SweSmith
from client.errors import ConfigError

AUTO = "auto"
DATASETS: tuple[type[Dataset], ...] = (R2E, SweBench, SweSmith, EvalScript)  # asked in this order
BY_NAME = {kind.name: kind for kind in DATASETS}


@cache
def load(name: str) -> Dataset:
    """One of ours by name, or `MODULE:CLASS`. Raises ConfigError."""
    if name in BY_NAME:
        return BY_NAME[name]()
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ConfigError(f"AGENT_SERVER_DATASET={name}: give {AUTO}, one of {', '.join(BY_NAME)}, or MODULE:CLASS")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as missing:
        raise ConfigError(f"AGENT_SERVER_DATASET={name} cannot be imported: {missing}") from missing
    if not (isinstance(kind, type) and issubclass(kind, Dataset)):
        raise ConfigError(f"AGENT_SERVER_DATASET={name} is no subclass of agent_server.grading.datasets.base.Dataset")
    kind.name = name
    return kind()


def recognise(row: Mapping[str, Any], where: str) -> Dataset:
    """The class for rows like this one. Raises ConfigError, with what each kind would want."""
    for kind in DATASETS:
        if (dataset := load(kind.name)).recognises(row):
            return dataset
    lacking = "; ".join(
        f"{kind.name} lacks {', '.join(sorted(kind.identifying_columns - row.keys())) or 'a filled base_commit'}"
        for kind in DATASETS
    )
    raise ConfigError(
        f"{where} is of no known kind: {lacking}. Name your own class with AGENT_SERVER_DATASET=MODULE:CLASS"
    )
