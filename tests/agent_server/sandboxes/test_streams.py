"""Streams of commands: what a command prints is told from what its environment and what other processes print."""

import os

import pytest

from agent_server.sandboxes import apptainer, shell, shell_output
from agent_server.sandboxes.shell import PersistentShell
from agent_server.sandboxes.shell_code import BASH
from client.errors import SandboxFileError
from tests.agent_server.conftest import eventually
from tests.agent_server.sandboxes.exceed_limits import LIMITS

STARTUP = "/tmp/swe_startup"
NO_LOCALE = {"LC_ALL": "xx_XX.UTF-8"}
WRITER = "while :; do echo noise; echo noise >&2; done"  # some ten thousand lines a second


@pytest.fixture(params=["apptainer", "plain bash"])
def start(request, tmp_path, demo_image):
    """A factory of sandboxes whose environment has these variables."""
    started = []

    def start(env: dict[str, str], default_env: dict[str, str] | None = None):
        options = {"env": env, "default_env": default_env or {}, "start_timeout_s": 30}
        if request.param == "apptainer":
            started.append(apptainer.start(demo_image, scratch=tmp_path, **options))
        else:
            path = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root"}
            started.append(PersistentShell([*BASH, "-s"], **options | {"env": path | env}))
        return started[-1]

    yield start
    for sandbox in started:
        sandbox.run_clean(f"rm -rf {STARTUP} /tmp/swe_*", cwd="/", timeout_s=10)
        sandbox.close()


def run(sandbox, command, **options):
    return sandbox.run(command, cwd="/tmp", timeout_s=10, **options)


def clean(sandbox, command):
    return sandbox.run_clean(command, cwd="/tmp", timeout_s=10)


@pytest.mark.parametrize("end", ["", "return 0\n", "set -eu\n", "exec 3>&1 7>&2\n", "shopt -s expand_aliases\n"])
def test_a_startup_file_that_prints_is_sourced_and_told_apart(start, end):
    sandbox = start({"BASH_ENV": STARTUP})
    sandbox.write_file(STARTUP, f"export FROM_STARTUP=yes; defined() {{ echo called; }}\necho out; echo err >&2\n{end}")
    result = run(sandbox, "echo $FROM_STARTUP $BASH_ENV; defined; echo last >&2")
    assert (result.startup, result.own_output) == ("out\nerr\n", f"yes {STARTUP}\ncalled\nlast\n")
    assert result.output == result.startup + result.own_output and result.returncode == 0
    # A bash within the command sources it again, as it would without us.
    assert run(sandbox, "bash -c 'echo inner'").own_output == "out\nerr\ninner\n"
    answer = clean(sandbox, "echo ${FROM_STARTUP-none} ${BASH_ENV-none}; echo problem >&2; type defined")
    assert answer.output == "none none\n" and answer.errors.startswith("problem\n") and "out" not in answer.errors
    assert answer.returncode == 1 and "defined: not found" in answer.message


@pytest.mark.parametrize("value", ["$HOME/../tmp/swe_startup", "/tmp/./$(echo swe_startup)"])
def test_the_name_of_the_startup_file_is_expanded(start, value):
    sandbox = start({"BASH_ENV": value})
    sandbox.write_file(STARTUP, "echo sourced\n")
    result = run(sandbox, "echo begun")
    assert (result.startup, result.own_output) == ("sourced\n", "begun\n")


def test_a_startup_file_may_be_missing_or_end_the_command(start):
    sandbox = start({"BASH_ENV": STARTUP})
    assert run(sandbox, "echo begun").own_output == run(sandbox, "echo begun").output == "begun\n"
    sandbox.write_file(STARTUP, "echo no; exit 4\n")
    result = run(sandbox, "echo begun")
    assert (result.startup, result.own_output, result.returncode) == ("no\n", "", 4)
    assert clean(sandbox, "echo begun").output == "begun\n"


