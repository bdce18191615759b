"""A row of SWE-bench whose tests lie beside the code; runs of this environment's test runners with the reporter."""

import json

import pytest

from tests.agent_server.grading.grading_bench import GradingBench
from tests.agent_server.grading.reporter_fixtures import collected, run_pytest, run_reported
from tests.agent_server.grading.sample_images import Images, diff
from tests.agent_server.grading.sample_rows import (
    BUGGY,
    FIXED,
    PACKAGE,
    SOURCE_PATCH_PATH,
    STATEMENT,
    Made,
    save,
)

__all__ = ["collected", "run_pytest", "run_reported"]  # fixtures of this folder's tests
OLD = (
    "from calc.core import mean, total\n\n\ndef test_mean():\n    assert mean([1, 3]) "
    "== 2\n\n\ndef test_total():\n    assert total([1, 2]) == 2\n"
)
NEW = OLD.replace("[1, 2]) == 2", "[1, 2]) == 3")


@pytest.fixture(scope="session")
def row_beside_code(sample_rows, tmp_path_factory):
    """The images' folder and the row. Its tests as they were pass with the bug."""
    images, folder = sample_rows[0], tmp_path_factory.mktemp("beside")
    name = "swebench/sweb.eval.x86_64.calc_1776_calc-2:latest"
    files = {path: text for path, text in PACKAGE.items() if "test" not in path} | {"calc/test_core.py": OLD}
    _, base = Images(images.parent / "root", images).make(name, files)
    tests = {"calc/test_core.py": NEW, "calc/checks/test_more.py": "def test_more():\n    assert True\n"}
    test_patch = diff({"calc/test_core.py": OLD}, tests, folder / "diff")
    row = {
        "instance_id": "calc__calc-2",
        "repo": "calc/calc",
        "version": "1.0",
        "base_commit": base,
        "image": name,
        "problem_statement": STATEMENT,
        "patch": diff({SOURCE_PATCH_PATH: BUGGY}, {SOURCE_PATCH_PATH: FIXED}, folder / "diff"),
        "test_patch": test_patch,
        "log_parser": "parse_log_pytest_v2",
        "FAIL_TO_PASS": json.dumps(["calc/test_core.py::test_total"]),
        "PASS_TO_PASS": json.dumps(["calc/test_core.py::test_mean"]),
    }
    return images, Made(save(folder, "beside", row), "swebench", row["instance_id"])


@pytest.fixture
def beside_bench(row_beside_code, tmp_path):
    bench = GradingBench(row_beside_code[0], tmp_path, row_beside_code[1])
    yield bench
    bench.close()
