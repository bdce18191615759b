"""The report of one run's test runners: parsed from the reporter's lines, joined by file below the repository.

Invariant: a test has passed only by its own outcome in a session that ended, was started by the test script itself, and
not by another test. Of several outcomes of one test the worst counts.
"""

import codecs
import os
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

from agent_server.grading.outcomes import OUTCOMES, short_unittest_id
from agent_server.tasks.characters import whole_characters

PHASES = {
    "passed": "PASSED", "failed": "FAILED", "skipped": "SKIPPED", "xfailed": "XFAIL", "xpassed": "XPASS",
}  # fmt: skip
MAX_LINES = 2_000_000
EVENT_ORDER = {"open": 0, "root": 1, "item": 2, "redefined": 3}  # the rest follows
UNKNOWN = "?"
DOCTEST = "DoctestItem"  # its file is the documented one, no test file
NO_RUNNER = "no test runner reported"


@dataclass(frozen=True, slots=True)
class ReportedTest:
    """One test of one runner, with its worst outcome.

    `runner`: pytest, unittest or sympy. `file`: relative to the repository, or absolute outside of it. `name`: within
    the file for pytest, else the runner's own. `printed`: as the runner prints it: for pytest the id relative to its
    working directory (`node`: relative to its root), for unittest `test_x (pkg.Class)`. `description`: a unittest
    docstring's first line, which replaces the name in the output. `defined_in`: the file of the test's code, "?" if it
    was replaced after the test was collected. `skipped_in`: the file of the repository whose code skipped or xfailed
    it, or made the mark that did; "" where there is none, "?" for a mark of unknown origin. `path`: of the file,
    absolute.
    """

    runner: str
    file: str
    name: str
    printed: str
    outcome: str
    description: str = ""
    kind: str = ""
    defined_in: str = ""
    skipped_in: str = ""
    path: str = ""
    node: str = ""

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids, the surest first."""
        return tuple(dict.fromkeys(filter(None, (self.id, self.description or self.printed, self.node))))

    @property
    def key(self) -> str:
        """The test as the reporter knows it inside the sandbox; see Recorder.is_selected."""
        parts = (self.name,) if self.runner == "unittest" else (self.path, self.name)
        return "\t".join(ascii(part)[1:-1] for part in parts)

    @property
    def id(self) -> str:
        """The test's id with the repository as its base: `path::name` for pytest, else as printed."""
        if self.runner != "pytest":
            return self.printed
        return f"{self.file}::{self.name}" if self.name else self.file


@dataclass(frozen=True, slots=True)
class RunReport:
    """The tests of all runners that the script started. `modules`: every module in which pytest looked for tests, as
    ReportedTest.file. `fault`: why the report is not whole; "" where it is."""

    tests: tuple[ReportedTest, ...] = ()
    modules: frozenset[str] = frozenset()
    fault: str = NO_RUNNER

    @property
    def was_started(self) -> bool:
        """Whether the script started a runner."""
        return self.fault != NO_RUNNER

    @property
    def is_whole(self) -> bool:
        """Whether at least one runner was started, and every one of them ended of itself."""
        return not self.fault

    def without_forged(self, changed: Collection[str]) -> "RunReport":
        """The report in which tests have failed that code of the submission defines, skips or xfails. `changed`: the
        files that the submission changed, relative to the repository."""
        return replace(self, tests=tuple(_judged(test, changed) for test in self.tests)) if changed else self


def _judged(test: ReportedTest, changed: Collection[str]) -> ReportedTest:
    own = {*changed, UNKNOWN}
    excused = test.outcome in ("SKIPPED", "XFAIL") and test.skipped_in in own
    planted = test.outcome in ("PASSED", "SKIPPED", "XFAIL") and test.defined_in in own
    return replace(test, outcome="FAILED") if excused or planted and test.kind != DOCTEST else test


@dataclass(slots=True)
class _Session:
    """One start of a runner."""

    name: str
    runner: str
    kind: str  # main, nested or worker
    ancestors: tuple[int, ...]
    root: str
    closed: bool = False
    # By node id: file, kind, file of its code, as printed.
    items: dict[str, tuple[str, str, str, str]] = field(default_factory=dict)
    tests: list[ReportedTest] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.ancestors[0]


def parse_report(lines: str, script_pid: int, repository: str, secret: str) -> RunReport:
    """The report from the reporter's lines. `script_pid`: of the test script, as processes in the sandbox see it.
    `repository`: the absolute path below which files are named relative to it.

    `secret`: of the checksums. The code under test can write to the reporter's files: where a line was added, changed
    or removed, the report is not whole.
    """
    events, is_changed = _read(lines, secret)
    sessions: dict[str, _Session] = {}
    # The files of forked processes may come before that of the process which began the session.
    for fields in sorted(events, key=lambda fields: EVENT_ORDER.get(fields[1], len(EVENT_ORDER))):
        try:
            if fields[1] == "open":
                session = _opened(fields)
                sessions[session.name] = session
            elif fields[0] in sessions:
                _apply(sessions[fields[0]], fields[1], fields[2:])
        except (ValueError, IndexError):
            continue
    counted = [session for session in sessions.values() if _counts(session, sessions.values(), script_pid)]
    tests = _merged(counted, repository)
    modules = frozenset(_relative(path, repository) for session in counted for path in session.modules)
    mains = [session for session in counted if session.kind == "main"]
    if not mains:
        faults = [fields[2] for fields in events if fields[1] == "fault" and len(fields) == 3]
        return RunReport(tests, modules, f"the reporter failed: {faults[0]:.300}" if faults else NO_RUNNER)
    if is_changed:
        return RunReport(tests, modules, "something else wrote to the report")
    torn = next((session for session in mains if not session.closed), None)
    return RunReport(tests, modules, f"{torn.runner} (pid {torn.pid}) did not end its session" if torn else "")


