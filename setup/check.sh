#!/usr/bin/env bash
# check.sh [--session] [--gateway URL]: can this node run the agent server? A line a check: `ok | warn | FAIL   name   found   remedy`.
#   --session       also run one scripted session of the demo rows, end to end, on an agent server of its own
#   --gateway URL   also compare clocks with the trainer's gateway there (AGENT_SERVER_URL, if set, is compared always)
# Its settings are the environment variables of scripts/serve_agents.sh, with the same defaults.
# Invariants: nothing on the machine is changed; what cannot be tried is a warning that names what to do first, so one fault FAILs one
# line. Exit codes: 0 nothing FAILs, 1 something does, 2 wrong arguments. Needs bash, coreutils, awk and grep; the rest needs the .venv.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1 # relative paths count from here, as for serve_agents.sh
cache=${SWE_RL_CACHE:-$root/.cache}
case $cache in /*) ;; *) cache=$root/$cache ;; esac

arguments=("$@")
while [ $# -gt 0 ]; do
  case $1 in
    --session) shift ;;
    --gateway) [ $# -ge 2 ] || { echo "check.sh: --gateway needs a URL, such as http://trainer:8000" >&2; exit 2; }; shift 2 ;;
    -h | --help) sed -n '2,5s/^# //p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "check.sh takes --session and --gateway URL, not '$1'" >&2; exit 2 ;;
  esac
done

if [ -z "${R2E_DATA_PATH:-}${R2E_SIF_DIR:-}" ]; then
  export R2E_DATA_PATH=$cache/demo/tasks R2E_SIF_DIR=$cache/demo/images
fi
export AGENT_SERVER_WORK_DIR=${AGENT_SERVER_WORK_DIR:-$cache/agent_server}
export PYTHONDONTWRITEBYTECODE=1
failed=0

# line STATUS NAME FOUND [REMEDY]
line() {
  printf '%-5s %-11s %s%s\n' "$1" "$2" "$(printf %s "$3" | tr '\n' ' ')" "${4:+   remedy: $4}"
  [ "$1" != FAIL ] || failed=1
}
# number NAME DEFAULT: the value of a setting; one that is no number is told by the line `settings`.
number() { [[ ${!1:-} =~ ^[0-9]+$ ]] && echo "${!1}" || echo "$2"; }
sessions=$(($(number AGENT_SERVER_TRAIN_CONCURRENCY 16) + $(number AGENT_SERVER_EVAL_CONCURRENCY 16)))
sandbox_mib=$(number AGENT_SERVER_SANDBOX_MEMORY_MIB 4096)
read_file() { cat "$1" 2>/dev/null; }
is_there() { command -v "$1" >/dev/null 2>&1; }
is_root() { [ "$(id -u)" -eq 0 ]; }

check_system() {
  local name=${OSTYPE:-?} kernel major minor
  kernel=$(uname -r) && IFS=.- read -r major minor _ <<<"$kernel"
  [ ! -r /etc/os-release ] || name=$(. /etc/os-release && echo "${PRETTY_NAME:-?}:${ID:-}:${VERSION_ID:-}")
  case $(uname -s):$name in
    Linux:*:debian:1[2-9] | Linux:*:debian:) line ok system "${name%%:*}, $(uname -m)" ;;
    Linux:*) line warn system "${name%%:*}, $(uname -m)" "nothing, if the lines below are ok; the set-up scripts know Debian 12 and 13" ;;
    *) line FAIL system "$(uname -s)" "use a Linux machine: sandboxes are Linux namespaces" ;;
  esac
  # 5.3: pidfd_open, by which a worker enters a sandbox's namespaces. 5.11: overlays that need no root.
  if ((major * 1000 + minor < 5003)); then
    line FAIL kernel "$kernel" "a kernel of 5.3 or later: workers look into sandboxes by pidfd"
  elif ((major * 1000 + minor < 5011)) && ! is_root; then
    line warn kernel "$kernel" "a kernel of 5.11 or later, or fuse-overlayfs (bash setup/tools.sh): before it only root can mount overlays"
  else
    line ok kernel "$kernel"
  fi
}

starter_suid() { find /usr/lib*/ /usr/libexec /usr/local/libexec -path '*apptainer/bin/starter-suid' -perm -4000 2>/dev/null | head -n 1; }

