# How every set-up script speaks: what it is doing, and, where it cannot go on, why and what to do. Sourced, never run.
# Invariant: nothing here changes the machine. Exit code 78 (EX_CONFIG) means "a person has to do something first".

say() { printf '[setup] %s\n' "$*" >&2; }

# stop REASON REMEDY: ends the script with the reason and the exact remedy.
stop() {
  printf '[setup] cannot go on: %s\n[setup] remedy: %s\n' "$1" "$2" >&2
  exit 78
}

# logged LOG COMMAND...: runs the command with its output in LOG; on failure shows the end of it and returns the command's exit code.
logged() {
  local log=$1 code=0
  shift
  printf '\n$ %s\n' "$*" >>"$log"
  "$@" >>"$log" 2>&1 </dev/null || code=$?
  if [ "$code" -ne 0 ]; then
    printf '[setup] failed (%s): %s\n' "$code" "$*" >&2
    tail -n 15 "$log" | sed 's/^/[setup]   /' >&2
    printf '[setup] whole log: %s\n' "$log" >&2
  fi
  return "$code"
}

# need_space DIRECTORY MEGABYTES WHAT: stops early where a step would only die half-way on a full disk.
need_space() {
  local free
  mkdir -p "$1" || stop "cannot create $1" "make its parent folder writable, or set SWE_RL_CACHE to a folder that is"
  free=$(df -Pm "$1" | awk 'NR == 2 { print $4 }')
  [ "$free" -ge "$2" ] || stop "$3 needs $2 MB free in $1, which has $free MB" "free some space there, or set SWE_RL_CACHE to a folder on a larger disk"
}
