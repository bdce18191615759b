"""Configurations as text: one TOML file and overrides in, validated whole; the resolved configuration out.

Invariant: `load_config` reports every problem at once, each with the rule, the value and the remedy. It looks at the text only,
so that a file for another machine can be checked here.
"""

import json
import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from client.errors import ConfigError
from trainer.config.checks import did_you_mean, did_you_mean_path, find_contradictions
from trainer.config.schema import Config, config_keys


def load_config(file: Path, overrides: list[str]) -> Config:
    """Read `file`, apply `section.key=value` overrides (values as in TOML; anything else is a string), validate all.

    Raises ConfigError naming every problem found: unknown keys with the nearest valid one, wrong values, contradictions.
    """
    try:
        tree = tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {file}: {error.strerror}.{did_you_mean_path(file)}") from None
    except ValueError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from None
    for override in overrides:
        _apply(tree, override)
    try:
        config = Config.model_validate(tree)
    except ValidationError as invalid:
        problems = [_explain(error) for error in invalid.errors()]
    else:
        problems = list(find_contradictions(config))
    if problems:
        raise ConfigError("\n".join([f"{file} cannot be run:", *(f"  - {problem}" for problem in problems)]))
    return config


def to_toml(config: Config) -> str:
    """The resolved configuration, every default written out, as a file that `load_config` reads back to an equal one."""
    lines = []
    for section, values in config.model_dump(mode="json", exclude_none=True).items():
        lines += [f"[{section}]", *(f"{key} = {_toml_value(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)  # TOML writes these strings, numbers, booleans and lists as JSON does


def _apply(tree: dict, override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or "." not in dotted:
        raise ConfigError(
            f"an override is section.key=value, not {override!r}.{did_you_mean(dotted, [key for key, _ in config_keys()])}"
        )
    *parents, last = dotted.strip().split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"override {override!r}: {parent} is a value, not a section")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        value = text
    tree[last] = value if isinstance(value, (str, bool, int, float, list, dict)) else text


def _explain(error: dict) -> str:
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        names = [name for name, _ in config_keys()] if "." in key else list(Config.model_fields)
        return f"unknown key {key}.{did_you_mean(key, names)}"
    if error["type"] == "missing":
        meaning = dict(config_keys()).get(key)
        return f"{key} is missing" + (f": {meaning.description}" if meaning else "")
    return f"{key} = {error['input']!r}: {error['msg']}"
