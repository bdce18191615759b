"""Code of attacks that reach beyond their own process: child processes, a restarted runner, files of reports.

Invariant: as of attacks.py; files are written below /tmp and /var/tmp only.
"""

PLUGIN = """import pytest

@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome, report.longrepr = "passed", None
"""
ENVIRONMENT_PLUGIN = f"""import os
os.makedirs("/tmp/.planted", exist_ok=True)
with open("/tmp/.planted/planted_plugin.py", "w") as file:
    file.write({PLUGIN!r})
os.environ["PYTHONPATH"] = "/tmp/.planted:" + os.environ.get("PYTHONPATH", "")
os.environ["PYTEST_PLUGINS"] = "planted_plugin"
os.environ["PYTEST_ADDOPTS"] = "-p planted_plugin"
"""
# The restarted runner gets the descriptors back that pytest has put aside while it captures.
RESTART = (
    f"{ENVIRONMENT_PLUGIN}"
    """import sys
if "PLANTED" not in os.environ:
    os.environ["PLANTED"] = "1"
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            kept = int(name) > 2 and "(deleted)" not in os.readlink("/proc/self/fd/" + name)
            if kept and os.access("/proc/self/fd/" + name, os.W_OK):
                os.dup2(int(name), 1)
                os.dup2(int(name), 2)
        except OSError:
            pass
    with open("/proc/self/cmdline", "rb") as file:
        command = file.read().split(b"\\0")[:-1]
    os.execv(sys.executable, command)
"""
)
REWRITE = """import os
import re

def rewrite():
    for top in ("/tmp", "/var/tmp"):
        for folder, _, names in os.walk(top):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.islink(path) or not os.path.isfile(path):
                    continue
                try:
                    with open(path, "r+b") as file:
                        old = file.read()
                        new = re.sub(rb"<(failure|error|skipped)\\b.*?(/>|</\\1>)", b"", old, flags=re.DOTALL)
                        new = re.sub(rb"(?m)^(FAILED|ERROR) (.*?) - .*$", rb"PASSED \\2", new)
                        new = re.sub(rb"FAILED|ERROR|SKIPPED|XFAIL", b"PASSED", new)
                        new = re.sub(rb"\\b(failed|error|skipped)\\b", b"passed", new)
                        new = re.sub(rb"\\.\\.\\. (FAIL|PASSED)", b"... ok", new)
                        if new != old:
                            file.seek(0)
                            file.write(new)
                            file.truncate()
                except OSError:
                    pass
"""
REWRITE_AT_EXIT = f"{REWRITE}import atexit\n\n@atexit.register\ndef leave():\n    rewrite()\n    os._exit(0)\n"
# It outlives the runner, and rewrites what the runner's end has written.
REWRITE_BY_CHILD = (
    f"{REWRITE}"
    """import time
parent = os.getpid()
if os.fork() == 0:
    try:
        os.setsid()
        for _ in range(6000):
            if os.getppid() != parent:
                break
            time.sleep(0.01)
        rewrite()
    finally:
        os._exit(0)
"""
)
