#!/usr/bin/env bash
# apptainer/debian12.sh WORK PACKAGE: rebuilds Debian's apptainer package as WORK/apptainer_rebuilt.deb so that it runs on Debian 12.
# Its programs need two symbols newer than Debian 12's glibc: they get Debian 13's, in a folder of their own inside the package, by
# interpreter and rpath. Only apptainer uses it, and dpkg still owns every file, so `apt-get remove apptainer` undoes all of it.
# WORK holds the downloaded libc6 (Debian 13), libseccomp2, libsqlite3-0 and patchelf (Debian 12).
set -euo pipefail
work=$1 package=$2

tree=$work/tree libraries=$work/libraries
dpkg-deb -R "$package" "$tree"
for name in patchelf libc6 libseccomp2 libsqlite3-0; do
  dpkg-deb -x "$work"/${name}_*.deb "$libraries"
done
patchelf=$libraries/usr/bin/patchelf

starter=$(echo "$tree"/usr/lib/*/apptainer/bin/starter)
private=${starter%/bin/starter}/glibc
at_run_time=${private#"$tree"}
interpreter=$(basename "$("$patchelf" --print-interpreter "$starter")")
mkdir "$private"
for name in "$interpreter" libc.so.6 libm.so.6 libseccomp.so.2 libsqlite3.so.0; do
  cp -L "$(find "$libraries" -name "$name" | head -n 1)" "$private/$name"
done
for program in "$tree/usr/bin/apptainer" "$starter"; do
  "$patchelf" --set-interpreter "$at_run_time/$interpreter" --set-rpath "$at_run_time" "$program"
done

# The version sorts just above Debian's, so that apt sees which one this is. No unmet dependency is left.
sed -i -E -e 's/^(Version: .*)$/\1+debian12/' -e '/^Depends:/s/libc6 \([^)]*\), //' -e '/^(Static-)?Built-Using:/d' "$tree/DEBIAN/control"
(cd "$tree" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | xargs -0 md5sum >DEBIAN/md5sums)
dpkg-deb --root-owner-group -Zgzip -z1 -b "$tree" "$work/apptainer_rebuilt.deb"
