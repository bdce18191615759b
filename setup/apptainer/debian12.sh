#!/usr/bin/env bash
# apptainer/debian12.sh WORK PACKAGE: rebuilds Debian's apptainer package as WORK/apptainer_rebuilt.deb for Debian 12.
# Apptainer needs two symbols newer than Debian 12's glibc. The rebuilt package carries Debian 13's glibc in a folder
# of its own, and interpreter and rpath of apptainer's programs point there. dpkg owns every file, so `apt-get remove
# apptainer` removes them all. WORK must hold the downloaded libc6 (Debian 13), libseccomp2, libsqlite3-0 and patchelf
# (Debian 12).
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
installed_folder=${private#"$tree"}
interpreter=$(basename "$("$patchelf" --print-interpreter "$starter")")
mkdir "$private"
for name in "$interpreter" libc.so.6 libm.so.6 libseccomp.so.2 libsqlite3.so.0; do
  cp -L "$(find "$libraries" -name "$name" | head -n 1)" "$private/$name"
done
for program in "$tree/usr/bin/apptainer" "$starter"; do
  "$patchelf" --set-interpreter "$installed_folder/$interpreter" --set-rpath "$installed_folder" "$program"
done

# The version sorts just above Debian's, so that apt can tell the two apart. The dependency on a newer libc6 goes.
sed -i -E -e 's/^(Version: .*)$/\1+debian12/' -e '/^Depends:/s/libc6 \([^)]*\), //' -e '/^(Static-)?Built-Using:/d' \
  "$tree/DEBIAN/control"
(cd "$tree" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | xargs -0 md5sum >DEBIAN/md5sums)
dpkg-deb --root-owner-group -Zgzip -z1 -b "$tree" "$work/apptainer_rebuilt.deb"
