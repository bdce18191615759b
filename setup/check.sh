#!/usr/bin/env bash
# check.sh [--session] [--gateway URL]: checks whether this node can run the agent server. Prints one line per check:
# `ok | warn | FAIL   name   what was found   remedy`.
#   --session       also run one scripted session of the demo rows, end to end, on an agent server of its own
#   --gateway URL   also compare clocks with the trainer's gateway (with AGENT_SERVER_URL, if set, always)
# Settings are the environment variables of scripts/serve_agents.sh, with the same defaults.
# Invariants: nothing on the machine is changed. A check that cannot run is a warning that names its precondition, so
# one fault FAILs one line. Exit codes: 0 no FAIL, 1 at least one FAIL, 2 wrong arguments. Needs bash, coreutils, awk
# and grep; the rest needs .venv.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1 # relative paths start here, as in serve_agents.sh
cache=${SWE_RL_CACHE:-$root/.cache}
case $cache in /*) ;; *) cache=$root/$cache ;; esac

arguments=("$@")
while [ $# -gt 0 ]; do
  case $1 in
    --session) shift ;;
    --gateway)
      [ $# -ge 2 ] || { echo "check.sh: --gateway needs a URL, such as http://trainer:8000" >&2; exit 2; }
      shift 2
      ;;
    -h | --help) sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "check.sh takes --session and --gateway URL, not '$1'" >&2; exit 2 ;;
  esac
done

if [ -z "${R2E_DATA_PATH:-}${R2E_SIF_DIR:-}" ]; then
  export R2E_DATA_PATH=$cache/demo/tasks R2E_SIF_DIR=$cache/demo/images
fi
export AGENT_SERVER_WORK_DIR=${AGENT_SERVER_WORK_DIR:-$cache/agent_server}
export PYTHONDONTWRITEBYTECODE=1
failed=0

# report STATUS NAME FOUND [REMEDY]: prints a line of the table and remembers a FAIL.
report() {
  printf '%-5s %-11s %s%s\n' "$1" "$2" "$(printf %s "$3" | tr '\n' ' ')" "${4:+   remedy: $4}"
  [ "$1" != FAIL ] || failed=1
}
is_installed() { command -v "$1" >/dev/null 2>&1; }
is_root() { [ "$(id -u)" -eq 0 ]; }

check_system() {
  local name=${OSTYPE:-?} kernel major minor
  kernel=$(uname -r) && IFS=.- read -r major minor _ <<<"$kernel"
  [ ! -r /etc/os-release ] || name=$(. /etc/os-release && echo "${PRETTY_NAME:-?}:${ID:-}:${VERSION_ID:-}")
  case $(uname -s):$name in
    Linux:*:debian:1[2-9] | Linux:*:debian:) report ok system "${name%%:*}, $(uname -m)" ;;
    Linux:*) report warn system "${name%%:*}, $(uname -m)" "nothing if the lines below are ok; set-up knows Debian 12, 13" ;;
    *) report FAIL system "$(uname -s)" "use a Linux machine: sandboxes are Linux namespaces" ;;
  esac
  # 5.3 has pidfd_open, by which a worker enters a sandbox's namespaces. 5.11 has overlays without root.
  if ((major * 1000 + minor < 5003)); then
    report FAIL kernel "$kernel" "install kernel 5.3 or later: workers enter sandboxes by pidfd"
  elif ((major * 1000 + minor < 5011)) && ! is_root; then
    report warn kernel "$kernel" \
      "install kernel 5.11 or later, or fuse-overlayfs (bash setup/tools.sh): before 5.11 only root mounts overlays"
  else
    report ok kernel "$kernel"
  fi
}

starter_suid() {
  find /usr/lib*/ /usr/libexec /usr/local/libexec -path '*apptainer/bin/starter-suid' -perm -4000 2>/dev/null |
    head -n 1
}

check_namespaces() {
  # Propagation unchanged, because a chroot's root is no mount point.
  local output suid options="--mount --propagation unchanged --pid --net --ipc --fork"
  suid=$(starter_suid)
  if is_root; then
    output=$(unshare $options true 2>&1) &&
      report ok namespaces "root can make mount, PID and network namespaces" && return
    report FAIL namespaces "root cannot make namespaces: $output" \
      "in a container, start it privileged (or with SYS_ADMIN and unconfined seccomp and AppArmor)"
  elif [ -n "$suid" ]; then
    report ok namespaces "setuid starter $suid"
  elif output=$(unshare --user --map-root-user $options true 2>&1); then
    report ok namespaces "unprivileged user namespaces"
  else
    report FAIL namespaces "no setuid starter, and user namespaces are refused: $output" \
      "as root: sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000 \
kernel.apparmor_restrict_unprivileged_userns=0 (those that exist), or install apptainer-suid"
  fi
}

