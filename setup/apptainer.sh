#!/usr/bin/env bash
# Installs Apptainer where it is missing or cannot run a sandbox. Debian 13 and later get Debian's package; Debian 12
# gets the same package with a private glibc (apptainer/debian12.sh). On other systems the script fails with the
# remedy.
# Invariants: apt's own sources stay unchanged, because the package comes through a temporary, private apt state.
# Nothing else on the machine is upgraded. apt verifies every download. Apptainer counts as working only after a
# sandbox has run.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/log.sh"

work=$(mktemp -d --tmpdir swe-rl-apptainer.XXXXXX)
trap 'rm -rf "$work"' EXIT
log_file=$work.log

# Runs this machine's own /bin/sh in a sandbox with a writable overlay, as the agent server does.
apptainer_works() {
  local root=$work/probe file
  command -v apptainer >/dev/null || return 1
  if [ ! -d "$root" ]; then
    mkdir -p "$root"/{bin,dev,etc,proc,root,sys,tmp,var/tmp}
    cp -L /bin/sh "$root/bin/sh"
    for file in $(ldd /bin/sh | grep -o '/[^ )]*'); do
      mkdir -p "$root$(dirname "$file")" && cp -L "$file" "$root$file"
    done
  fi
  apptainer exec --containall --writable-tmpfs --no-home "$root" \
    /bin/sh -c 'echo written >/probe && read -r content </probe && [ "$content" = written ]' \
    >"$work/probe.out" 2>&1 </dev/null
}

# The last lines of the probe's output, without colours.
probe_output() { sed $'s/\x1b[^m]*m//g' "$work/probe.out" | grep . | tail -n 3 | tr '\n' ' '; }

remedy="install apptainer 1.2 or later so that \`apptainer exec DIRECTORY /bin/sh\` works, then run this again. \
Debian 12 or 13: run \`bash setup/apptainer.sh\` as root with the Debian package mirror reachable. \
Other systems: https://apptainer.org/docs/admin/main/installation.html"
apptainer_works && exit 0

installed=$(command -v apptainer || true)
if [ -n "$installed" ]; then
  log "$installed cannot run a sandbox: $(probe_output)"
fi
[ "$(id -u)" -eq 0 ] || fail "apptainer is missing or does not work, and only root can install it" "$remedy"
command -v apt-get >/dev/null && [ -r /etc/os-release ] ||
  fail "apptainer is missing or does not work, and this is no Debian system" "$remedy"
. /etc/os-release
case "${ID:-}:${VERSION_ID:-unreleased}" in
  debian:12) needs_private_glibc=yes ;;
  debian:1[3-9] | debian:unreleased) needs_private_glibc=no ;;
  *)
    fail "apptainer is missing or does not work, and this script cannot install it on ${PRETTY_NAME:-this system}" \
      "$remedy"
    ;;
esac

log "installing apptainer from Debian's unstable suite (no other package is upgraded)"
export DEBIAN_FRONTEND=noninteractive
require_space "$work" 500 "installing apptainer"
run_logged "$log_file" apt-get -q update || fail "apt cannot read its package lists; check the network" "$remedy"

# The mirror that this machine uses already.
mirror=$(apt-get indextargets --format '$(REPO_URI)' \
  'Created-By: Packages' 'Origin: Debian' 'Component: main' "Codename: $VERSION_CODENAME" | head -n 1)
[ -n "$mirror" ] || fail "apt has no Debian mirror for $VERSION_CODENAME" \
  "add Debian's $VERSION_CODENAME main to /etc/apt/sources.list, or: $remedy"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mkdir -p "$work"/apt/{lists,cache,none}/partial
for suite in unstable trixie; do # trixie has the private glibc
  printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$mirror" "$suite"
done >"$work/apt/sources.list"

# A frozen mirror (a snapshot) serves an unstable suite that has expired. Signatures are checked all the same.
private_apt() {
  apt-get -q -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root -o Acquire::Languages=none \
    -o Dir::Etc::sourcelist="$work/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
    -o Dir::State::lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache" "$@"
}
cd "$work"
run_logged "$log_file" private_apt update || fail "the Debian mirror has no readable unstable suite" "$remedy"
run_logged "$log_file" private_apt download apptainer/unstable ||
  fail "apptainer cannot be downloaded from Debian's unstable suite" "$remedy"
package=$(echo "$work"/apptainer_*.deb)

if [ "$needs_private_glibc" = yes ]; then
  log "rebuilding it with a private glibc, because Debian 12's glibc is too old"
  run_logged "$log_file" private_apt download libc6/trixie || fail "Debian 13's libc6 cannot be downloaded" "$remedy"
  run_logged "$log_file" apt-get -q -o APT::Sandbox::User=root download patchelf libseccomp2 libsqlite3-0 ||
    fail "patchelf, libseccomp2 and libsqlite3-0 cannot be downloaded" "$remedy"
  run_logged "$log_file" bash "$here/apptainer/debian12.sh" "$work" "$package" ||
    fail "the package cannot be rebuilt for Debian 12" "$remedy"
  package=$work/apptainer_rebuilt.deb
fi
# Apptainer mounts /etc/localtime into every sandbox and fails if it is missing.
extra_packages=()
[ -e /etc/localtime ] || extra_packages=(tzdata)
run_logged "$log_file" apt-get -qy -o DPkg::Lock::Timeout=300 -o APT::Sandbox::User=root \
  install --no-install-recommends --allow-downgrades --reinstall "$package" "${extra_packages[@]}" ||
  fail "apt cannot install the apptainer package" "$remedy"
[ -e /etc/localtime ] || ln -s /usr/share/zoneinfo/Etc/UTC /etc/localtime

# Root without CAP_SYS_RESOURCE (usual in a container) cannot give sandboxes root's full capabilities, and they need
# none.
sed -i 's/^root default capabilities = .*/root default capabilities = file/' /etc/apptainer/apptainer.conf

rm -f "$log_file"
hash -r
apptainer_works ||
  fail "apptainer is installed at $(command -v apptainer || echo 'no folder of PATH') but cannot run a sandbox: \
$(probe_output)" "if another apptainer is first on the PATH, remove it; in a container, start the container privileged \
(apptainer needs user or mount namespaces); then run this again"
log "$(apptainer --version) works"
