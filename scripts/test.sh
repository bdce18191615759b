#!/usr/bin/env bash
# Sets up what the tests need, checks format, lint and types, then runs the tests, fast ones first, three at a time.
# Arguments go to pytest: bash scripts/test.sh tests/client -k cancel
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash setup/setup.sh test
bash scripts/lint.sh
# loadgroup: the tests of one file, or of one xdist_group mark, share a process and so its fixtures (servers, images, a model).
exec .venv/bin/python -m pytest --numprocesses 3 --dist loadgroup --no-loadscope-reorder "$@"
