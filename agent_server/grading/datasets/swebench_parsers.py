"""swebench's log parsers by name, imported on first use: the package takes a second to import."""

from collections.abc import Mapping
from typing import Any


def parsers() -> Mapping[str, Any]:
    """swebench's log parsers by name."""
    from swebench.harness.log_parsers import PARSER_REGISTRY

    return PARSER_REGISTRY


def parser_names_by_repository() -> Mapping[str, str]:
    """The names of the parsers for SWE-bench's Python repositories."""
    from swebench.harness.log_parsers.python import MAP_REPO_TO_PARSER_PY

    return {repository: parser.__name__ for repository, parser in MAP_REPO_TO_PARSER_PY.items()}


def parse_log(parser: str, log: str, spec: Any) -> dict[str, str]:
    """Outcome by test id, by swebench's parser of that name. Empty where the parser fails: the tests printed the
    log."""
    try:
        return parsers()[parser](log, spec)
    except (LookupError, ValueError, AttributeError, TypeError):
        return {}