def _read(lines: str, secret: str) -> tuple[list[list[str]], bool]:
    """The fields of each line of the reporter, without those of its bookkeeping; whether something else wrote there."""
    events = []
    numbers: dict[str, list[int]] = {}
    is_changed = False
    for line in islice(lines.split("\n"), MAX_LINES):
        content, _, checksum = line.rpartition("\t")
        fields = _unescape(content)
        if checksum == str(zlib.crc32((secret + content).encode(errors="replace"))) and len(fields) >= 4:
            numbers.setdefault(fields[0], []).append(int(fields[1]))
            events.append(fields[2:])
        else:
            is_changed |= bool(line)
    has_gap = any(sorted(found) != list(range(len(found))) for found in numbers.values())
    return events, is_changed or has_gap


def _unescape(line: str) -> list[str]:
    try:
        fields = [codecs.decode(part.encode("ascii"), "unicode_escape") for part in line.split("\t")]
    except (UnicodeError, ValueError):
        return []
    return [whole_characters(part) for part in fields]


def _opened(fields: list[str]) -> _Session:
    name, _, runner, kind, ancestors, root = fields
    return _Session(name, runner, kind, tuple(map(int, ancestors.split(","))), root)


def _counts(session: _Session, sessions: Collection[_Session], script_pid: int) -> bool:
    """Whether the script started this session: not a test, and not a process that left the script's tree."""
    if session.kind == "nested" or script_pid not in session.ancestors:
        return False
    above = session.ancestors[1:]
    outer = [other for other in sessions if other.pid in above and other.kind != "nested"]
    if session.kind == "worker":
        return all(_counts(other, sessions, script_pid) for other in outer)
    return not outer


def _apply(session: _Session, event: str, fields: list[str]) -> None:
    """Raises ValueError, IndexError for lines that are not the reporter's."""
    if event == "root":
        session.root = fields[0]
    elif event == "close":
        session.closed = True
    elif event == "item":
        node, path, kind, defined, printed = fields
        session.items[node] = (path, kind, defined, printed)
    elif event == "redefined":
        path, kind, _, printed = session.items[fields[0]]
        session.items[fields[0]] = (path, kind, UNKNOWN, printed)
    elif event == "module":
        session.modules.append(fields[0])
    elif event == "collect":
        node, outcome = fields
        outcome = "SKIPPED" if outcome == "skipped" else "ERROR"
        session.tests.append(ReportedTest("pytest", os.path.join(session.root, node), "", node, outcome))
    elif event == "phase":
        session.tests.append(_pytest_outcome(session, *fields))
    elif event == "case":
        session.tests.append(_unittest_outcome(*fields))
    elif event == "function":
        name, path, defined, outcome, origin = fields
        session.tests.append(ReportedTest("sympy", path, name, name, _known(outcome), "", "", defined, origin))


def _pytest_outcome(session: _Session, node: str, when: str, outcome: str, origin: str) -> ReportedTest:
    file, _, name = node.partition("::")
    path, kind, defined, printed = session.items.get(node, (os.path.join(session.root, file), "", "", node))
    found = PHASES.get(outcome, "")
    if not found:
        raise ValueError(f"pytest reports no {outcome}; a rerun has its own outcome later")
    if found == "FAILED" and when != "call":
        found = "ERROR"
    if found == "PASSED" and when != "call":
        raise ValueError("only the call passes a test")
    return ReportedTest("pytest", path, name, printed, found, "", kind, defined, origin, node=node)


def _unittest_outcome(
    id: str, printed: str, description: str, path: str, defined: str, outcome: str, origin: str
) -> ReportedTest:
    return ReportedTest(
        runner="unittest",
        file=path,
        name=id,
        printed=short_unittest_id(printed),
        outcome=_known(outcome),
        description=description,
        defined_in=defined,
        skipped_in=origin,
    )


def _known(outcome: str) -> str:
    if outcome not in OUTCOMES:
        raise ValueError(f"no outcome is called {outcome}")
    return outcome


def _relative(path: str, repository: str) -> str:
    """Relative to the repository; as it is where it lies outside."""
    return os.path.normpath(path).removeprefix(f"{repository}/") if path else ""  # "?" stays


def _innermost(files: str, repository: str) -> str:
    """The first of the files, one per line, that lies in the repository: code of runners and of installed packages acts
    for its caller. "?" stands for itself."""
    below = (path for path in files.split("\n") if path == UNKNOWN or path.startswith(f"{repository}/"))
    return next((_relative(path, repository) for path in below if "/site-packages/" not in path), "")


def _merged(sessions: Iterable[_Session], repository: str) -> tuple[ReportedTest, ...]:
    """Each test once, with its worst outcome and files relative to the repository."""
    worst: dict[tuple[str, str, str, str], ReportedTest] = {}
    for found in (test for session in sessions for test in session.tests):
        file, defined_in = (_relative(path, repository) for path in (found.file, found.defined_in))
        skipped_in = _innermost(found.skipped_in, repository)
        test = replace(found, file=file, defined_in=defined_in, skipped_in=skipped_in, path=found.file)
        key = (test.runner, test.file, test.name, test.printed)
        known = worst.get(key)
        if known is None or OUTCOMES.index(test.outcome) > OUTCOMES.index(known.outcome):
            worst[key] = test
    return tuple(worst.values())
