"""Tasks survive JSON: that is how they reach a worker."""

import json

from agent_server.grading.datasets.registry import load_dataset
from agent_server.tasks.task import Task


def test_a_row_keeps_its_lists_through_json():
    task = Task("t", "swesmith", "i", "p", ("a::b", "c.py::d[x, y]"), (), {"test_cmd": "cmd"})
    assert Task.from_dict(json.loads(json.dumps(task.as_dict()))) == task and load_dataset("swesmith").test_files(
        task
    ) == ("a", "c.py")
