#!/usr/bin/env bash
# tools.sh [agents | train | test]: installs missing system programs with apt.
#   agents   programs for sandboxes, their images and the demo image
#   train    also libnuma, which vLLM's CPU build loads
#   test     also libnuma, an image registry, openssl and make
# Invariant: an installed program is never changed. Without apt or root the script names the missing packages and fails.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/log.sh"
purpose=${1:-agents}

# program=Debian package
tools=(git=git ps=procps mount=mount mksquashfs=squashfs-tools mmdebstrap=mmdebstrap newuidmap=uidmap
  squashfuse=squashfuse fuse2fs=fuse2fs fuse-overlayfs=fuse-overlayfs skopeo=skopeo setpriv=util-linux
  slirp4netns=slirp4netns nft=nftables)
if [ "$purpose" = test ]; then
  # A registry with images that the tests make, a TLS certificate, and a program for the images of the tests, networks of their own.
  tools+=(docker-registry=docker-registry umoci=umoci ip=iproute2 busybox=busybox-static openssl=openssl make=make)
fi

missing=()
for tool in "${tools[@]}"; do
  # nft is in a folder that another user's PATH may lack.
  PATH=$PATH:/usr/sbin:/sbin command -v "${tool%%=*}" >/dev/null || missing+=("${tool#*=}")
done
# Without libnuma vLLM fails after a minute, and its error names only a missing attribute of "_C".
if [ "$purpose" != agents ] && ! PATH=$PATH:/usr/sbin:/sbin ldconfig -p | grep -q 'libnuma\.so\.1 '; then
  missing+=(libnuma1)
fi
[ ${#missing[@]} -gt 0 ] || exit 0

remedy="as root: apt-get update && apt-get install -y ${missing[*]}   (then run this again)"
command -v apt-get >/dev/null ||
  fail "these packages are missing, and there is no apt-get to install them: ${missing[*]}" \
    "install them with this system's package manager, then run this again"
[ "$(id -u)" -eq 0 ] || fail "these packages are missing, and only root can install them: ${missing[*]}" "$remedy"

log "installing ${missing[*]}"
log_file=$(mktemp --tmpdir swe-rl-tools.XXXXXX)
export DEBIAN_FRONTEND=noninteractive
run_logged "$log_file" apt-get -q update ||
  fail "apt cannot read its package lists" "check the network and /etc/apt/sources.list; $remedy"
run_logged "$log_file" apt-get -qy -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}" ||
  fail "apt cannot install ${missing[*]}" "$remedy"
rm -f "$log_file"
