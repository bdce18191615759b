"""Configurations as text: TOML file and overrides in, the resolved configuration out.

Invariant: `load_config` validates the whole configuration and reports every problem at once, each with the rule, the
value and the remedy. It reads the text only, so a file for another machine can be checked here.
"""

import tomllib
from pathlib import Path

import tomli_w
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from client.errors import ConfigError
from trainer.config.checks import did_you_mean, did_you_mean_path, find_contradictions
from trainer.config.schema import Config, config_keys


def load_config(file: Path, overrides: list[str]) -> Config:
    """Read `file`, apply `section.key=value` overrides, validate the result.

    A value that is not TOML is a string. Raises ConfigError with every problem: unknown keys with the closest valid
    one, wrong values, contradictions.
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
        raise ConfigError(
            "\n".join([f"{file} is not a valid configuration:", *(f"  - {problem}" for problem in problems)])
        )
    return config


def to_toml(config: Config) -> str:
    """The resolved configuration with every default, as TOML that `load_config` reads back to an equal one."""
    return tomli_w.dumps(config.model_dump(mode="json", exclude_none=True))


def _apply(tree: dict, override: str) -> None:
    """Set the key of `override` in `tree`. Raises ConfigError where it is not `section.key=value`."""
    dotted, equals, text = override.partition("=")
    if not equals or "." not in dotted:
        raise ConfigError(
            f"an override must be section.key=value, not {override!r}."
            f"{did_you_mean(dotted, [key for key, _ in config_keys()])}"
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


def _explain(error: ErrorDetails) -> str:
    """A validation error as the key, the rule and the value."""
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        names = [name for name, _ in config_keys()] if "." in key else list(Config.model_fields)
        return f"unknown key {key}.{did_you_mean(key, names)}"
    if error["type"] == "missing":
        meaning = dict(config_keys()).get(key)
        return f"{key} is missing" + (f": {meaning.description}" if meaning else "")
    return f"{key} = {error['input']!r}: {error['msg']}"
