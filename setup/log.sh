#!/usr/bin/env bash
# Messages, errors and command logs of the set-up scripts. To be sourced, not run.
# Invariant: sourcing this changes nothing on the machine. Exit code 78 (EX_CONFIG) means that a person must act first.

log() { printf '[setup] %s\n' "$*" >&2; }

# fail REASON REMEDY: ends the script with exit code 78, after printing the reason and the remedy.
fail() {
  printf '[setup] error: %s\n[setup] remedy: %s\n' "$1" "$2" >&2
  exit 78
}

# run_logged LOG_FILE COMMAND...: runs the command and appends its output to LOG_FILE. On failure it prints the last
# 15 lines. Returns the command's exit code.
run_logged() {
  local log_file=$1 code=0
  shift
  printf '\n$ %s\n' "$*" >>"$log_file"
  "$@" >>"$log_file" 2>&1 </dev/null || code=$?
  if [ "$code" -ne 0 ]; then
    printf '[setup] failed (exit code %s): %s\n' "$code" "$*" >&2
    tail -n 15 "$log_file" | sed 's/^/[setup]   /' >&2
    printf '[setup] whole log: %s\n' "$log_file" >&2
  fi
  return "$code"
}

# require_space FOLDER MEGABYTES TASK: fails if the folder's file system has less free space than the task needs.
# Checked first, because otherwise the task would fail half-way.
require_space() {
  local free
  mkdir -p "$1" || fail "cannot create $1" "make its parent folder writable, or set SWE_RL_CACHE to a writable folder"
  free=$(df -Pm "$1" | awk 'NR == 2 { print $4 }')
  [ "$free" -ge "$2" ] || fail "$3 needs $2 MB free in $1, which has $free MB" \
    "free some space there, or set SWE_RL_CACHE to a folder on a larger disk"
}
