#!/usr/bin/env bash
# run_train.sh [FILE] [key=value ...]: installs what is missing, then starts a training run.
# FILE is the run's TOML configuration (default: scripts/runs/quickstart.toml). Each key=value overrides one setting.
# `.venv/bin/python -m trainer --help` lists every key.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash setup/setup.sh train
case ${1:-} in
  "" | *=*) set -- scripts/runs/quickstart.toml "$@" ;;
esac
exec .venv/bin/python -m trainer run "$@"
