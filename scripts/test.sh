#!/usr/bin/env bash
# Sets up what the tests need and runs them all, fast ones first. Arguments go to pytest: bash scripts/test.sh tests/client -k cancel
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash setup/setup.sh test
exec .venv/bin/python -m pytest "$@"
