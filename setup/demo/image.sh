#!/usr/bin/env bash
# image.sh PYTHON CACHE: builds the demo image CACHE/images/demo__quickstart__1.sif from Debian packages, without a
# registry, and measures its task rows into CACHE/tasks/*.parquet. PYTHON is an interpreter with pyarrow.
# Invariants: a file under its final name is complete, because it is built elsewhere and renamed. An image that was
# built from these same scripts is kept.
set -euo pipefail
python=$1 cache=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../log.sh"
cd "$here/../.."

suite=bookworm # the same on every machine
image=$cache/images/demo__quickstart__1.sif
key=$(cat "$here"/{image.sh,tasks.py,function.py,warmup.py,train_functions.py,eval_functions.py} | sha256sum | cut -d ' ' -f 1)
stamp=$cache/tasks/.made-from
[ -s "$image" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && exit 0

command -v mmdebstrap >/dev/null && command -v mksquashfs >/dev/null ||
  fail "mmdebstrap or mksquashfs is missing" "bash setup/tools.sh"
[ "$(id -u)" -eq 0 ] || fail "only root can build the demo image" "run \`bash setup/setup.sh train\` once as root"
require_space "$cache" 1500 "building the demo image"
mkdir -p "$cache/images" "$cache/tasks"
find "$cache" -maxdepth 1 -name 'build.*' -mmin +120 -exec rm -rf {} + # of a set-up that was killed
work=$(mktemp -d "$cache/build.XXXXXX")
trap 'rm -rf "$work"' EXIT
rm -f "$stamp"

log "building the demo image (Debian $suite with python3, git and pytest; under a minute)"
mirror=$(apt-get indextargets --format '$(REPO_URI)' \
  'Created-By: Packages' 'Origin: Debian' 'Component: main' 2>/dev/null |
  grep -v security | head -n 1 || true)
run_logged "$work.log" mmdebstrap --variant=minbase --include=python3,git,python3-pytest,patch \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='path-exclude=/usr/share/man/*' "$suite" "$work/root" ${mirror:+"$mirror"} ||
  fail "mmdebstrap cannot build a Debian $suite tree in $work (log: $work.log)" \
    "see the log's last lines above (usual causes: network, package mirror, disk), then run this again"
[ -x "$work/root/usr/bin/git" ] || fail "mmdebstrap built an incomplete tree, without git" "run this again"

"$python" -m setup.demo.tasks repository "$work/root/testbed"
# Python takes a .pyc as fresh if the source's size and mtime (in seconds) match: it would miss a one-character fix
# made right after a test run.
printf 'import sys\n\nsys.dont_write_bytecode = True\n' | tee "$work"/root/etc/python3.*/sitecustomize.py >/dev/null
# One commit with a fixed date: the same tables give the same commit on every machine. Any user may use the repository.
printf '[safe]\n\tdirectory = *\n[user]\n\tname = demo\n\temail = demo@localhost\n' >"$work/root/etc/gitconfig"
in_repository() {
  GIT_CONFIG_SYSTEM="$work/root/etc/gitconfig" GIT_CONFIG_GLOBAL=/dev/null git -C "$work/root/testbed" "$@"
}
in_repository init -q -b main
in_repository add -A
GIT_AUTHOR_DATE=2026-01-01T00:00:00Z GIT_COMMITTER_DATE=2026-01-01T00:00:00Z \
  in_repository commit -q -m "One-function modules"

# zstd packs several times faster than apptainer's gzip, and reads faster. The path is relative because it becomes an
# image label.
run_logged "$work.log" env -C "$work" APPTAINER_TMPDIR="$work" APPTAINER_CACHEDIR="$work/apptainer" \
  apptainer build --mksquashfs-args "-comp zstd -Xcompression-level 3" image.sif root ||
  fail "apptainer cannot build the demo image (log: $work.log)" "see the log's last lines above, then run this again"

log "measuring the demo tasks in the image (the bug, tests and fix of every row)"
"$python" -m setup.demo.tasks rows "$work/image.sif" "$cache/tasks"
mv -f "$work/image.sif" "$image"
echo "$key" >"$stamp"
rm -f "$work.log"