check_namespaces() {
  # Propagation unchanged: a chroot's root is no mount point.
  local what suid new="--mount --propagation unchanged --pid --net --ipc --fork"
  suid=$(starter_suid)
  if is_root; then
    what=$(unshare $new true 2>&1) && line ok namespaces "root can make mount, PID and network namespaces" && return
    line FAIL namespaces "root cannot make namespaces: $what" "in a container, start it privileged (or with SYS_ADMIN and unconfined seccomp and AppArmor)"
  elif [ -n "$suid" ]; then
    line ok namespaces "setuid starter $suid"
  elif what=$(unshare --user --map-root-user $new true 2>&1); then
    line ok namespaces "unprivileged user namespaces"
  else
    line FAIL namespaces "no setuid starter, and user namespaces are refused: $what" \
      "as root: sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000 kernel.apparmor_restrict_unprivileged_userns=0 (those that exist), or install apptainer-suid"
  fi
}

check_apptainer() {
  local version major minor
  local remedy="bash setup/apptainer.sh as root (Debian 12, 13), or https://apptainer.org/docs/admin/main/installation.html"
  is_there apptainer || { line FAIL apptainer "not on the PATH" "$remedy"; return; }
  version=$(timeout 20 apptainer --version 2>&1) || { line FAIL apptainer "$(command -v apptainer) does not run: $version" "$remedy"; return; }
  version=${version##* } && IFS=. read -r major minor _ <<<"$version"
  if ! [[ $major =~ ^[0-9]+$ && ${minor:=0} =~ ^[0-9]+$ ]] || ((major * 1000 + minor < 1002)); then
    line FAIL apptainer "$version at $(command -v apptainer)" "1.2 or later: $remedy"
  else
    line ok apptainer "$version at $(command -v apptainer)"
  fi
}

check_squashfs() {
  local by_kernel="" by_fuse=""
  # The kernel's is for root and setuid starters; in a user namespace there is squashfuse alone.
  if is_root || [ -n "$(starter_suid)" ]; then
    if grep -qw squashfs /proc/filesystems || modprobe -n squashfs 2>/dev/null; then by_kernel="mounted by the kernel"; fi
  fi
  if is_there squashfuse || is_there squashfuse_ll; then [ ! -w /dev/fuse ] || by_fuse="mounted by squashfuse"; fi
  if [ -n "$by_kernel$by_fuse" ]; then
    line ok squashfs "$by_kernel${by_kernel:+${by_fuse:+, or }}$by_fuse"
  else
    line FAIL squashfs "no way to mount it: $(is_there squashfuse && echo "/dev/fuse cannot be opened by this user" || echo "squashfuse is missing"), and the kernel's is missing or needs root" \
      "as root: bash setup/tools.sh, chmod 666 /dev/fuse, modprobe squashfs (a container: --device /dev/fuse); or unpack the images to folders"
  fi
}

# check_disk NAME FOLDER FAIL_MIB WARN_MIB REMEDY: free in the folder, or where it would be made; it is written to if FAIL_MIB > 0.
check_disk() {
  local at=$2 free kind
  while [ ! -e "$at" ]; do at=$(dirname "$at"); done
  free=$(df -Pm "$at" 2>/dev/null | awk 'NR == 2 { print $4 }')
  kind=$(stat -f -c %T "$at" 2>/dev/null)
  local found="${free:-?} MiB free in $2"
  if [ "$3" -gt 0 ] && { [ ! -d "$at" ] || [ ! -w "$at" ]; }; then
    line FAIL "$1" "$at cannot be written" "$5"
  elif [ -z "$free" ]; then
    line warn "$1" "the free space of $2 cannot be read" "look with df $at"
  elif [ "$free" -lt "$3" ]; then
    line FAIL "$1" "$found, at least $3 are needed" "free some space, or $5"
  elif [ "$1" = work_dir ] && [[ $kind =~ ^(nfs|smb|cifs|lustre|ceph|gpfs|afs|fuse) ]]; then
    line warn "$1" "$found, a file system of kind $kind" "set AGENT_SERVER_WORK_DIR to a local disk: SQLite's log needs shared memory and locks that such file systems may lack"
  elif [ "$free" -lt "$4" ]; then
    line warn "$1" "$found" "free some space, or $5"
  else
    line ok "$1" "$found"
  fi
}

check_disks() {
  local here="set AGENT_SERVER_WORK_DIR to a folder on a larger, writable disk"
  check_disk work_dir "$AGENT_SERVER_WORK_DIR" 512 5120 "$here"
  [ -z "${R2E_SIF_DIR:-}" ] || check_disk image_dir "$R2E_SIF_DIR" 0 1024 "set R2E_SIF_DIR to a folder on a larger disk before you fetch more images"
  check_disk tmp "${TMPDIR:-/tmp}" 64 512 "set TMPDIR to a folder on a larger, writable disk"
}

check_memory() {
  local available swap limit used free
  if [ ! -d /dev/shm ]; then
    line warn shm "there is no /dev/shm" "mount -t tmpfs tmpfs /dev/shm: gunicorn's heartbeat then stays off the disk"
  else
    free=$(df -Pm /dev/shm | awk 'NR == 2 { print $4 }')
    if [ ! -w /dev/shm ] || [ "${free:-0}" -lt 1 ]; then
      line FAIL shm "/dev/shm is full or cannot be written (${free:-?} MiB free)" "empty it or mount -o remount,rw,size=50% /dev/shm: gunicorn keeps its heartbeat there"
    elif [ "$free" -lt 64 ]; then
      line warn shm "$free MiB free in /dev/shm" "mount -o remount,size=50% /dev/shm (a container: --shm-size=1g): tests of rows may need it"
    else
      line ok shm "$free MiB free in /dev/shm"
    fi
  fi
  available=$(awk '$1 == "MemAvailable:" { print int($2 / 1024) }' /proc/meminfo)
  swap=$(awk '$1 == "SwapFree:" { print int($2 / 1024) }' /proc/meminfo)
  limit=$(read_file /sys/fs/cgroup/memory.max) used=$(read_file /sys/fs/cgroup/memory.current)
  if [[ $limit =~ ^[0-9]+$ && $used =~ ^[0-9]+$ ]] && (((limit - used) / 1048576 < available)); then available=$(((limit - used) / 1048576)); fi
  local found="$available MiB available, $swap MiB swap free" all=$((sessions * sandbox_mib))
  if [ "$available" -lt $((sandbox_mib + 512)) ]; then
    line FAIL memory "$found: less than one sandbox may use ($sandbox_mib MiB) and the server" "more memory, or a lower AGENT_SERVER_SANDBOX_MEMORY_MIB (and ..._DISK_MIB below it)"
  elif [ "$available" -lt "$all" ]; then
    line warn memory "$found; $sessions sandboxes at their limit of $sandbox_mib MiB use $all" "nothing, if sessions use less; else lower AGENT_SERVER_TRAIN_CONCURRENCY, ..._EVAL_CONCURRENCY or ..._SANDBOX_MEMORY_MIB"
  else
    line ok memory "$found"
  fi
}

check_limits() {
  local files processes all=$((1200 + sessions * $(number AGENT_SERVER_SANDBOX_PROCESSES 512))) least=$((1200 + sessions * 8)) value
  # gunicorn.conf.py: 1200 threads, each holding an answer, and 2400 connections.
  files=$(ulimit -n)
  if [ "$files" = unlimited ] || [ "$files" -ge 3600 ]; then
    line ok files "$files open files"
  elif [ "$files" -lt 512 ]; then
    line FAIL files "$files open files" "ulimit -n 65536 before the server's start (systemd: LimitNOFILE=65536; hard limit here: $(ulimit -Hn))"
  else
    line warn files "$files open files; 1200 threads and 2400 connections need 3600" "ulimit -n 65536 before the server's start (systemd: LimitNOFILE=65536; hard limit here: $(ulimit -Hn))"
  fi
  processes=$(ulimit -u)
  for value in "$(read_file /proc/sys/kernel/pid_max)" "$(read_file /proc/sys/kernel/threads-max)" "$(read_file /sys/fs/cgroup/pids.max)"; do
    if [[ $value =~ ^[0-9]+$ ]] && { [ "$processes" = unlimited ] || [ "$value" -lt "$processes" ]; }; then processes=$value; fi
  done
  local remedy="raise the lowest of ulimit -u, kernel.pid_max, kernel.threads-max and the cgroup's pids.max to $all, or lower AGENT_SERVER_SANDBOX_PROCESSES"
  if [ "$processes" = unlimited ] || [ "$processes" -ge "$all" ]; then
    line ok processes "$processes processes and threads"
  elif [ "$processes" -lt "$least" ]; then
    line FAIL processes "$processes processes and threads; the server has 1200 threads, and $sessions sandboxes at least 8 processes each" "$remedy"
  else
    line warn processes "$processes processes and threads; all sandboxes at their limit use $all" "$remedy"
  fi
}

check_proxies() {
  local name set="" except=",${NO_PROXY:-},${no_proxy:-},"
  for name in HTTP_PROXY http_proxy HTTPS_PROXY https_proxy ALL_PROXY all_proxy; do
    [ -z "${!name:-}" ] || set+=" $name"
  done
  if [ -z "$set" ]; then
    line ok proxies "none set"
  elif [[ ${except// /} =~ ,(\*|localhost|127\.0\.0\.1|127\.0\.0\.0/8), ]]; then
    line ok proxies "set:$set, not for loopback"
  else
    line warn proxies "set:$set, for loopback too" "export NO_PROXY=127.0.0.1,localhost (and the trainer's host): model calls of sessions would go through the proxy"
  fi
}

# Returns 1 where the checks in Python cannot run.
check_packages() {
  local python=$root/.venv/bin/python missing folder remedy="bash setup/setup.sh agents"
  if ! [ -x "$python" ] || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    line FAIL venv "$([ -e "$root/.venv" ] && echo "this user can run no Python 3.11 or later" || echo "there is nothing") in $root/.venv" "$remedy"
    return 1
  fi
  folder=$(mktemp -d) || { line FAIL venv "no temporary folder can be made" "make \${TMPDIR:-/tmp} writable"; return 1; }
  missing=$(LITELLM_LOCAL_MODEL_COST_MAP=True MSWEA_SILENT_STARTUP=1 MSWEA_GLOBAL_CONFIG_DIR=$folder "$python" - 2>/dev/null <<'END'
import importlib
for name in "requests pydantic flask gunicorn minisweagent litellm pyarrow yaml prometheus_client swebench".split():
    try:
        importlib.import_module(name)
    except Exception as wrong:
        print(f"{name} ({wrong})", end="; ")
print("done")
END
  )
  rm -rf "$folder"
  [ "$missing" = done ] && { line ok venv "$("$python" --version), the agent server's packages can be imported"; return; }
  line FAIL venv "cannot be imported: ${missing:-all}" "rm -rf $root/.venv && $remedy"
  return 1
}

check_system
check_namespaces
check_apptainer
check_squashfs
check_disks
check_memory
check_limits
check_proxies
if check_packages; then
  SWE_RL_CACHE=$cache exec .venv/bin/python -m setup.check --failed "$failed" "${arguments[@]}"
fi
for name in settings agent rows images sandbox loops port clock; do
  line warn "$name" "not tried: it needs the .venv" "bash setup/setup.sh agents, then this again"
done
case " ${arguments[*]} " in *" --session "*) line FAIL session "not tried: it needs the .venv" "bash setup/setup.sh agents, then this again" ;; esac
exit "$failed"
