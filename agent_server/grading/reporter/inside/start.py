"""Start of the reporter in each Python process of a grading sandbox: installed as a package, imported by a `.pth` file.

It patches a test runner when the runner is imported, and appends what the runner does to one file per process.
Invariant: the run is the row's own. No variable, option, plugin entry or file of the repository is added, and a fault
of the reporter is recorded, not raised.

A line holds fields separated by tabs, each escaped as Python escapes strings: the process, the number of the line in
it, session, event, the event's own, and a checksum with the run's secret. A file that something else wrote to shows.
"""

import binascii
import os
import sys
import time

RUNNERS = {
    "_pytest.config": "pytest_runner",
    "_pytest.mark.structures": "pytest_marks",
    "unittest": "unittest_runner",
    "sympy.testing.runtests": "sympy_runner",
    "sympy.utilities.runtests": "sympy_runner",
}


# Tests may replace these for a while.
_open, _write, _close, _getpid, _time, _crc32 = os.open, os.write, os.close, os.getpid, time.time, binascii.crc32
APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_FILES = {}  # file name of code -> its absolute path, "" where there is no such file


class Recorder:
    """Writes the events of this process and of those it forks. `canary`: keys of the tests that the canary run repeats;
    None in an ordinary run."""

    def __init__(self, folder, secret):
        self._folder, self._secret = folder, secret
        self._pid, self._process, self._lines = 0, "", None  # of the process that wrote last, and its line numbers
        self._open = []  # sessions of this process that have not ended
        self._count = 0
        self.canary = None
        if os.path.exists(folder + "/canary"):
            with open(folder + "/canary", encoding="ascii") as keys:
                self.canary = {line.rstrip("\n") for line in keys}

    def open_session(self, runner, worker=False):
        """Record that a runner was started in this process. Returns the session's name."""
        self._count += 1
        session = "%d.%d.%d" % (_getpid(), self._count, int(_time() * 1e6))
        nested = "nested" if self._open else "worker" if worker else "main"
        self.write(session, "open", runner, nested, ",".join(map(str, _ancestors())), os.getcwd())
        self._open.append(session)
        return session

    def close_session(self, session):
        """Record that the session ended of itself. A second call does nothing."""
        if session in self._open:
            self._open.remove(session)
            self.write(session, "close")

    def write(self, session, event, *fields):
        """Append one line. The file is opened anew, so that no descriptor of it is open while tests run."""
        pid = _getpid()
        if self._pid != pid:  # the first line, or the first one after a fork
            self._pid, self._lines = pid, iter(range(1 << 60))
            self._process = "%d.%d" % (pid, int(_time() * 1e6))
        fields = (self._process, next(self._lines), session, event) + fields
        line = "\t".join(ascii(str(field))[1:-1] for field in fields)
        checksum = _crc32((self._secret + line).encode("ascii")) & 0xFFFFFFFF
        descriptor = _open(self._folder + "/" + self._process, APPENDING, 0o666)
        try:
            _write(descriptor, ("%s\t%d\n" % (line, checksum)).encode("ascii"))
        finally:
            _close(descriptor)

    def fault(self, error):
        """Record an error of the reporter's own."""
        try:
            self.write("-", "fault", repr(error))
        except OSError:
            pass

    def __enter__(self):
        """A block whose errors are recorded and not raised."""

    def __exit__(self, kind, error, traceback):
        if isinstance(error, Exception):
            self.fault(error)
            return True
        return False

    def is_selected(self, *key):
        """Whether the canary run repeats the test with this key."""
        return "\t".join(ascii(part)[1:-1] for part in key) in self.canary


def files_of_traceback(traceback):
    """The files of a traceback's frames, the innermost first, one per line."""
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return _existing_files(reversed(frames))


def files_of_callers(frame):
    """The files of a frame and of those that called it, one per line."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return _existing_files(frames)


def _existing_files(frames):
    """Code made by `exec` has no file; its caller has one."""
    files = []
    for frame in frames:
        name = frame.f_code.co_filename
        if name not in _FILES:
            _FILES[name] = os.path.abspath(name) if os.path.exists(name) else ""
        if _FILES[name] and _FILES[name] not in files:
            files.append(_FILES[name])
    return "\n".join(files)


def files_of_unittest_mark(unittest, what, *holders):
    """The files of the code that put the mark `__unittest_WHAT__` on a test or its class; for a skip without a mark, of
    the code that made the last SkipTest. "?" for a mark that no decorator of unittest made."""
    for holder in holders:
        if getattr(holder, "__unittest_%s__" % what, False):
            return getattr(holder, "reporter_files_" + what, "?")
    return getattr(unittest.SkipTest, "reporter_files", "") if what == "skip" else ""


def code_of(function):
    """The code of a function, a method, or what a decorator wrapped; None if it has none."""
    for _ in range(100):  # decorators may wrap in a circle
        function = getattr(function, "__func__", function)
        if not hasattr(function, "__wrapped__"):
            break
        function = function.__wrapped__
    return getattr(function, "__code__", None)


def defining_file(function):
    """File that holds the code of a function, a method, or what a decorator wrapped; "" if it has none."""
    code = code_of(function)
    return os.path.abspath(code.co_filename) if code is not None else ""


def raise_after(function):
    """A function that does what `function` does and then fails."""
    import functools
    import inspect

    if inspect.iscoroutinefunction(function):

        async def checked(*arguments, **named):
            await function(*arguments, **named)
            raise AssertionError("raised by the canary run after the test has passed")

    else:

        def checked(*arguments, **named):
            function(*arguments, **named)
            raise AssertionError("raised by the canary run after the test has passed")

    return functools.wraps(function)(checked)


class _Finder:
    """Finds the runners' modules as the other finders do, and patches each after it was executed."""

    def __init__(self, recorder):
        self._recorder = recorder

    def find_spec(self, name, path=None, target=None):
        if name not in RUNNERS:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self and hasattr(finder, "find_spec") else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _PatchingLoader(spec.loader, self._recorder)
                return spec
        return None


class _PatchingLoader:
    """A loader's stand-in for one module. The module has its own loader again when it is patched."""

    def __init__(self, loader, recorder):
        self._loader, self._recorder = loader, recorder

    def create_module(self, spec):
        return self._loader.create_module(spec) if hasattr(self._loader, "create_module") else None

    def exec_module(self, module):
        self._loader.exec_module(module)
        module.__loader__ = module.__spec__.loader = self._loader
        patch_runner(module.__name__, module, self._recorder)

    def __getattr__(self, name):
        return getattr(self._loader, name)


def patch_runner(name, module, recorder):
    """Let the runner in `module` report to the recorder."""
    with recorder:
        part = __import__(__name__ + "." + RUNNERS[name], fromlist=["patch"])
        part.patch(module, recorder, sys.modules[__name__])


def _ancestors():
    """Process ids from this process to the first one of the sandbox."""
    pids = [_getpid()]
    try:
        while pids[-1] > 1 and len(pids) < 100:
            with open("/proc/%d/stat" % pids[-1], errors="replace") as stat:
                pids.append(int(stat.read().rpartition(")")[2].split()[1]))
    except (OSError, ValueError, IndexError):
        pass
    return pids


def start(folder, secret):
    """Watch for runners in this process."""
    recorder = Recorder(folder, secret)
    sys.meta_path.insert(0, _Finder(recorder))
    for name in RUNNERS:
        if name in sys.modules:
            patch_runner(name, sys.modules[name], recorder)
