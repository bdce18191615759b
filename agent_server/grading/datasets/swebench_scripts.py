"""Evaluation scripts for rows without one: older rows of SWE-bench, and SWE-Gym's.

The commands are those of SWE-bench 4's and SWE-Gym's specifications.
"""

import shlex
from collections.abc import Mapping

from agent_server.grading.datasets.row_test_patch import apply_command
from agent_server.grading.patches import paths_in

# swebench's NON_TEST_EXTS
NOT_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
ACTIVATE = "source /opt/miniconda3/bin/activate\nconda activate testbed\ncd /testbed"
DJANGO = "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1"
COMMANDS = {  # of repositories that do not run `pytest -rA`
    "astropy/astropy": "pytest -rA -vv -o console_output_style=classic --tb=no",
    "django/django": DJANGO,
    "mwaskom/seaborn": "pytest --no-header -rA",
    "scikit-learn/scikit-learn": "pytest --no-header -rA --tb=no -p no:cacheprovider",
    "sphinx-doc/sphinx": "tox --current-env -epy39 -v --",
    "sympy/sympy": "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose",
    "getmoto/moto": "pytest -n0 -rA",
    "dask/dask": "pytest -n0 -rA --color=no",
    "bokeh/bokeh": "pytest -rA -n0",
    "modin-project/modin": "pytest -n0 -rA",
    "conan-io/conan": "pytest -n0 -rA",
    "pandas-dev/pandas": "pytest -rA --tb=long",
    "facebookresearch/hydra": "pytest -rA --tb=long",
    "iterative/dvc": "pytest -rA --tb=short",
    "pydantic/pydantic": "pytest -rA --tb=short -vv -o console_output_style=classic --no-header",
}


def eval_script(row: Mapping[str, str]) -> str:
    """The script for an older row: apply the test patch, run the repository's command on its files, restore them."""
    files = paths_in(row["test_patch"])
    tests = [file for file in files if not file.endswith(NOT_TESTS)]
    command = COMMANDS.get(row["repo"], "pytest -rA")
    if command is DJANGO:
        tests = [file.removesuffix(".py").removeprefix("tests/").replace("/", ".") for file in tests]
    restore = f"git checkout {row['base_commit']} -- " + " ".join(map(shlex.quote, files))
    restore = f"{restore} 2>/dev/null || true"  # files that the patch creates are not in the commit
    return "\n".join(
        [
            ACTIVATE,
            restore,
            apply_command(row["test_patch"]),
            ": '>>>>> Start Test Output'",
            f"{command} {' '.join(map(shlex.quote, tests))}",
            ": '>>>>> End Test Output'",
            restore,
        ]
    )


def test_command(script: str) -> str:
    """The part of an evaluation script between the markers of the test output; the whole script without them."""
    lines = script.splitlines()
    markers = [
        number
        for number, line in enumerate(lines)
        if ">>>>> Start Test Output" in line or ">>>>> End Test Output" in line
    ]
    return "\n".join(lines[markers[0] + 1 : markers[1]]) if len(markers) == 2 else script
