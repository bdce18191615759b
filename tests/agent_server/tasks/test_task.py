"""Tasks survive JSON: that is how they reach a worker."""

import json

from agent_server.grading.datasets import registry as datasets
from agent_server.tasks.task import Task


def test_a_row_keeps_its_lists_through_json():
    task = Task("t", "swesmith", "i", "p", ("a::b", "c.py::d[x, y]"), (), {"test_cmd": "cmd"})
    assert Task.from_dict(json.loads(json.dumps(task.as_dict()))) == task and datasets.load("swesmith").test_files(
        task
    ) == ("a", "c.py")
