#!/usr/bin/env bash
# serve_agents.sh: installs what is missing, then runs the agent server alone in the foreground (no torch, no trainer).
# Settings are environment variables; `.venv/bin/python -m agent_server --help` lists all of them:
#   R2E_DATA_PATH, R2E_SIF_DIR           task rows and their images (default if both are unset: the demo's)
#   AGENT_SERVER_WORK_DIR                database, logs and trajectories (default: <cache>/agent_server)
#   AGENT_SERVER_TRAIN_CONCURRENCY, AGENT_SERVER_EVAL_CONCURRENCY, AGENT_SERVER_HOST, AGENT_SERVER_PORT, ...
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${SWE_RL_CACHE:-$root/.cache}
bash "$root/setup/setup.sh" agents
if [ -z "${R2E_DATA_PATH:-}${R2E_SIF_DIR:-}" ]; then
  bash "$root/setup/demo/image.sh" "$root/.venv/bin/python" "$cache/demo"
  export R2E_DATA_PATH=$cache/demo/tasks R2E_SIF_DIR=$cache/demo/images
fi
export AGENT_SERVER_WORK_DIR=${AGENT_SERVER_WORK_DIR:-$cache/agent_server}
cd "$root"
exec "$root/.venv/bin/python" -m agent_server
