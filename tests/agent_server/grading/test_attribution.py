"""Attribution: whatever the tests or the submission do to the sandbox is a grade of 0, not a failed session."""

import shlex

import pytest


@pytest.mark.parametrize(
    "code",
    [
        "print('bash: fork: Cannot allocate memory'); import os; os._exit(1)",
        "print('Killed', flush=True); import os; os._exit(1)",
        "import os, signal; os.kill(-1, signal.SIGKILL)",
        (
            "import os, signal\nfor pid in range(1, 400):\n    try: os.kill(pid, signal.SIGKILL) "
            "if pid != os.getpid() else None\n    except OSError: pass"
        ),
        "import os, signal; os.killpg(0, signal.SIGKILL)",
        "import shutil; shutil.rmtree('/tmp', ignore_errors=True); shutil.rmtree('/testbed', ignore_errors=True)",
        "import glob, os\nfor file in glob.glob('/tmp/.log*'):\n    os.unlink(file); os.mkfifo(file)",
        "import os\nos.system('rm -rf /bin /usr/bin/base64 /usr/bin/gzip /usr/bin/tail')",
        (
            "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        "
            "while True: os.write(2, os.urandom(65536))\n    os._exit(0)"
        ),
        "import os\nos.write(1, b'ERROR:\\nFAIL:\\n'); os._exit(1)",
    ],
    ids=[
        "prints of memory",
        "prints Killed",
        "kills all",
        "kills each",
        "kills its group",
        "deletes",
        "a pipe for the log",
        "deletes programs",
        "prints on",
        "breaks the parser",
    ],
)
@pytest.mark.parametrize("name", ["swebench_new", "swebench_old", "eval_script"])
def test_damage_by_the_tests_is_graded_zero(grading_bench, name, code):
    bench = grading_bench(name)
    patch = bench.patch(f"printf '%s\\n' {shlex.quote(code)} >>calc/core.py")
    found = bench.grade(patch)
    assert (found.resolved, found.status) == (False, "graded")
