#!/usr/bin/env bash
# swebench_images/root.sh FOLDER: makes a Debian 11 root in FOLDER, with Python 3.9 and git, and the conda layout of
# SWE-bench's images: /opt/miniconda3 with an environment `testbed` that /root/.bashrc activates.
# Invariant: FOLDER is complete, because the tree is made elsewhere and renamed.
set -euo pipefail
folder=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/../../setup/log.sh"
[ -d "$folder" ] && exit 0
command -v mmdebstrap >/dev/null || fail "mmdebstrap is missing" "bash setup/tools.sh"
[ "$(id -u)" -eq 0 ] || fail "only root can make a Debian tree" "run this as root"
mkdir -p "$(dirname "$folder")"
require_space "$(dirname "$folder")" 3000 "the images"
work=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$work" "$work.log"' EXIT

log "building a Debian 11 tree with Python 3.9"
mirror=$(apt-get indextargets --format '$(REPO_URI)' \
  'Created-By: Packages' 'Origin: Debian' 'Component: main' 2>/dev/null | grep -v security | head -n 1 || true)
# Debian 11 has left its last support: its Release file may be past its date, or lie in the archive only.
built=
for source in ${mirror:+"$mirror"} http://archive.debian.org/debian; do
  if run_logged "$work.log" mmdebstrap --variant=minbase --include=python3,python3-distutils,git,patch,procps \
    --aptopt='Acquire::Check-Valid-Until "false"' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    bullseye "$work/root" "$source"; then
    built=1
    break
  fi
  rm -rf "$work/root"
done
[ "$built" ] || fail "mmdebstrap cannot build Debian 11" "see the log's last lines above, then run this again"

log "laying out conda's folders"
conda=$work/root/opt/miniconda3
for prefix in "$conda" "$conda/envs/testbed"; do
  # A whole Python, not a virtual environment: its prefix follows from where it lies, also through links to it.
  mkdir -p "$prefix/bin" "$prefix/lib"
  cp -a "$work/root/usr/bin/python3.9" "$prefix/bin/python3.9"
  cp -a "$work/root/usr/lib/python3.9" "$prefix/lib/python3.9"
  mkdir -p "$prefix/lib/python3.9/site-packages"
  sed -i 's/dist-packages/site-packages/' "$prefix/lib/python3.9/site.py" # Debian's own name
  ln -s python3.9 "$prefix/bin/python3"
  ln -s python3.9 "$prefix/bin/python"
done
mkdir -p "$conda/etc/profile.d"
cat >"$conda/etc/profile.d/conda.sh" <<'END'
# Stands for conda's own: `conda activate [NAME]` puts the environment's programs first.
conda() {
  [ "${1:-}" = activate ] || { echo "conda: only activate is known here" >&2; return 1; }
  local prefix=/opt/miniconda3
  [ "${2:-base}" = base ] || prefix=$prefix/envs/$2
  [ -d "$prefix" ] || { echo "conda: no environment $2" >&2; return 1; }
  [ -z "${CONDA_PREFIX:-}" ] || PATH=${PATH#"$CONDA_PREFIX/bin:"}
  export PATH="$prefix/bin:$PATH" CONDA_PREFIX=$prefix CONDA_DEFAULT_ENV=${2:-base} CONDA_SHLVL=1
}
END
printf '. /opt/miniconda3/etc/profile.d/conda.sh\nconda activate "$@"\n' >"$conda/bin/activate"
echo 'source /opt/miniconda3/etc/profile.d/conda.sh && conda activate testbed' >"$work/root/root/.bashrc"
mkdir -p "$work/root/.singularity.d/env"
echo 'export PATH=/opt/miniconda3/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
  >"$work/root/.singularity.d/env/10-docker2singularity.sh"
chmod 755 "$work/root/.singularity.d/env/10-docker2singularity.sh"
chmod 755 "$work/root"
mv "$work/root" "$folder"