check_apptainer() {
  local version major minor
  local remedy="bash setup/apptainer.sh as root (Debian 12, 13), \
or https://apptainer.org/docs/admin/main/installation.html"
  is_installed apptainer || { report FAIL apptainer "not on the PATH" "$remedy"; return; }
  version=$(timeout 20 apptainer --version 2>&1) ||
    { report FAIL apptainer "$(command -v apptainer) does not run: $version" "$remedy"; return; }
  version=${version##* } && IFS=. read -r major minor _ <<<"$version"
  if ! [[ $major =~ ^[0-9]+$ && ${minor:=0} =~ ^[0-9]+$ ]] || ((major * 1000 + minor < 1002)); then
    report FAIL apptainer "$version at $(command -v apptainer)" "install 1.2 or later: $remedy"
  else
    report ok apptainer "$version at $(command -v apptainer)"
  fi
}

check_squashfs() {
  local by_kernel="" by_fuse="" fuse_fault="squashfuse is missing"
  # The kernel mounts for root and for setuid starters; in a user namespace only squashfuse can.
  if is_root || [ -n "$(starter_suid)" ]; then
    grep -qw squashfs /proc/filesystems || modprobe -n squashfs 2>/dev/null && by_kernel="mounted by the kernel"
  fi
  if is_installed squashfuse || is_installed squashfuse_ll; then
    [ ! -w /dev/fuse ] || by_fuse="mounted by squashfuse"
    fuse_fault="/dev/fuse cannot be opened by this user"
  fi
  if [ -n "$by_kernel$by_fuse" ]; then
    report ok squashfs "$by_kernel${by_kernel:+${by_fuse:+, or }}$by_fuse"
  else
    report FAIL squashfs "cannot be mounted: $fuse_fault, and the kernel's module is missing or needs root" \
      "as root: bash setup/tools.sh, chmod 666 /dev/fuse, modprobe squashfs (a container: --device /dev/fuse); \
or unpack the images to folders"
  fi
}

# check_disk NAME FOLDER FAIL_MIB WARN_MIB REMEDY: free space of the folder, or of the nearest parent that exists. The
# folder must be writable if FAIL_MIB > 0.
check_disk() {
  local existing=$2 free kind
  while [ ! -e "$existing" ]; do existing=$(dirname "$existing"); done
  free=$(df -Pm "$existing" 2>/dev/null | awk 'NR == 2 { print $4 }')
  kind=$(stat -f -c %T "$existing" 2>/dev/null)
  local found="${free:-?} MiB free in $2"
  if [ "$3" -gt 0 ] && { [ ! -d "$existing" ] || [ ! -w "$existing" ]; }; then
    report FAIL "$1" "$existing is not writable" "$5"
  elif [ -z "$free" ]; then
    report warn "$1" "the free space of $2 cannot be read" "check it with df $existing"
  elif [ "$free" -lt "$3" ]; then
    report FAIL "$1" "$found, at least $3 are needed" "free some space, or $5"
  elif [ "$1" = work_dir ] && [[ $kind =~ ^(nfs|smb|cifs|lustre|ceph|gpfs|afs|fuse) ]]; then
    report warn "$1" "$found, a file system of kind $kind" \
      "set AGENT_SERVER_WORK_DIR to a local disk: SQLite's log needs shared memory and locks that others may lack"
  elif [ "$free" -lt "$4" ]; then
    report warn "$1" "$found" "free some space, or $5"
  else
    report ok "$1" "$found"
  fi
}

check_disks() {
  check_disk work_dir "$AGENT_SERVER_WORK_DIR" 512 5120 \
    "set AGENT_SERVER_WORK_DIR to a folder on a larger, writable disk"
  [ -z "${R2E_SIF_DIR:-}" ] || check_disk image_dir "$R2E_SIF_DIR" 0 1024 \
    "set R2E_SIF_DIR to a folder on a larger disk before you fetch more images"
  check_disk tmp "${TMPDIR:-/tmp}" 64 512 "set TMPDIR to a folder on a larger, writable disk"
}

check_shared_memory() {
  local free
  if [ ! -d /dev/shm ]; then
    report warn shm "/dev/shm does not exist" \
      "mount -t tmpfs tmpfs /dev/shm: gunicorn's heartbeat then stays off the disk"
    return
  fi
  free=$(df -Pm /dev/shm | awk 'NR == 2 { print $4 }')
  if [ ! -w /dev/shm ] || [ "${free:-0}" -lt 1 ]; then
    report FAIL shm "/dev/shm is full or not writable (${free:-?} MiB free)" \
      "empty it or mount -o remount,rw,size=50% /dev/shm: gunicorn keeps its heartbeat there"
  elif [ "$free" -lt 64 ]; then
    report warn shm "$free MiB free in /dev/shm" \
      "mount -o remount,size=50% /dev/shm (a container: --shm-size=1g): tests of rows may need it"
  else
    report ok shm "$free MiB free in /dev/shm"
  fi
}

check_open_files() {
  # gunicorn.conf.py: 1200 threads, each holding a response, and 2400 connections.
  local files remedy
  files=$(ulimit -n)
  remedy="ulimit -n 65536 before the server's start (systemd: LimitNOFILE=65536; hard limit here: $(ulimit -Hn))"
  if [ "$files" = unlimited ] || [ "$files" -ge 3600 ]; then
    report ok files "$files open files"
  elif [ "$files" -lt 512 ]; then
    report FAIL files "$files open files, at least 512 are needed" "$remedy"
  else
    report warn files "$files open files; 1200 threads and 2400 connections need 3600" "$remedy"
  fi
}

check_proxies() {
  local name set=""
  for name in HTTP_PROXY http_proxy HTTPS_PROXY https_proxy ALL_PROXY all_proxy; do
    [ -z "${!name:-}" ] || set+=" $name"
  done
  if [ -z "$set" ]; then
    report ok proxies "none set"
  elif [ "${AGENT_SERVER_PROXIES:-direct}" = environment ]; then
    report ok proxies "set:$set, for model calls too (AGENT_SERVER_PROXIES=environment), except to loopback and NO_PROXY"
  else
    report ok proxies "set:$set, for downloads only: model calls are direct"
  fi
}

# Returns 1 if the checks in Python cannot run.
check_packages() {
  local python=$root/.venv/bin/python missing folder fault remedy="bash setup/setup.sh agents"
  if ! [ -x "$python" ] || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    fault="$root/.venv does not exist"
    [ ! -e "$root/.venv" ] || fault="$root/.venv has no Python 3.11 or later that this user can run"
    report FAIL venv "$fault" "$remedy"
    return 1
  fi
  folder=$(mktemp -d) ||
    { report FAIL venv "no temporary folder can be made" "make \${TMPDIR:-/tmp} writable"; return 1; }
  missing=$(LITELLM_LOCAL_MODEL_COST_MAP=True MSWEA_SILENT_STARTUP=1 MSWEA_GLOBAL_CONFIG_DIR=$folder \
    "$python" - 2>/dev/null <<'END'
import importlib
for name in "requests pydantic flask gunicorn minisweagent litellm pyarrow yaml prometheus_client swebench".split():
    try:
        importlib.import_module(name)
    except Exception as error:
        print(f"{name} ({error})", end="; ")
print("done")
END
  )
  rm -rf "$folder"
  [ "$missing" = done ] &&
    { report ok venv "$("$python" --version), the agent server's packages can be imported"; return; }
  report FAIL venv "packages cannot be imported: ${missing:-all}" "rm -rf $root/.venv && $remedy"
  return 1
}

check_system
check_namespaces
check_apptainer
check_squashfs
check_disks
check_shared_memory
check_open_files
check_proxies
if check_packages; then
  SWE_RL_CACHE=$cache exec .venv/bin/python -m setup.check --failed "$failed" "${arguments[@]}"
fi
for name in settings memory processes agent rows images sandbox loops port clock; do
  report warn "$name" "not tried: needs .venv" "bash setup/setup.sh agents, then run this again"
done
case " ${arguments[*]} " in
  *" --session "*)
    report FAIL session "not tried: needs .venv" "bash setup/setup.sh agents, then run this again"
    ;;
esac
exit "$failed"
