#!/usr/bin/env bash
# setup.sh agents | train | test: brings this machine to where the agent server, a training run or the tests can start.
# Each phase says what it does, does only what is missing, and can be interrupted at any moment: the next run goes on from there.
# What cannot be had is found out first (apptainer before the long downloads).
set -euo pipefail
purpose=${1:-}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/log.sh"
root=$(dirname "$here")
cd "$root"

case $purpose in
  agents) packages=agent-server ;;
  train | test) packages=all ;;
  *) stop "setup.sh takes 'agents', 'train' or 'test', not '$purpose'" "bash setup/setup.sh train" ;;
esac

# Two set-ups of one checkout at once would build the same files: the second waits.
cache=${SWE_RL_CACHE:-$root/.cache}
mkdir -p "$cache" || stop "cannot create the cache folder $cache" "make its parent folder writable, or set SWE_RL_CACHE to a folder that is"
cache=$(cd "$cache" && pwd)
export SWE_RL_CACHE=$cache
exec 9>"$cache/.setup.lock"
flock -n 9 || { say "another set-up is running here; waiting for it" && flock 9; }

bash "$here/tools.sh" "$purpose"
bash "$here/apptainer.sh"
bash "$here/install.sh" "$packages"
if [ "$purpose" != agents ]; then
  bash "$here/demo/image.sh" "$root/.venv/bin/python" "$cache/demo"
fi
if [ "$purpose" = train ]; then
  TQDM_DISABLE=1 "$root/.venv/bin/python" -m setup.demo.model
fi
