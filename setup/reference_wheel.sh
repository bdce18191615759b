#!/usr/bin/env bash
# reference_wheel.sh PYTHON FOLDER: fetches the wheel of swebench 4.1.0, which is not installed: the tests hold the
# evaluation scripts of older rows against it.
# Invariant: the wheel appears in FOLDER only when it is complete.
set -euo pipefail
python=$1 folder=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/log.sh"
wheel=swebench-4.1.0-py3-none-any.whl

[ -f "$folder/$wheel" ] && exit 0
log "fetching $wheel"
rm -rf "$folder/wheel.partial"
run_logged "$folder/wheel.log" "$python" -m pip download --no-deps --only-binary=:all: --dest "$folder/wheel.partial" \
  swebench==4.1.0 ||
  fail "pip cannot fetch $wheel" "see the lines above; the usual causes are the network and the package index"
mv "$folder/wheel.partial/$wheel" "$folder/$wheel"
rm -rf "$folder/wheel.partial"
