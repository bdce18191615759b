"""Runs of this environment's pytest whose output and report the parsers read."""

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from agent_server.grading.reports.junit import parse_junit
from agent_server.grading.reports.pytest_summary import parse_pytest_summary


@dataclass
class Run:
    output: str
    report: str

    @property
    def summary(self) -> dict[str, str]:
        return parse_pytest_summary(self.output)

    @property
    def junit(self) -> dict[str, str]:
        return parse_junit(self.report)


@pytest.fixture
def start_pytest(tmp_path):
    """This environment's pytest, a process of its own, with none of the environment's plugins."""

    def start_pytest(*arguments: str, **environment: str) -> str:
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("PYTEST_") and name not in {"CI", "COLUMNS"}
        }
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        environment = clean | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | environment
        done = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, timeout=120)
        return done.stdout.decode()  # not text=True, for which a carriage return would end a line

    return start_pytest


@pytest.fixture
def run_pytest(tmp_path, start_pytest):
    """Runs pytest, as a row's test command does, on files given as text."""

    def run(files: dict[str, str], *arguments: str, family: str = "xunit1", **environment: str) -> Run:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        report = tmp_path / "report.xml"
        output = start_pytest(
            "-rA", "--rootdir=.", f"--junitxml={report}", "-o", f"junit_family={family}", *arguments, **environment
        )
        return Run(output, report.read_text())

    return run


@pytest.fixture
def collected(start_pytest):
    """The ids of all tests, as pytest prints them."""
    return lambda: [line for line in start_pytest("--collect-only", "-q").splitlines() if "::" in line]
