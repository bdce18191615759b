"""Tasks in the formats of datasets whose rows bring their own commands: SWE-rebench, its V2, SWE-bench Live, Pro and
Multilingual. Columns and images as their authors publish them, with the package of sample_rows."""

from pathlib import Path

from tests.agent_server.grading.sample_images import Images, diff
from tests.agent_server.grading.sample_rows import (
    BUGGY,
    F2P,
    FIXED,
    NEW_TESTS,
    OLD_TESTS,
    P2P,
    PACKAGE,
    SOURCE_PATCH_PATH,
    STATEMENT,
    Made,
    save,
)

CUT = [test.split(" ")[0] for test in F2P]  # SWE-rebench's parsers cut ids at a space


def _row(images: Images, folder: Path, name: str, repository: str = "testbed", tests: dict | None = None) -> dict:
    """The columns that all of these have. `repository`: its folder in the image."""
    old, new = tests or ({"tests/test_core.py": OLD_TESTS}, {"tests/test_core.py": NEW_TESTS})
    package = PACKAGE | old
    later = {SOURCE_PATCH_PATH: FIXED} | new
    image, base = images.make(name, package, later={path: text for path, text in later.items() if path in package})
    if repository != "testbed":
        (image / "testbed").rename(image / repository)
    return {
        "base_commit": base,
        "problem_statement": STATEMENT,
        "patch": diff({SOURCE_PATCH_PATH: BUGGY}, {SOURCE_PATCH_PATH: FIXED}, folder / "diff"),
        "test_patch": diff(old, new, folder / "diff"),
        "FAIL_TO_PASS": CUT,
        "PASS_TO_PASS": P2P,
        "created_at": "2024-01-01T00:00:00",
    }


def swerebench(images: Images, folder: Path) -> Made:
    name = "swerebench/sweb.eval.x86_64.calc_1776_calc-3"
    row = _row(images, folder, name) | {
        "instance_id": "calc__calc-3",
        "repo": "calc/calc",
        "version": "0.1",
        "docker_image": name,
        "environment_setup_commit": None,
        "hints_text": "",
        "install_config": {
            "env_vars": None,
            "env_yml_path": None,
            "install": "pip install -e .[dev]",
            "log_parser": "parse_log_pytest",
            "no_use_env": None,
            "packages": "requirements.txt",
            "pip_packages": ["pytest"],
            "pre_install": None,
            "python": "3.9",
            "reqs_path": ["requirements.txt"],
            "test_cmd": "pytest --no-header -rA --tb=line --color=no -p no:cacheprovider -W ignore::DeprecationWarning",
        },
        "requirements": "pytest==8.3",
        "environment": "name: calc",
        "FAIL_TO_FAIL": [],
        "PASS_TO_FAIL": [],
        "license_name": "MIT License",
        "meta": {"num_modified_files": 1},
    }
    return Made(save(folder, "swerebench", row), "swerebench", row["instance_id"])


def swerebench_v2(images: Images, folder: Path) -> Made:
    """A row of Python, whose image has the repository at /calc."""
    name = "docker.io/swerebenchv2/calc-calc:4-ad6bff3"
    row = _row(images, folder, name, repository="calc") | {
        "instance_id": "calc__calc-4",
        "repo": "calc/calc",
        "image_name": name,
        "language": "python",
        "interface": "",
        "pr_description": "Fix total",
        "install_config": {
            "base_image_name": "python_base_310",
            "docker_specs": None,
            "install": ["pip install -e ."],
            "log_parser": "parse_log_pytest",
            "log_parsers": None,
            "test_cmd": ["pytest --no-header -rA --tb=line --color=no tests/test_core.py"],
        },
        "meta": {"llm_metadata": []},
        "license": "mit",
    }
    return Made(save(folder, "swerebench_v2", row), "swerebench_v2", row["instance_id"])


OLD_CHECK = """from calc.core import mean
print("PASS: mean" if mean([1, 3]) == 2 else "FAIL: mean")
"""
NEW_CHECK = f"""{OLD_CHECK}from calc.core import total
print("PASS: total in 12 msec" if total([1, 2]) == 3 else "FAIL: total in 13 msec")
"""
CHECK_PARSER = """
def parse_log_checks(log):
    words = {"PASS": "PASSED", "FAIL": "FAILED"}
    lines = [line.split(": ", 1) for line in log.splitlines() if line.startswith(("PASS: ", "FAIL: "))]
    return {name: words[word] for word, name in lines}
"""


def swerebench_v2_other(images: Images, folder: Path) -> Made:
    """A row whose runner prints alone, with a duration in one name."""
    name = "docker.io/swerebenchv2/calc-calc:5-ad6bff3"
    row = _row(images, folder, name, repository="calc", tests=({"check.py": OLD_CHECK}, {"check.py": NEW_CHECK})) | {
        "instance_id": "calc__calc-5",
        "repo": "calc/calc",
        "image_name": name,
        "language": "c",
        "install_config": {
            "install": ["make"],
            "log_parser": "parse_log_checks",
            "test_cmd": ["export PYTHONPATH=.", "python3 check.py"],
        },
        "FAIL_TO_PASS": ["total in 29.08 msec"],
        "PASS_TO_PASS": ["mean"],
    }
    return Made(save(folder, "swerebench_v2_other", row), "swerebench_v2", row["instance_id"])


