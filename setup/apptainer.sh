#!/usr/bin/env bash
# Makes `apptainer` work on this machine: one that works is used as it is; else Debian 13 and later get Debian's package, and
# Debian 12 the same package with a private glibc (apptainer/debian12.sh); anywhere else the remedy is printed.
# Invariants: apt's own sources stay as they are (the package comes through a private apt state that is thrown away), nothing
# else on the machine is upgraded, every download is authenticated by apt, and "works" means that a sandbox really ran.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/log.sh"

work=$(mktemp -d --tmpdir swe-rl-apptainer.XXXXXX)
trap 'rm -rf "$work"' EXIT
log=$work.log

# Runs a shell in a sandbox made of this machine's own /bin/sh, with a writable overlay, as the agent server does.
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
  apptainer exec --containall --writable-tmpfs --no-home "$root" /bin/sh -c 'echo written >/probe && read -r word </probe && [ "$word" = written ]' \
    >"$work/probe.out" 2>&1 </dev/null
}

said() { sed $'s/\x1b[^m]*m//g' "$work/probe.out" | grep . | tail -n 3 | tr '\n' ' '; } # what it said instead, without colours

remedy="install apptainer 1.2 or later so that \`apptainer exec DIRECTORY /bin/sh\` works (Debian 12 or 13: run \`bash setup/apptainer.sh\` as root with the Debian package mirror reachable; elsewhere: https://apptainer.org/docs/admin/main/installation.html), then run this again"
apptainer_works && exit 0

found=$(command -v apptainer || true)
if [ -n "$found" ]; then
  say "$found is there but cannot run a sandbox: $(said)"
fi
[ "$(id -u)" -eq 0 ] || stop "apptainer is missing or does not work, and only root can install it" "$remedy"
command -v apt-get >/dev/null && [ -r /etc/os-release ] || stop "apptainer is missing or does not work, and this is no Debian system" "$remedy"
. /etc/os-release
case "${ID:-}:${VERSION_ID:-unreleased}" in
  debian:12) prepare=debian12 ;;
  debian:1[3-9] | debian:unreleased) prepare=as_it_is ;;
  *) stop "apptainer is missing or does not work, and there is no known way to install it on ${PRETTY_NAME:-this system}" "$remedy" ;;
esac

say "installing apptainer from Debian's unstable suite (nothing else of the machine is upgraded)"
export DEBIAN_FRONTEND=noninteractive
need_space "$work" 500 "installing apptainer"
logged "$log" apt-get -q update || stop "apt cannot read its package lists (is the network there?)" "$remedy"

# The mirror is the one that this machine uses already.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Component: main' "Codename: $VERSION_CODENAME" | head -n 1)
[ -n "$mirror" ] || stop "apt knows no Debian mirror for $VERSION_CODENAME" "add Debian's $VERSION_CODENAME main to /etc/apt/sources.list, or: $remedy"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mkdir -p "$work"/apt/{lists,cache,none}/partial
for suite in unstable trixie; do # trixie: the private glibc
  printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$mirror" "$suite"
done >"$work/apt/sources.list"
private_apt() { # A frozen mirror (a snapshot) serves an unstable suite that is "expired" by design; its signatures are checked all the same.
  apt-get -q -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root -o Acquire::Languages=none -o Dir::Etc::sourcelist="$work/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
    -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null -o Dir::State::lists="$work/apt/lists" -o Dir::Cache="$work/apt/cache" "$@"
}
cd "$work"
logged "$log" private_apt update || stop "the Debian mirror does not answer for unstable" "$remedy"
logged "$log" private_apt download apptainer/unstable || stop "apptainer cannot be downloaded from Debian's unstable suite" "$remedy"
package=$(echo "$work"/apptainer_*.deb)

if [ "$prepare" = debian12 ]; then
  say "giving it a private glibc, since Debian 12's is too old for it"
  logged "$log" private_apt download libc6/trixie || stop "Debian 13's libc6 cannot be downloaded" "$remedy"
  logged "$log" apt-get -q -o APT::Sandbox::User=root download patchelf libseccomp2 libsqlite3-0 || stop "patchelf, libseccomp2 and libsqlite3-0 cannot be downloaded" "$remedy"
  logged "$log" bash "$here/apptainer/debian12.sh" "$work" "$package" || stop "the package could not be rebuilt for Debian 12" "$remedy"
  package=$work/apptainer_rebuilt.deb
fi
# Apptainer mounts /etc/localtime into every sandbox and fails where there is none.
also=()
[ -e /etc/localtime ] || also=(tzdata)
logged "$log" apt-get -qy -o DPkg::Lock::Timeout=300 -o APT::Sandbox::User=root install --no-install-recommends --allow-downgrades --reinstall "$package" "${also[@]}" ||
  stop "apt cannot install the apptainer package" "$remedy"
[ -e /etc/localtime ] || ln -s /usr/share/zoneinfo/Etc/UTC /etc/localtime

# As root without CAP_SYS_RESOURCE (a container, mostly) apptainer cannot ask for root's full capabilities; it need not.
sed -i 's/^root default capabilities = .*/root default capabilities = file/' /etc/apptainer/apptainer.conf

rm -f "$log"
hash -r
apptainer_works || stop "apptainer is installed ($(command -v apptainer || echo 'not on PATH')) but cannot run a sandbox: $(said)" \
  "if another apptainer stands first on the PATH, remove it; in a container, start the container privileged (apptainer needs user or mount namespaces); then run this again"
say "$(apptainer --version) works"