def test_an_environment_without_startup_file_is_left_as_it_is(start):
    sandbox = start({"ENV": STARTUP, "PROMPT_COMMAND": "echo prompt"})
    sandbox.write_file(STARTUP, "echo sourced\n")
    result = run(sandbox, "env; set; ls /proc/self/fd; sh -c 'echo inner'")
    names = {line.partition("=")[0] for line in result.output.splitlines()}
    assert not names & {"BASH_ENV", "SANDBOX_STARTUP", "sourced", "prompt"} and result.startup == ""
    # The numbers of the command's descriptors, and the one with which ls reads the folder.
    assert result.output.endswith("\n0\n1\n2\n3\ninner\n")


def test_a_missing_locale_is_the_environments_warning(start):
    sandbox = start(NO_LOCALE)
    result = run(sandbox, "echo $LC_ALL")
    assert "cannot change locale (xx_XX.UTF-8)" in result.startup and result.own_output == "xx_XX.UTF-8\n"
    answer = clean(sandbox, "echo $LC_ALL; printf '\\xff'; bash -c 'echo inner'")
    assert (answer.data, answer.errors) == (b"C\n\xffinner\n", "")


@pytest.mark.parametrize(
    ("env", "printed"),
    [
        ({"POSIXLY_CORRECT": "1"}, "begun\n"),
        ({"SHELLOPTS": "posix"}, "begun\n"),
        ({"SHELLOPTS": "xtrace"}, "+ echo begun\nbegun\n"),
    ],
)
def test_options_of_the_environment_are_the_commands(start, env, printed):
    sandbox = start(env)
    assert run(sandbox, "echo begun").own_output == printed
    answer = clean(sandbox, "echo ${POSIXLY_CORRECT-none}; echo problem >&2")
    assert (answer.output, answer.errors) == ("none\n", "problem\n")


def test_functions_of_the_environment_are_the_commands():
    """Apptainer drops them from `env`, but not from an image's environment."""
    env = {"PATH": "/usr/bin:/bin", "BASH_FUNC_echo%%": "() { printf 'not begun\\n'; }"}
    sandbox = PersistentShell([*BASH, "-s"], start_timeout_s=10, env=env)
    try:
        assert run(sandbox, "echo begun").own_output == "not begun\n"
        assert clean(sandbox, "echo begun").output == "begun\n"
    finally:
        sandbox.close()


def test_variables_of_git_do_not_change_our_commands(start):
    sandbox = start({"GIT_TRACE": "1", "GIT_DIR": "/nowhere", "GREP_OPTIONS": "-v"})
    answer = clean(sandbox, "rm -rf swe_git && git init -q swe_git && cd swe_git && git rev-parse --git-dir | grep git")
    assert (answer.output, answer.errors) == (".git\n", "")


def test_background_processes_print_to_no_later_command(start):
    sandbox = start({})
    run(sandbox, f"({WRITER}) & echo $! >/tmp/swe_pid")
    # Whatever it printed before its command ended belongs to that command.
    for _ in range(3):
        assert run(sandbox, "echo one; echo two >&2").output == "one\ntwo\n"
        assert clean(sandbox, "echo answer; kill -0 $(cat /tmp/swe_pid)").output == "answer\n"
    assert clean(sandbox, "kill $(cat /tmp/swe_pid)").returncode == 0


def test_more_writers_than_files_do_not_break_a_command(start):
    sandbox = start({})
    for _ in range(shell_output.COMMAND_FILES + 1):
        run(sandbox, "(while sleep 0.01; do echo noise; done) & echo $! >>/tmp/swe_pids")
    assert "one\n" in run(sandbox, "echo one").output
    assert clean(sandbox, "kill $(cat /tmp/swe_pids); echo answer").output == "answer\n"
    eventually(lambda: run(sandbox, "echo one").output == "one\n", what="a file without a writer")


def test_variables_belong_to_one_command(start):
    sandbox = start({"GREETING": "hello", "KEPT": "image's"}, {"KEPT": "ours", "ADDED": "ours"})
    show = "echo $GREETING $KEPT $ADDED $OTHER"
    own = {"GREETING": "it's\n$(echo me) \\", "OTHER": "x"}
    assert run(sandbox, 'printf %s "$GREETING"', variables=own).output == own["GREETING"]
    assert run(sandbox, show, variables={"OTHER": "x"}).output == "hello image's ours x\n"
    assert run(sandbox, show).output == "hello image's ours\n"


