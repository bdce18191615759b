"""Summary, table and progress line."""

from types import SimpleNamespace

from client.evaluation.report import Progress, summarize, table
from client.evaluation.results import EvaluationSettings, Record


def record(task: str, sample: int, **fields) -> Record:
    end = {"status": "completed", "reward": 0.0, "exit_status": "Submitted", "submission": ""}
    return Record(task_id=task, sample=sample, session_id=f"{task}{sample}", **end | fields)


def test_a_summary_counts_the_last_line_of_a_sample_and_all_tokens():
    error = {"boundary": "sandbox", "code": "sandbox_died"}
    failed = {"status": "failed", "reward": None, "error": error, "prompt_tokens": 5}
    records = [
        record("a", 0, **failed),
        record("a", 0, resolved=True, prompt_tokens=7),
        record("a", 1),
        record("b", 0, **failed),
    ]
    summary = summarize(
        EvaluationSettings(model="m", base_url="", split="eval", tasks=("a", "b", "c"), samples=2), records
    )
    expected = {"samples": 6, "completed": 2, "resolved": 1, "not_run": 3, "prompt_tokens": 17}
    assert {name: summary[name] for name in expected} == expected
    assert summary["failures"] == {"sandbox/sandbox_died": 1}
    pass_at = [(k, estimate["value"], estimate["tasks"]) for k, estimate in summary["pass_at"].items()]
    assert pass_at == [("1", 0.5, 1), ("2", 1.0, 1)]
    assert "sandbox/sandbox_died" in table(summary)


def test_progress_includes_earlier_runs():
    before = [record("a", 0, resolved=True), record("b", 0, status="failed")]
    progress = Progress(SimpleNamespace(isatty=lambda: False, write=lambda text: None, flush=lambda: None), before, 8)
    progress.update(record("b", 0))
    assert progress.line(10.0) == "2 of 8 samples completed, 1 resolved (50.0%), 0:01:00 left"


def test_progress_on_a_terminal_is_one_redrawn_line():
    shown = []
    progress = Progress(SimpleNamespace(isatty=lambda: True, write=shown.append, flush=lambda: None), [], 2)
    progress.update(record("a", 0))
    progress.update(record("b", 0, resolved=True))
    progress.close()
    text = "".join(shown)
    assert text.count("\n") == 1 and text.endswith("\n")
    counts = [line.split(",")[0] for line in text.split("\r")[1:]]
    assert counts == ["1 of 2 samples completed", "2 of 2 samples completed"]
