"""The trainer's command line: `python -m trainer run|check FILE [key=value ...]`.

Invariant: every problem of a configuration is reported here, before anything heavy is imported or started.
Exit codes: 0 done, 1 the run failed, 2 the configuration is invalid or this machine lacks something, 128 + N signal N.
"""

import argparse
import errno
import sys
import textwrap
from pathlib import Path

from pydantic_core import PydanticUndefined

from client.errors import ConfigError, StackError, StorageError
from trainer.config.checks import missing_on_this_machine, require_machine
from trainer.config.file import load_config
from trainer.config.schema import Config, config_keys
from trainer.interrupts import Interrupted, Interrupts

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def main(arguments: list[str]) -> int:
    with Interrupts() as interrupts:
        try:
            options = _parser().parse_args(arguments)
            config = load_config(options.file, options.overrides)
            if options.command == "check":
                _check(options.file, config)
            else:
                require_machine(config)
                from trainer.launch import run  # torch and transformers are only loaded for a run that can start

                run(config, interrupts)
        except ConfigError as error:
            return _fail(error, 2)
        except StackError as error:
            return _fail(error, 1)
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
            return _fail(StorageError(f"the run's folder must be writable: {error}; make room there or set run.dir"), 1)
        except Interrupted:
            pass  # the exit code reports it
        return interrupts.exit_code or 0


def _check(file: Path, config: Config) -> None:
    print(f"{file}: valid")
    for problem in missing_on_this_machine(config):
        print(f"  not on this machine: {problem}")


def _fail(error: StackError, exit_code: int) -> int:
    print(f"{error.boundary} error ({error.code}): {error}", file=sys.stderr, flush=True)
    return exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer",
        description="Trains a model with reinforcement learning on software-engineering tasks.",
        epilog=_describe_keys(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "command",
        choices=["run", "check"],
        help="run: train. check: validate FILE and the overrides; list what this machine lacks, which is no error.",
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="the run's TOML file, for instance scripts/runs/quickstart.toml"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="replaces one key of FILE, for instance train.steps=2"
    )
    return parser


def _describe_keys() -> str:
    lines = ["keys of FILE (names end in their unit; paths are relative to the current directory):"]
    for key, field in config_keys():
        default = field.get_default(call_default_factory=True)
        shown = "required" if default is PydanticUndefined else "none" if default is None else f"default {default}"
        lines.append(f"  {key}  ({shown})")
        lines += textwrap.wrap(field.description or "", 110, initial_indent="      ", subsequent_indent="      ")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