def swebench_live(images: Images, folder: Path) -> Made:
    name = "starryzhang/sweb.eval.x86_64.calc_1776_calc-6:latest"
    row = _row(images, folder, name) | {
        "instance_id": "calc__calc-6",
        "repo": "calc/calc",
        "pull_number": "6",
        "issue_numbers": ["5"],
        "hints_text": "",
        "all_hints_text": "",
        "commit_urls": ["https://example.org"],
        "commit_url": "https://example.org",
        "test_cmds": ["pytest -rA tests/test_core.py"],
        "log_parser": "pytest",
        "difficulty": {"files": 1, "hunks": 1, "lines": 1},
    }
    return Made(save(folder, "swebench_live", row), "swebench_live", row["instance_id"])


GO = """#!/bin/sh
PYTHONPATH=. python3 check.py
"""
OLD_GO = """from calc.core import mean
print("--- PASS: TestMean (0.00s)" if mean([1, 3]) == 2 else "--- FAIL: TestMean (0.00s)")
"""
NEW_GO = f"""{OLD_GO}from calc.core import total
print("--- PASS: TestTotal (0.01s)" if total([1]) == 1 else "--- FAIL: TestTotal (0.01s)")
"""


LIVE_PARSER = """import re

def parser(log: str) -> dict[str, str]:
    print("a parser may print")
    words = {"PASS": "pass", "FAIL": "fail"}
    return {name: words[word] for word, name in re.findall(r"^--- (PASS|FAIL): (\\S+)", log, re.MULTILINE)}
"""


def swebench_live_other(images: Images, folder: Path) -> Made:
    """A row of its MultiLang: the parser is a program that reads what the last commands print."""
    name = "starryzhang/sweb.eval.x86_64.calc_1776_calc-9"
    row = _row(images, folder, name, tests=({"check.py": OLD_GO}, {"check.py": NEW_GO})) | {
        "instance_id": "calc__calc-9",
        "repo": "calc/calc",
        "docker_image": name,
        "rebuild_cmds": ["export PYTHONPATH=."],
        "test_cmds": ["python3 check.py >test.log"],
        "print_cmds": ["cat test.log"],
        "log_parser": LIVE_PARSER,
        "FAIL_TO_PASS": ["TestTotal"],
        "PASS_TO_PASS": ["TestMean"],
    }
    return Made(save(folder, "swebench_live_other", row), "swebench_live", row["instance_id"])


RUN_SCRIPT = """#!/bin/bash
IFS=',' read -r -a files <<< "$1"
python3 -m pytest -rA "${files[@]}"
"""
PARSER_SCRIPT = """import json, sys
tests = []
for line in open(sys.argv[1]):
    if line.startswith(("PASSED ", "FAILED ")):
        status, name = line.split()[:2]
        tests.append({"name": name, "status": status})
json.dump({"tests": tests}, open(sys.argv[3], "w"))
"""


def swebench_pro(images: Images, folder: Path) -> Made:
    """The image has the repository at /app, with the commit of the fix."""
    tag = "calc.calc-calc__calc-7"
    row = _row(images, folder, f"jefzda/sweap-images:{tag}", repository="app")
    base, fail_to_pass, pass_to_pass = (row[name] for name in ("base_commit", "FAIL_TO_PASS", "PASS_TO_PASS"))
    del row["FAIL_TO_PASS"], row["PASS_TO_PASS"]
    before = f"git reset --hard {base}\ngit clean -fd \ngit checkout {base} \ngit checkout future -- tests/test_core.py"
    row |= {
        "instance_id": "instance_calc__calc-7",
        "repo": "calc/calc",
        "repo_language": "python",
        "requirements": "- total sums all numbers.",
        "interface": "No new interfaces are introduced.",
        "fail_to_pass": repr(fail_to_pass),
        "pass_to_pass": repr(pass_to_pass),
        "issue_specificity": '["core_feat"]',
        "issue_categories": '["back_end_knowledge"]',
        "before_repo_set_cmd": before,
        "selected_test_files_to_run": "['tests/test_core.py']",
        "dockerhub_tag": tag,
        "run_script": RUN_SCRIPT,
        "parser_script": PARSER_SCRIPT,
    }
    return Made(save(folder, "swebench_pro", row), "swebench_pro", row["instance_id"])


def swebench_multilingual(images: Images, folder: Path) -> Made:
    """An old row of a repository in Go; `go` is a script that prints as go does."""
    name = "swebench/sweb.eval.x86_64.gin-gonic_1776_gin-1805:latest"
    row = _row(images, folder, name, tests=({"check.py": OLD_GO}, {"check.py": NEW_GO})) | {
        "instance_id": "gin-gonic__gin-1805",
        "repo": "gin-gonic/gin",
        "version": "1805",
        "hints_text": "",
        "FAIL_TO_PASS": ["TestTotal"],
        "PASS_TO_PASS": ["TestMean"],
    }
    go = images.folder / name.replace("/", "__").replace(":", "__") / "usr/bin/go"
    go.write_text(GO)
    go.chmod(0o755)
    return Made(save(folder, "swebench_multilingual", row), "swebench_multilingual", row["instance_id"])


ALL = (
    swerebench,
    swerebench_v2,
    swerebench_v2_other,
    swebench_live,
    swebench_live_other,
    swebench_pro,
    swebench_multilingual,
)
