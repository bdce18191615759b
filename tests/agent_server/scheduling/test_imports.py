"""Queueing loads neither agents nor grading: a scheduler that never runs a session stays small."""

import subprocess
import sys

from tests.agent_server.conftest import ROOT

SCRIPT = """
import importlib, pkgutil, sys
import agent_server.executors.local
import agent_server.scheduling
import agent_server.store.store
for module in pkgutil.iter_modules(agent_server.scheduling.__path__, "agent_server.scheduling."):
    importlib.import_module(module.name)
print(*(name for name in sys.modules if name.startswith(("agent_server.agents", "agent_server.grading"))))
"""


def test_scheduling_and_the_local_executor_load_neither_agents_nor_grading():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
