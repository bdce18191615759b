"""The commands and Python blocks of README and docs/ do what the documentation states."""

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.agent_server.conftest import FIX, TASK
from tests.agent_server.grading.sample_rows import BUGGY, FIXED, NEW_TESTS, Images, diff, unpack
from tests.docs import commands as tables
from tests.docs.blocks import PAGES, ROOT, all_commands, code_blocks

TABLES = (tables.RUN_AS_WRITTEN, tables.RUN_WITH_SUBSTITUTIONS, tables.RUN_BY_OTHER_TESTS, tables.NOT_RUN)


def shell(command: str, cwd: Path = ROOT, **environment: str) -> str:
    """The output of a command that succeeds."""
    result = subprocess.run(
        ["bash", "-c", command], cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    return result.stdout


def find_command(start: str) -> str:
    """The one documented command that starts with this."""
    [command] = [command for command in all_commands() if command.startswith(start)]
    return command


def function_names(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_command_stands_in_one_table():
    listed = [command for table in TABLES for command in table]
    assert len(listed) == len(set(listed))
    assert all_commands() - set(listed) == set(), "add them to a table of tests/docs/commands.py"
    assert set(listed) - all_commands() == set(), "these are in no page any more"


def test_the_tests_that_run_commands_exist():
    for name in tables.RUN_BY_OTHER_TESTS.values():
        path, _, function = name.partition("::")
        assert (ROOT / path).is_file(), name
        assert function in function_names(ROOT / path), name
    here = function_names(Path(__file__)) | function_names(ROOT / "tests" / "docs" / "test_pages.py")
    assert set(tables.RUN_WITH_SUBSTITUTIONS.values()) <= here


@pytest.mark.parametrize("command", tables.RUN_AS_WRITTEN)
def test_it_runs_as_written(command):
    assert shell(command)


def test_a_configuration_is_checked():
    assert "valid" in shell(
        find_command(".venv/bin/python -m trainer check FILE").replace("FILE", "scripts/runs/quickstart.toml")
    )


def test_a_session_by_hand(server, model):
    model.scripts["key"] = [FIX]
    create = find_command("curl -s localhost:8600/sessions -d").replace("localhost:8600", server.url)
    # The scripted model can fix one task only; the documented request leaves the choice to the server.
    create = create.replace("http://127.0.0.1:8000", model.url).replace('"api_key"', f'"task_id": "{TASK}", "api_key"')
    session = json.loads(shell(create))["session_id"]
    get = find_command("curl -s 'localhost:8600/sessions/ID").replace("localhost:8600", server.url)
    view = json.loads(shell(get.replace("ID-FROM-THAT-ANSWER", session)))
    assert (view["status"], view["reward"]) == ("completed", 1.0)


def test_limits_by_hand(server):
    before = json.loads(shell(find_command("curl -s localhost:8600/limits").replace("localhost:8600", server.url)))
    patch = find_command("curl -s -X PATCH localhost:8600/limits").replace("localhost:8600", server.url)
    patch = patch.replace("/scratch/agents", str(server.work_dir))
    assert json.loads(shell(patch)) == before | {"train": 32, "gradings": 4}


def test_python_and_json_blocks_are_valid():
    for page in PAGES:
        for code in code_blocks(page, "python"):
            ast.parse(code)
        for code in code_blocks(page, "json"):
            json.loads(code)


def test_every_python_block_is_run():
    assert {page.name: len(code_blocks(page, "python")) for page in PAGES if code_blocks(page, "python")} == {
        "datasets.md": 1  # test_a_dataset_of_your_own
    }


def test_a_dataset_of_your_own(demo_image, tmp_path):
    """The class of docs/datasets.md: gold is graded 1, the unchanged repository and hostile submissions 0."""
    page = ROOT / "docs" / "datasets.md"
    [code] = code_blocks(page, "python")
    [row] = map(json.loads, code_blocks(page, "json"))
    (tmp_path / "fizz.py").write_text(code)
    images = tmp_path / "images"
    images.mkdir()
    source = "calc/core.py"
    files = {"calc/__init__.py": "", source: BUGGY, "tests/__init__.py": "", "tests/test_fizz.py": NEW_TESTS}
    Images(unpack(demo_image, tmp_path / "root"), images).make(row["container"], files)
    row |= {
        "checks": ["tests/test_fizz.py::test_total[one[x]]", "tests/test_fizz.py::test_mean"],
        "solution": diff({source: BUGGY}, {source: FIXED}, tmp_path / "diff"),
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    validate = find_command(".venv/bin/python -m agent_server validate --tasks rows.jsonl")
    validate = validate.replace(".venv", str(ROOT / ".venv")).replace("/data/images", str(images))
    setting = find_command("export PYTHONPATH=").replace("/my/code", f"{tmp_path}:{ROOT}")
    shell(f"{setting}; {validate} --jobs 1 --report report.json", cwd=tmp_path, TMPDIR=str(tmp_path))
    cases = json.loads((tmp_path / "report.json").read_text())["cases"]
    assert cases["gold"]["resolved"] == 1 and {case for case in cases if cases[case]["resolved"]} == {"gold"}
    assert len(cases) > 4
