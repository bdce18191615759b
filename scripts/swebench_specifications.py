"""Writes the facts of swebench 4.1.0's evaluation scripts into agent_server's data file.

    pip download --no-deps --dest .cache swebench==4.1.0
    .venv/bin/python -m scripts.swebench_specifications .cache/swebench-4.1.0-py3-none-any.whl

Source: `MAP_REPO_VERSION_TO_SPECS` and `MAP_REPO_TO_PARSER` of https://pypi.org/project/swebench/4.1.0/, the last
version that made evaluation scripts. Facts that only make images (packages, pre_install, ...) are left out.
Invariant: the wheel is imported from where it lies, in a process that has not imported the installed swebench.
"""

import json
import sys
from pathlib import Path
from typing import Any

from agent_server.grading.datasets.swebench_specifications import SWEBENCH

EVALUATION = ("test_cmd", "install", "eval_commands", "build")
INSTALLED_IN_SCRIPT = "py"  # scripts of other languages do not install the package
# Test commands that swebench computes from the patch in a way of their own.
WITH_OWN_RULE = {"Automattic/wp-calypso"}


def specifications(wheel: Path) -> dict[str, Any]:
    """The content of the data file, from the wheel of swebench 4.1.0."""
    sys.path.insert(0, str(wheel))
    from swebench.harness.constants import FAIL_ONLY_REPOS, MAP_REPO_TO_EXT, MAP_REPO_VERSION_TO_SPECS
    from swebench.harness.log_parsers import MAP_REPO_TO_PARSER

    repositories = {}
    for repository, versions in sorted(MAP_REPO_VERSION_TO_SPECS.items()):
        if repository not in MAP_REPO_TO_PARSER:
            continue  # no outcome of its tests could be read
        language = MAP_REPO_TO_EXT[repository]
        groups: dict[str, dict[str, Any]] = {}
        for version, all_facts in versions.items():
            if repository in WITH_OWN_RULE:
                break
            facts = {name: all_facts[name] for name in EVALUATION if all_facts.get(name)}
            if language != INSTALLED_IN_SCRIPT:
                facts.pop("install", None)
            groups.setdefault(json.dumps(facts), {"versions": []} | facts)["versions"].append(version)
        repositories[repository] = {
            "language": language,
            "log_parser": MAP_REPO_TO_PARSER[repository].__name__,
            "eval_type": "fail_only" if repository in FAIL_ONLY_REPOS else "pass_and_fail",
            "commands": list(groups.values()),
        }
    return {"source": "swebench 4.1.0, by scripts/swebench_specifications.py", "repositories": repositories}


def as_text(content: dict[str, Any]) -> str:
    """JSON with one line for each group of versions."""
    lines = []
    for repository, facts in content["repositories"].items():
        head = json.dumps({name: value for name, value in facts.items() if name != "commands"})
        commands = ",\n".join(f"  {json.dumps(group, ensure_ascii=False)}" for group in facts["commands"])
        lines.append(f'{json.dumps(repository)}: {head[:-1]}, "commands": [\n{commands}\n]}}')
    return f'{{"source": {json.dumps(content["source"])}, "repositories": {{\n' + ",\n".join(lines) + "\n}}\n"


if __name__ == "__main__":
    SWEBENCH.write_text(as_text(specifications(Path(sys.argv[1]))))