def test_a_long_command_sources_the_startup_file_once(start):
    sandbox = start({"BASH_ENV": STARTUP})
    sandbox.write_file(STARTUP, "echo sourced\n")
    result = run(sandbox, "echo " + "x" * 300_000 + " | wc -c")
    assert (result.startup, result.own_output) == ("sourced\n", "300001\n")
    assert clean(sandbox, "echo " + "x" * 300_000 + " | wc -c").output == "300001\n"


def test_output_over_the_limit_is_a_limit_however_fast_the_command_ends(start, monkeypatch):
    monkeypatch.setattr(shell_output, "OUTPUT_LIMIT_BYTES", 1000)
    sandbox = start({})
    for _ in range(5):
        result = run(sandbox, "printf '%02000d' 0")
        assert (result.limit, result.returncode) == ("output", 137) and "[1000 bytes left out]" in result.output
        answer = clean(sandbox, "printf '%02000d' 0")
        assert (answer.limit, answer.returncode, len(answer.data)) == ("output", 137, 1000)


def test_a_file_that_cannot_be_written_is_no_death_of_the_sandbox(start, monkeypatch):
    sandbox = start({})
    with pytest.raises(SandboxFileError, match="/no/such/file cannot be written .*No such file or directory"):
        sandbox.write_file("/no/such/file", "x")
    monkeypatch.setattr(shell, "LONG_COMMAND_FILE", "/no/such/file")
    result = run(sandbox, "echo " + "x" * 300_000)
    assert result.returncode == 1 and "No such file or directory" in result.output
    assert run(sandbox, "echo alive").output == "alive\n"


def test_a_writer_in_the_background_cannot_fill_the_memory(tmp_path, demo_image):
    """Its output lies in memory, so it counts as the sandbox's files."""
    sandbox = apptainer.start(demo_image, scratch=tmp_path, env={}, start_timeout_s=30, limits=LIMITS)
    try:
        assert run(sandbox, "yes & echo $! >/tmp/pid").limit == ""
        eventually(lambda: clean(sandbox, "kill -0 $(cat /tmp/pid)").returncode != 0, what="the writer was killed")
        assert run(sandbox, "echo alive").output == "alive\n"
    finally:
        sandbox.close()


def test_descriptors_that_the_worker_holds_do_not_matter(tmp_path, demo_image):
    for n_held in (0, 5, 40):
        held = [os.open("/dev/null", os.O_RDONLY) for _ in range(n_held)]
        sandbox = apptainer.start(demo_image, scratch=tmp_path, env={}, start_timeout_s=30, limits=LIMITS)
        try:
            assert run(sandbox, "ls /proc/self/fd; echo done >&2").output == "0\n1\n2\n3\ndone\n"
            assert clean(sandbox, "ls /proc/self/fd; echo done >&2").data == b"0\n1\n2\n3\n"
            assert sandbox.resource_usage().peak_bytes > 0
        finally:
            sandbox.close()
            for descriptor in held:
                os.close(descriptor)


def test_opening_the_files_from_inside_does_not_harm_the_worker(tmp_path, demo_image):
    """The kernel signals the holder of a lease when somebody opens the file for writing."""
    sandbox = apptainer.start(demo_image, scratch=tmp_path, env={}, start_timeout_s=30)
    opener = (
        "import os, sys, itertools\n"
        "for number in itertools.cycle(map(int, sys.argv[2:])):\n"
        "    os.close(os.open(f'/proc/{sys.argv[1]}/fd/{number}', os.O_WRONLY))\n"
    )
    try:
        sandbox.write_file("/tmp/opener.py", opener)
        numbers = " ".join(map(str, sandbox._outputs.descriptors))
        run(sandbox, f"python3 /tmp/opener.py $PPID {numbers} >/dev/null 2>&1 & echo $! >/tmp/pid")
        for _ in range(200):
            assert run(sandbox, "echo one").output == "one\n"
        assert clean(sandbox, "kill $(cat /tmp/pid)").returncode == 0
    finally:
        sandbox.close()
