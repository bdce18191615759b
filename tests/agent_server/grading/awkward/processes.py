"""Awkward repositories: tests that break the process they run in, and tests that start others."""

from tests.agent_server.grading.awkward.awkward import FAILED, PASSED, Awkward

HOSTILE_TO_THE_PROCESS = """
import builtins, gc, os, signal, sys, threading, time
from unittest import mock

import pytest


def refuse(*arguments, **named):
    raise OSError("not in this test")


def test_patched_os(monkeypatch):
    for name in ("open", "write", "close", "getpid", "getcwd", "stat", "fsencode"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(builtins, "open", refuse)
    monkeypatch.setattr(time, "time", refuse)


def test_patched_builtins(monkeypatch):
    for name in ("ascii", "str", "map", "len", "getattr", "isinstance", "type"):
        monkeypatch.setattr(builtins, name, getattr(builtins, name))


def test_variables_gone(monkeypatch):
    for name in list(os.environ):
        monkeypatch.delenv(name)


def test_modules_gone():
    with mock.patch.dict(sys.modules, clear=True):
        pass


def test_other_folder(tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    mask = os.umask(0o777)
    request.addfinalizer(lambda: os.umask(mask))


def test_child_leaves():
    if os.fork() == 0:
        os._exit(0)
    os.wait()


def test_child_raises():
    pid = os.fork()
    if pid == 0:
        try:
            raise SystemExit(3)
        finally:
            os._exit(3)
    assert os.waitpid(pid, 0)[1] >> 8 == 3


def test_thread():
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()


def test_descriptors_closed():
    os.closerange(20, 200)


def test_streams_replaced():
    sys.stdout = sys.stderr = None


def test_recursion():
    def deeper(n):
        return deeper(n + 1)
    with pytest.raises(RecursionError):
        deeper(0)


def test_alarm():
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.alarm(1)


def test_interrupted_inside():
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_tracing():
    sys.settrace(None)
    sys.setprofile(None)
    gc.collect()
    gc.freeze()


def test_system_exit():
    sys.exit(0)


def test_last():
    assert True
"""
POOLS = """
import concurrent.futures, multiprocessing, subprocess, sys

import pytest


@pytest.mark.parametrize("way", ["fork", "spawn", "forkserver"])
def test_pool(way):
    context = multiprocessing.get_context(way)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(abs, -1).result() == 1


def test_child_runs_unittest():
    code = "import unittest\\nclass T(unittest.TestCase):\\n    def test_x(self): self.fail()\\nunittest.main()"
    assert subprocess.call([sys.executable, "-c", code]) == 1


def test_unittest_in_process():
    import unittest

    class T(unittest.TestCase):
        def test_x(self):
            self.fail()

    assert not unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T)).wasSuccessful()
"""
PROCESSES = {
    "tests that break the process": Awkward(
        {"test_a.py": HOSTILE_TO_THE_PROCESS}, "pytest -v",
        {f"test_a.py::{line.split('(')[0].removeprefix('def ')}": FAILED if "system_exit" in line else PASSED
         for line in HOSTILE_TO_THE_PROCESS.splitlines() if line.startswith("def test_")},
    ),
    "child processes": Awkward(
        {"test_a.py": POOLS}, "pytest -v",
        {f"test_a.py::{name}": PASSED for name in (
            "test_pool[fork]", "test_pool[spawn]", "test_pool[forkserver]", "test_child_runs_unittest",
            "test_unittest_in_process")},
        returncode=0,
    ),
}  # fmt: skip
