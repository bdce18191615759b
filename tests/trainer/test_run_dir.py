"""A run's folder: new for every run, whole lines, the curve."""

import json
from pathlib import Path

import pytest

from client.errors import ConfigError
from trainer.config.file import load_config
from trainer.records import Group, Segment, Trace
from trainer.rollouts.manager import RolloutBatch
from trainer.rollouts.process import ClientExit, ClientSession
from trainer.rollouts.result import to_result
from trainer.run_dir import RunDir, rollout_metrics

QUICKSTART = Path(__file__).parents[2] / "scripts" / "runs" / "quickstart.toml"
TRACE = Trace((Segment(-1, False, (1, 2)), Segment(0, True, (3, 4, 5), (-0.5, -0.25, -1.0), 7, "length")), n_calls=2)


@pytest.fixture
def make_run_dir(tmp_path):
    return lambda: RunDir(load_config(QUICKSTART, [f"run.dir={tmp_path}/runs"]))


def make_result(number: int, reward: float | None, n_calls: int = 2):
    metadata = {"exit_status": "Submitted", "n_calls": n_calls, "submission": "diff"}
    exit = (
        ClientExit(1, None, "log") if reward is None else ClientExit(0, {"reward": reward, "metadata": metadata}, "log")
    )
    return to_result(ClientSession(f"g.{number}", "g", "train"), exit, TRACE, 1.5, False)


def test_every_run_gets_a_folder_of_its_own(make_run_dir):
    run_dirs = [make_run_dir() for _ in range(3)]
    assert [run_dir.path.name for run_dir in run_dirs] == ["quickstart", "quickstart-2", "quickstart-3"]
    config = load_config(run_dirs[0].path / "config.resolved.toml", [])
    assert config == load_config(QUICKSTART, [f"run.dir={config.run.dir}"])


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"run.dir .{tmp_path}/file. cannot be written to"):
        RunDir(load_config(QUICKSTART, [f"run.dir={tmp_path}/file"]))


def test_every_session_is_recorded_with_its_tokens_failed_ones_included(make_run_dir):
    run_dir = make_run_dir()
    run_dir.decode = lambda tokens: " ".join(map(str, tokens))
    run_dir.write_session("train", 3, make_result(1, 1.0))
    run_dir.write_session("train", 3, make_result(2, None))
    good, bad = map(json.loads, (run_dir.path / "trajectories" / "train_0003.jsonl").read_text().splitlines())
    assert (good["reward"], good["failure"], good["client"]["output"]["metadata"]["submission"]) == (1.0, None, "diff")
    assert good["segments"][1] == {
        **{"parent": 0, "sampled": True, "tokens": [3, 4, 5], "text": "3 4 5"},
        **{"logprobs": [-0.5, -0.25, -1.0], "version": 7, "finish_reason": "length"},
    }
    assert (bad["reward"], bad["failure"]["code"], bad["client"]["log"]) == (None, "session_failed", "log")


def test_metrics_of_rollouts_exclude_failures():
    results = [make_result(1, 1.0), make_result(2, 0.0, n_calls=1), make_result(3, None), make_result(4, None)]
    group = Group("g", tuple(result.sample for result in results if result.sample))
    metrics = rollout_metrics(RolloutBatch((group,), tuple(results), refills=2))
    assert (metrics["reward_mean"], metrics["resolved_rate"]) == (0.5, 0.5)
    assert (metrics["n_samples"], metrics["n_sessions"]) == (2, 4)
    assert metrics["failures"] == {"server.session_failed": 2} and metrics["refills"] == 2 and metrics["alarms"] == 1
    assert metrics["exit_statuses"] == {"Submitted": 2}
    assert metrics["sampled_tokens"] == 6 and metrics["cut_off_turns"] == 2


def test_steps_and_evaluations_are_written_as_lines_and_drawn(make_run_dir):
    run_dir = make_run_dir()
    run_dir.write_evaluation(0, {"resolved_rate": 0.25})
    run_dir.write_step(1, {"reward_mean": 0.5})
    first = (run_dir.path / "reward.png").read_bytes()
    run_dir.write_step(2, {"reward_mean": 0.75})
    assert [json.loads(line) for line in (run_dir.path / "metrics.jsonl").read_text().splitlines()] == [
        {"step": 1, "reward_mean": 0.5},
        {"step": 2, "reward_mean": 0.75},
    ]
    assert json.loads((run_dir.path / "evaluations.jsonl").read_text()) == {"step": 0, "resolved_rate": 0.25}
    assert first.startswith(b"\x89PNG") and (run_dir.path / "reward.png").read_bytes() != first


def test_a_metric_that_is_not_finite_is_still_valid_json(make_run_dir):
    run_dir = make_run_dir()
    run_dir.write_step(1, {"reward_mean": 0.5, "grad_norm": float("nan"), "loss": float("-inf")})
    (line,) = (run_dir.path / "metrics.jsonl").read_text().splitlines()
    metrics = json.loads(line, parse_constant=pytest.fail)
    assert metrics == {"step": 1, "reward_mean": 0.5, "grad_norm": "nan", "loss": "-inf"}
