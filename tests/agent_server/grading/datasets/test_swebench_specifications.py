"""Evaluation scripts of older rows, held line by line against those of swebench 4.1.0, for all of its repositories.

swebench 4.1.0 is a wheel in the cache's folder (setup/reference_wheel.sh), imported in a process of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_server.grading.datasets.row_test_patch import apply_command
from agent_server.grading.datasets.swebench_parsers import is_pythons, parsers
from agent_server.grading.datasets.swebench_scripts import FEW_RETRIES, OWN_RETRIES, eval_script, reason_unknown
from agent_server.grading.datasets.swebench_specifications import SWEBENCH, SWEGYM, specification

ROOT = Path(__file__).resolve().parents[4]
WHEEL = Path(os.environ.get("SWE_RL_CACHE", ROOT / ".cache")) / "swebench-4.1.0-py3-none-any.whl"
BASE = "0123456789012345678901234567890123456789"


def hunk(old: str, new: str, text: str = "") -> str:
    return f"--- {old}\n+++ {new}\n@@ -1 +1,2 @@\n a\n+{text or 'b'}\n"


TEST = "diff --git a/tests/core/test_a.py b/tests/core/test_a.py\n" + hunk(
    "a/tests/core/test_a.py", "b/tests/core/test_a.py"
)
PATCHES = {
    "one test": TEST,
    "data and a new test": (
        TEST
        + "diff --git a/tests/data/x.json b/tests/data/x.json\n"
        + hunk("a/tests/data/x.json", "b/tests/data/x.json")
        + "diff --git a/tests/test_new.py b/tests/test_new.py\nnew file mode 100644\n"
        + "--- /dev/null\n+++ b/tests/test_new.py\n@@ -0,0 +1 @@\n+a\n"
    ),
    "new tests alone": (
        "diff --git a/tests/test_new.py b/tests/test_new.py\nnew file mode 100644\n"
        + "--- /dev/null\n+++ b/tests/test_new.py\n@@ -0,0 +1 @@\n+a\n"
    ),
    "a rename and a removed test": (
        "diff --git a/pkg/test_old.py b/pkg/test_name.py\nsimilarity index 90%\nrename from pkg/test_old.py\n"
        + "rename to pkg/test_name.py\n"
        + hunk("a/pkg/test_old.py", "b/pkg/test_name.py")
        + "diff --git a/tests/gone.py b/tests/gone.py\ndeleted file mode 100644\n"
        + "--- a/tests/gone.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"
    ),
    "a diff in a test": TEST.replace("+b", "+diff --git a/no b/no.py"),
}
# Prints the data file's content, and the official script by repository, version and patch.
OFFICIAL = """
import json, sys
from pathlib import Path
from scripts.swebench_specifications import as_text, specifications

content = as_text(specifications(Path(sys.argv[1])))
from swebench.harness.constants import MAP_REPO_VERSION_TO_SPECS
from swebench.harness.test_spec.create_scripts import make_eval_script_list

scripts = {}
for repository in json.loads(content)["repositories"]:
    for version, specs in MAP_REPO_VERSION_TO_SPECS[repository].items():
        for name, patch in json.load(open(sys.argv[2])).items():
            row = {"repo": repository, "version": version, "test_patch": patch, "instance_id": "x"}
            lines = make_eval_script_list(row, specs, "testbed", "/testbed", sys.argv[3], patch)
            scripts[f"{repository} {version} {name}"] = lines
print(json.dumps({"content": content, "scripts": scripts}))
"""


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    assert WHEEL.is_file(), f"{WHEEL} is missing; run bash setup/setup.sh test"
    patches = tmp_path_factory.mktemp("patches") / "patches.json"
    patches.write_text(json.dumps(PATCHES))
    printed = subprocess.run(
        [sys.executable, "-c", OFFICIAL, str(WHEEL), str(patches), BASE], cwd=ROOT, check=True, stdout=subprocess.PIPE
    ).stdout
    return json.loads(printed)


def test_the_data_file_is_what_the_wheel_says(official):
    assert SWEBENCH.read_text() == official["content"]


def lines_of(script: str) -> list[str]:
    """Without the lines that a script leaves out of the harness's, or adds to them."""
    printing = ("git status", "git show", f"git -c core.fileMode=false diff {BASE}")
    return [line for line in script.split("\n") if line not in (*printing, FEW_RETRIES, OWN_RETRIES)]


