#!/usr/bin/env bash
# tools.sh [agents | train | test]: the small programs that the sandboxes, their images and the demo image need, for `train` and `test` the
# library that vLLM's CPU build loads, and for `test` an image registry: found here, or installed with apt.
# Invariant: what is already there is never touched; without apt or root the missing ones are named with the remedy.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/log.sh"

# program=Debian package
tools=(git=git ps=procps mount=mount mksquashfs=squashfs-tools mmdebstrap=mmdebstrap newuidmap=uidmap squashfuse=squashfuse
  fuse2fs=fuse2fs fuse-overlayfs=fuse-overlayfs skopeo=skopeo setpriv=util-linux)
# A registry with images of the tests' own making.
if [ "${1:-agents}" = test ]; then
  tools+=(docker-registry=docker-registry umoci=umoci busybox=busybox-static)
fi

# The tests' own TLS certificate.
[ "${1:-agents}" != test ] || tools+=(openssl=openssl)

missing=()
for tool in "${tools[@]}"; do
  command -v "${tool%%=*}" >/dev/null || missing+=("${tool#*=}")
done
# Without it vLLM says only that "_C" has no attribute, after a minute.
if [ "${1:-agents}" != agents ] && ! PATH=$PATH:/usr/sbin:/sbin ldconfig -p | grep -q 'libnuma\.so\.1 '; then
  missing+=(libnuma1)
fi
[ ${#missing[@]} -gt 0 ] || exit 0

remedy="as root: apt-get update && apt-get install -y ${missing[*]}   (then run this again)"
command -v apt-get >/dev/null || stop "these programs' packages are missing: ${missing[*]}, and there is no apt-get to install them" "install them with this system's package manager, then run this again"
[ "$(id -u)" -eq 0 ] || stop "these packages are missing: ${missing[*]}, and only root can install them" "$remedy"

say "installing ${missing[*]}"
log=$(mktemp --tmpdir swe-rl-tools.XXXXXX)
export DEBIAN_FRONTEND=noninteractive
logged "$log" apt-get -q update || stop "apt cannot read its package lists (is the network there?)" "$remedy"
logged "$log" apt-get -qy -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}" || stop "apt cannot install ${missing[*]}" "$remedy"
rm -f "$log"
