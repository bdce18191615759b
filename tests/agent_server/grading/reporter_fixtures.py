"""Runs of this environment's pytest whose output the parsers read, and what the reporter says about them."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_server.grading.outcomes import outcomes_by_name
from agent_server.grading.reporter.install import INSIDE, PARTS
from agent_server.grading.reporter.report import RunReport, parse_report
from agent_server.grading.reports.pytest_summary import parse_pytest_summary

SECRET = "secret"


@dataclass
class Run:
    output: str
    report: RunReport
    returncode: int

    @property
    def summary(self) -> dict[str, str]:
        return parse_pytest_summary(self.output)

    @property
    def reported(self) -> dict[str, str]:
        """As Dataset.outcomes."""
        assert self.report.is_whole, self.report.fault
        return outcomes_by_name(self.report.tests, [(test.id, test.printed) for test in self.report.tests])


@pytest.fixture
def run_reported(tmp_path, tmp_path_factory):
    """Runs a module of this environment (pytest, unittest) in tmp_path with the reporter, as a row's test command does,
    with none of the environment's plugins. `canary`: keys of the tests that a canary run repeats."""

    def run(module: str, *arguments: str, canary: list[str] | None = None, **environment: str) -> Run:
        folder, lines = tmp_path_factory.mktemp("reporter"), tmp_path_factory.mktemp("lines")
        package = folder / "reporter_under_test"
        package.mkdir()
        start = (INSIDE / "start.py").read_text() + f"\nstart({str(lines)!r}, {SECRET!r})\n"
        (package / "__init__.py").write_text(start)
        # In an image a .pth file does this.
        (folder / "sitecustomize.py").write_text("import reporter_under_test\n")
        for part in PARTS:
            (package / f"{part}.py").write_text((INSIDE / f"{part}.py").read_text())
        if canary is not None:
            (lines / "canary").write_text("".join(f"{key}\n" for key in canary))
        command = [sys.executable, "-m", module, *arguments]
        variables = _clean_environment() | {"PYTHONPATH": str(folder)} | environment
        done = subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = done.communicate(timeout=120)
        text = "".join(path.read_text() for path in sorted(lines.glob("[0-9]*")))
        # Not text=True, for which a carriage return would end a line.
        return Run(output.decode(), parse_report(text, done.pid, str(tmp_path), SECRET), done.returncode)

    return run


def _clean_environment() -> dict[str, str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTEST_") and name not in {"CI", "COLUMNS"}
    }
    return clean | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.fixture
def run_pytest(tmp_path: Path, run_reported):
    """Runs pytest on files given as text."""

    def run(files: dict[str, str], *arguments: str, **environment: str) -> Run:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return run_reported("pytest", "-rA", "-p", "no:cacheprovider", *arguments, **environment)

    return run


@pytest.fixture
def collected(tmp_path: Path):
    """The ids of all tests, as pytest prints them."""

    def collected() -> list[str]:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q"]
        done = subprocess.run(command, cwd=tmp_path, env=_clean_environment(), stdout=subprocess.PIPE, timeout=120)
        return [line for line in done.stdout.decode().split("\n") if "::" in line]

    return collected