def test_every_script_is_the_official_one_line_by_line(official):
    compared = set()
    for key, lines in official["scripts"].items():
        repository, version, name = key.split(" ", 2)
        known = specification(repository)
        if not known.commands:
            continue
        row = {"repo": repository, "version": version, "base_commit": BASE, "test_patch": PATCHES[name]}
        expected = "\n".join(lines).replace("git apply --verbose --reject -", "git apply -v -")
        assert lines_of(eval_script(row)) == lines_of(expected), key
        compared.add(repository)
    assert len(compared) > 60 and {"django/django", "sympy/sympy", "redis/redis", "axios/axios"} <= compared


def test_what_the_harness_had_and_a_script_needs_is_there():
    row = {"repo": "django/django", "version": "2.2", "base_commit": BASE, "test_patch": TEST}
    script = eval_script(row).split("\n")
    wanted = [
        "export LANG=en_US.UTF-8",
        "export LC_ALL=en_US.UTF-8",
        "export PYTHONIOENCODING=utf8",
        "git config --global --add safe.directory /testbed",
        "python setup.py install",
        f"git checkout {BASE} tests/core/test_a.py",
        "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 core.test_a",
    ]
    assert [line for line in script if line in wanted] == [*wanted, wanted[5]]
    assert apply_command(TEST) in "\n".join(script)


def test_every_parser_of_a_specification_is_one_of_swebenchs():
    for path in (SWEBENCH, SWEGYM):
        for name, facts in json.loads(path.read_text())["repositories"].items():
            assert facts["log_parser"] in parsers(), name
            assert is_pythons(facts["log_parser"]) is (facts["language"] == "py"), name


@pytest.mark.parametrize(
    "repository, version, lines",
    [
        ("getmoto/moto", "4.1", ["make init", "pytest -n0 -rA tests/core/test_a.py"]),
        ("Project-MONAI/MONAI", "1.3", ["pytest -rA  tests/core/test_a.py"]),
        ("project-monai/monai", "0.1", ["pytest -rA  tests/core/test_a.py"]),
        ("conan-io/conan", "2.4", ["export PYTHONPATH=${PYTHONPATH:-}:$(pwd)", "pytest -n0 -rA tests/core/test_a.py"]),
        ("dask/dask", "2024.5", ["pytest -n0 -rA  --color=no tests/core/test_a.py"]),
        ("iterative/dvc", "3.49", ["pytest -rA tests/core/test_a.py"]),
        ("python/mypy", "1.10", ['pytest -rA -k "testOne or testTwo"']),
        ("nobody/knows", "", ["pytest -rA tests/core/test_a.py"]),
    ],
)  # fmt: skip
def test_scripts_of_swe_gyms_repositories(repository, version, lines):
    patch = TEST if "mypy" not in repository else TEST.replace("+b", "+[case testOne]\n+[case testTwo]")
    row = {"repo": repository, "version": version, "base_commit": BASE, "test_patch": patch}
    assert reason_unknown(repository, version) == ""
    script = eval_script(row).split("\n")
    assert [line for line in script if line in lines] == lines
    assert (FEW_RETRIES in script) is (repository != "nobody/knows")


@pytest.mark.parametrize("repository, version", [("django/django", "9.9"), ("Automattic/wp-calypso", "10.0.0")])
def test_a_version_that_the_harness_does_not_know_is_refused(repository, version):
    assert reason_unknown(repository, version).startswith("it has no eval_script, and the harness")
