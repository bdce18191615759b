#!/usr/bin/env bash
# Sets up what is missing, then trains: bash scripts/run_train.sh [FILE] [key=value ...]
# FILE is a run's TOML file (default: scripts/runs/quickstart.toml); `.venv/bin/python -m trainer --help` lists every key.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash setup/setup.sh train
case ${1:-} in
"" | *=*) set -- scripts/runs/quickstart.toml "$@" ;;
esac
exec .venv/bin/python -m trainer run "$@"
