"""Grading of one task step by step: its sandboxes, the patch of an agent, the grade."""

import shlex
from dataclasses import replace

from agent_server.grading import changes, repository
from agent_server.grading.grade import Grade, GradingConfig, grade
from agent_server.grading.placement import AgentSandbox, FreshSandbox
from agent_server.sandboxes import apptainer
from agent_server.sandboxes.limits import Limits
from agent_server.tasks.catalog import Catalog
from agent_server.validate.attacks import CONFTEST
from tests.agent_server.grading.sample_rows import FIXED

HARMLESS = "--- a/README.md\n+++ b/README.md\n@@ -1 +1 @@\n-calc\n+calc.\n"
IDENTITY = "git config --global user.name a; git config --global user.email a@b"
SOLVE = f"printf %s {shlex.quote(FIXED)} >calc/core.py"
PLANT_CONFTEST = f"printf %s {shlex.quote(CONFTEST)}"
PATCH = """--- a/calc/core.py
+++ b/calc/core.py
@@ -1,5 +1,5 @@
 def total(numbers):
-    return sum(numbers[1:])
+    return sum(numbers)
\x20
\x20
 def mean(numbers):
"""
LIMITS = Limits(memory_bytes=2**30, processes=200, disk_bytes=2**28, cpu_s=600.0)
CONFIG = GradingConfig(timeout_s=60.0)


class GradingBench:
    """Sandboxes of one task, closed at the end."""

    def __init__(self, images, tmp_path, row):
        self.catalog = Catalog(row.path)
        self.row, self.dataset, self.task = self.catalog.get_row("train", row.task_id)
        self._image, self._scratch, self._open = apptainer.image_path(images, self.task.image_name), tmp_path, []

    def sandbox(self, env=None):
        """A fresh sandbox. `env`: variables in place of the image's."""
        self._open.append(
            apptainer.start(self._image, scratch=self._scratch, env=env or {}, start_timeout_s=60, limits=LIMITS)
        )
        return self._open[-1]

    def agents(self):
        """A sandbox with the agent's repository."""
        sandbox = self.sandbox()
        repository.prepare(self.dataset, self.task, sandbox)
        return sandbox

    def patch(self, edit: str) -> str:
        """The submission of an agent that runs `edit`."""
        sandbox = self.agents()
        result = run(sandbox, edit)
        assert result.returncode == 0, result.output
        return changes.collect_diff(sandbox)

    def grade(
        self, submission: str, config: GradingConfig = CONFIG, *, sandbox=None, strategy=None, **options
    ) -> Grade:
        """The grade in a fresh sandbox, unless another is named."""
        sandbox, strategy = sandbox or self.sandbox(), strategy or FreshSandbox()
        return grade(self.dataset, self.task, submission, sandbox, strategy, config, **options)

    def close(self):
        for sandbox in self._open:
            sandbox.close()


def run(sandbox, command):
    return sandbox.run(command, cwd="/testbed", timeout_s=60)


def solved_and_lost(bench, edit="true", **options):
    """Two grades of an agent that runs `edit`: with the fix and without it."""
    return bench.grade(bench.patch(f"{SOLVE}; {edit}"), **options), bench.grade(bench.patch(edit), **options)


def graded_in_agent_sandbox(bench, edit, submission=None):
    """The grade in the agent's own sandbox, as with AGENT_SERVER_GRADING_SANDBOX=same."""
    sandbox, strategy = bench.sandbox(), AgentSandbox()
    strategy.prepare(bench.dataset, bench.task, sandbox)
    result = run(sandbox, edit)
    assert result.returncode == 0, result.output
    patch = changes.collect_diff(sandbox) if submission is None else submission
    return bench.grade(patch, sandbox=sandbox, strategy=strategy)


def whole_repository(bench):
    """The bench with a test command that collects tests in the whole repository."""
    bench.task = replace(bench.task, row=bench.task.row | {"test_cmd": "python3 -m pytest -rA"})
    return bench
