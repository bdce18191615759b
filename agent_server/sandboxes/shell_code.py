"""Shell code that a sandbox's shell and its commands run: how a command's bash is started.

A command of the agent or of the tests gets the image's environment. Its bash starts with another file as output. In
place of the environment's startup file (BASH_ENV) it sources a script of ours, which sources that file and then
switches to the command's own output. So what bash and the startup file print can be told from what the command prints.
A command of the server's own (`clean`) starts without all that.
Invariant: a command has no descriptor but its output. The shell's own messages ("Killed") are not part of an output.
"""

import fcntl
import os

from agent_server.sandboxes.shell_output import OutputFiles

BASH = ("bash", "--noprofile", "--norc", "-p")  # -p: no startup file, and no functions or options of the environment
NUMBERS_FOR_BASH = 20
FILE_LIMIT_BYTES = 4 * 2**30  # RLIMIT_FSIZE: bound of an output file between two checks of its size
# Variables that change what programs print or do, whatever their arguments are.
IGNORED = (
    "BASH_ENV ENV PROMPT_COMMAND CDPATH GLOBIGNORE POSIXLY_CORRECT LANGUAGE"
    " GREP_OPTIONS GREP_COLOR GREP_COLORS TAR_OPTIONS GZIP LS_BLOCK_SIZE BLOCK_SIZE BLOCKSIZE"
    " ${!GIT_@} ${!LC_@}"
)

# run: $1 nonce, $2 directory, $3 descriptor of the output, $4 -c or --, $5 command or file, then NAME=VALUE.
# clean: $1 nonce, $2 directory, $3 -c or --, $4 command or file.
# Where the image has setsid, the command gets its own process group: the shell's group is the worker's, because PID
# namespaces do not bound groups, and `kill 0` would reach the worker.
PRELUDE = """
ulimit -c 0 -f {file_limit}
exec 2>/dev/null
setsid=$(type -P setsid)
while IFS= read -rd '' entry; do  # the variables with bash's options, which in this shell have its own
  case $entry in SHELLOPTS=*|BASHOPTS=*) options="${{options-env}} $entry";; esac
done </proc/$$/environ
oom() {{ [ -z "$oom_first" ] || echo 1000 >/proc/self/oom_score_adj; }}
run() {{
  ( oom
    for assignment in "${{@:6}}"; do export "$assignment"; done
    cd -- "$2" || exit
    case "${{POSIXLY_CORRECT+posix}} $options" in *posix*|*privileged*)  # then bash sources no file
      exec $setsid $options bash "$4" "$5" >&{output} 2>&{output} {output}>&- {script}<&-
    esac
    [ -z "${{BASH_ENV+x}}" ] || export SANDBOX_STARTUP=$BASH_ENV
    BASH_ENV=/proc/self/fd/{script} exec $setsid $options bash "$4" "$5"
  ) {output}>>/proc/self/fd/$3 >>/proc/self/fd/{startup} 2>&1 </dev/null {closed}
  printf '\\n%s %s\\n' "$1" "$?"
}}
clean() {{
  ( oom
    unset -v {ignored}
    export LC_ALL=C
    cd -- "$2" && exec $setsid {bash} "$3" "$4"
  ) >>/proc/self/fd/{answers} 2>>/proc/self/fd/{errors} </dev/null {script}<&- {closed}
  printf '\\n%s %s\\n' "$1" "$?"
}}
"""
# Makes commands the kernel's first choice when a cgroup's memory is used up. Else it can be Apptainer's own process.
OOM_KILL_COMMANDS_FIRST = "oom_first=yes\n"

# bash expands the value of BASH_ENV, and a missing file is no error.
STARTUP_SCRIPT = """
if [ -z "${{SANDBOX_STARTUP+x}}" ]; then unset -v BASH_ENV; else
  BASH_ENV=$SANDBOX_STARTUP; unset -v SANDBOX_STARTUP
  eval "SANDBOX_STARTUP=\\"$BASH_ENV\\""
  [ ! -f "$SANDBOX_STARTUP" ] || . "$SANDBOX_STARTUP"
  unset -v SANDBOX_STARTUP
fi
\\exec >&{output} 2>&{output} {output}>&- {script}<&-
"""


def prelude(outputs: OutputFiles, script: int) -> str:
    """What the shell runs first. `script`: descriptor of `open_startup_script`."""
    return PRELUDE.format(
        file_limit=FILE_LIMIT_BYTES // 1024,
        output=output_descriptor(outputs, script),
        script=script,
        startup=outputs.startup.descriptor,
        answers=outputs.answers.descriptor,
        errors=outputs.errors.descriptor,
        closed=" ".join(f"{number}<&-" for number in outputs.descriptors),
        ignored=IGNORED,
        bash=" ".join(BASH),
    )


def open_startup_script(outputs: OutputFiles) -> int:
    """Descriptor of a file with the commands' startup script, which no process can change."""
    descriptor = os.memfd_create("startup", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(descriptor, _startup_script(outputs, descriptor).encode())
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def _startup_script(outputs: OutputFiles, script: int) -> str:
    """What a command's bash sources before the command. `script`: the descriptor of the file that holds it."""
    return STARTUP_SCRIPT.format(output=output_descriptor(outputs, script), script=script)


def output_descriptor(outputs: OutputFiles, script: int) -> int:
    """The number of a command's output until its bash has sourced the startup script. It is free: bash itself takes the
    lowest numbers from 10 on."""
    return max(*outputs.descriptors, script) + NUMBERS_FOR_BASH
