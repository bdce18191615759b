#!/usr/bin/env bash
# lint.sh: format, lint and type checks of the whole repository, with the remedy for each that fails. Changes no file.
# Needs .venv (bash setup/setup.sh test). Exit code 1 if any check fails; all of them run.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
failed=0

# check REMEDY COMMAND...: runs a check; on failure prints the remedy.
check() {
  local remedy=$1
  shift
  "$@" </dev/null && return
  printf '[lint] failed: %s\n[lint] remedy: %s\n' "$*" "$remedy" >&2
  failed=1
}

check "run .venv/bin/ruff format ." .venv/bin/ruff format --check --quiet .
check "run .venv/bin/ruff check --fix ., then correct what it still reports" .venv/bin/ruff check --quiet --output-format concise .
check "correct the types that mypy reports" .venv/bin/mypy
exit "$failed"
