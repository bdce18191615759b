#!/usr/bin/env bash
# Builds docs/ as a site in site/, and fails on a broken link: bash scripts/docs.sh [OPTION OF mkdocs build ...]
# First generates the tables that come from the code. Installs the documentation tools where they are missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -x .venv/bin/python ] || bash setup/install.sh agent-server
if ! .venv/bin/python -c 'import material, mkdocs' 2>/dev/null; then
  .venv/bin/python -m pip install --quiet --editable '.[docs]'
fi
.venv/bin/python -m scripts.reference
NO_MKDOCS_2_WARNING=true exec .venv/bin/python -m mkdocs build --strict "$@"
