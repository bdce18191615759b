#!/usr/bin/env bash
# setup.sh agents | train | test: prepares this machine for the agent server, a training run or the test suite.
# Every phase logs what it does, does only what is missing, and can be interrupted: the next run continues.
# Phases that are likely to fail run first: apptainer before the long downloads.
set -euo pipefail
purpose=${1:-}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/log.sh"
root=$(dirname "$here")
cd "$root"

case $purpose in
  agents) packages=agent-server ;;
  train | test) packages=all ;;
  *) fail "setup.sh takes 'agents', 'train' or 'test', not '$purpose'" "bash setup/setup.sh train" ;;
esac

# One set-up at a time: two of them would build the same files.
cache=${SWE_RL_CACHE:-$root/.cache}
mkdir -p "$cache" ||
  fail "cannot create the cache folder $cache" \
    "make its parent folder writable, or set SWE_RL_CACHE to a writable folder"
cache=$(cd "$cache" && pwd)
export SWE_RL_CACHE=$cache
exec 9>"$cache/.setup.lock"
flock -n 9 || { log "waiting for another set-up of this checkout to end" && flock 9; }

bash "$here/tools.sh" "$purpose"
bash "$here/apptainer.sh"
bash "$here/install.sh" "$packages"
if [ "$purpose" != agents ]; then
  bash "$here/demo/image.sh" "$root/.venv/bin/python" "$cache/demo"
fi
if [ "$purpose" = test ]; then
  bash "$here/reference_wheel.sh" "$root/.venv/bin/python" "$cache"
  "$root/.venv/bin/python" -m tests.agent_server.grading.awkward.environments "$cache"
fi
if [ "$purpose" = train ]; then
  TQDM_DISABLE=1 "$root/.venv/bin/python" -m setup.demo.model
fi
