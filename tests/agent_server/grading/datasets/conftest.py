"""Rows that bring their own commands, with their images."""

import sys

import pytest

from tests.agent_server.grading.grading_bench import GradingBench
from tests.agent_server.grading.sample_images import Images
from tests.agent_server.grading.sample_rows_by_commands import ALL, CHECK_PARSER


@pytest.fixture(scope="session")
def rows_by_commands(sample_rows, tmp_path_factory):
    """The images' folder, and a task of each format by the name of its file."""
    images, folder = sample_rows[0], tmp_path_factory.mktemp("by_commands")
    made = [make(Images(images.parent / "root", images), folder) for make in ALL]
    return images, {row.path.stem: row for row in made}


@pytest.fixture
def v2_parsers(tmp_path, monkeypatch):
    """A checkout of SWE-rebench V2's repository on the path, with the parser of the sample row."""
    folder = tmp_path / "checkout" / "lib" / "agent"
    folder.mkdir(parents=True)
    (folder / "log_parsers.py").write_text(CHECK_PARSER)
    monkeypatch.syspath_prepend(tmp_path / "checkout")
    yield
    for name in ("lib.agent.log_parsers", "lib.agent", "lib"):
        sys.modules.pop(name, None)


@pytest.fixture
def bench_by_commands(rows_by_commands, v2_parsers, tmp_path):
    """A GradingBench of a task, by its file's name."""
    opened = []

    def of(name: str) -> GradingBench:
        opened.append(GradingBench(rows_by_commands[0], tmp_path, rows_by_commands[1][name]))
        return opened[-1]

    yield of
    for bench in opened:
        bench.close()
