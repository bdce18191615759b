"""The training loop with real client processes and a fake engine, actor and gateway."""

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from client.errors import ServerError
from trainer.actors.base import StepReport
from trainer.checkpoints import Checkpoints
from trainer.config.file import load_config
from trainer.display import Display
from trainer.interrupts import Interrupted, Interrupts
from trainer.loop import Components, Loop
from trainer.records import Segment, Trace
from trainer.rollouts.manager import ClientSettings, RolloutManager
from trainer.run_dir import RunDir

QUICKSTART = Path(__file__).parents[2] / "scripts" / "runs" / "quickstart.toml"
# The first client of a group gets reward 1, the others get `other`.
CLIENT = """
mkdir {dir}/$RELAX_GROUP_ID-$RELAX_ROLLOUT_MODE 2>/dev/null && reward=1 || reward={other}
metadata='"exit_status": "Submitted", "n_calls": 1, "task_id": "'$RELAX_GROUP_ID'"'
printf '{{"reward": %s, "metadata": {{%s}}}}' $reward "$metadata" >$RELAX_OUTPUT_JSON
"""


class Recorder:
    """A fake engine, gateway and actor in one, which records the calls in order."""

    def __init__(self):
        self.calls, self.opened, self.sampling, self.on_step = [], [], [], lambda: None

    def load_weights(self, directory, version):
        self.calls.append(("load", (directory / "weights").read_text(), version))

    def set_version(self, version):
        self.calls.append(("version", version))

    def open(self, session_id, key, sampling):
        assert session_id == key
        self.opened.append(session_id)
        self.sampling.append(sampling)

    def close(self, session_id):
        return Trace((Segment(-1, False, (1,)), Segment(0, True, (2,), (-0.1,), 0, "stop")), 1)

    def status(self):
        return {}

    def step(self, groups):
        self.on_step()
        self.calls.append(("step", [[round(sample.advantage, 3) for sample in group] for group in groups]))
        return StepReport(0.5, 1.0, 0.1, 0.0, 0.001, 0.01, 8, 16)

    def save_weights(self, directory):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "weights").write_text(str(sum(entry[0] == "step" for entry in self.calls)))

    def save_state(self, directory):
        directory.mkdir()


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def make_loop(tmp_path, recorder, capsys):
    def make(*overrides, other=0, command=None, interrupts=None, steps_done=0) -> tuple[Loop, RunDir]:
        overrides = [
            "rollout.groups_per_step=2",
            "rollout.group_size=2",
            "eval.tasks=3",
            "eval.samples=2",
            "train.steps=2",
            *overrides,
        ]
        config = load_config(QUICKSTART, [f"run.dir={tmp_path}/runs", *overrides])
        interrupts = interrupts or Interrupts()
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
        (tmp_path / "groups").mkdir()
        command = command or CLIENT.format(dir=tmp_path / "groups", other=other)
        settings = ClientSettings(
            command,
            "http://gateway",
            tmp_path / "sessions",
            env,
            timeout_s=60,
            kill_after_s=2,
            max_clients=8,
            max_tries=2,
        )
        run_dir = RunDir(config)
        components = Components(
            recorder,
            recorder,
            recorder,
            RolloutManager(settings, recorder, interrupts, lambda: None),
            Checkpoints(run_dir.path / "checkpoints"),
        )
        weights_dir = run_dir.path / "weights"
        loop = Loop(config, components, run_dir, Display(), interrupts, "run-1", weights_dir, steps_done)
        return loop, run_dir

    return make


def lines(run_dir, name):
    return [json.loads(line) for line in (run_dir.path / name).read_text().splitlines()]


def test_a_run_from_the_first_evaluation_to_the_last(make_loop, recorder, capsys):
    loop, run_dir = make_loop()
    loop.run()
    advantages = [[1.0, -1.0], [1.0, -1.0]]
    assert [(name, *map(sorted_groups, rest)) for name, *rest in recorder.calls] == [
        *(("step", advantages), ("load", "1", 1), ("version", 1)),
        *(("step", advantages), ("load", "2", 2), ("version", 2)),
    ]
    metrics = lines(run_dir, "metrics.jsonl")
    assert [line["step"] for line in metrics] == [1, 2]
    assert {"rollout", "train", "save_weights", "load_weights"} == set(metrics[0]["seconds"])
    assert (
        metrics[0]["reward_mean"],
        metrics[0]["loss"],
        metrics[0]["grad_norm"],
        metrics[0]["logprob_diff_mean"],
    ) == (0.5, 0.5, 1.0, 0.001)
    assert metrics[1]["weights_version"] == 2 and metrics[1]["n_groups_trained"] == 2
    evaluations = lines(run_dir, "evaluations.jsonl")
    assert [(line["step"], line["n_tasks"], line["n_samples"]) for line in evaluations] == [(0, 3, 6), (2, 3, 6)]
    assert "held-out resolved rate: before 50.0%, after 0.0%" in capsys.readouterr().out
    assert len((run_dir.path / "trajectories" / "eval_0000.jsonl").read_text().splitlines()) == 6
    assert [checkpoint.step for checkpoint in Checkpoints(run_dir.path / "checkpoints").all()] == [2]


def sorted_groups(value):
    return [sorted(group, reverse=True) for group in value] if isinstance(value, list) else value


def test_both_evaluations_use_the_same_groups_and_training_uses_others(make_loop, recorder):
    loop, _ = make_loop()
    loop.run()
    groups = [session_id.split(".")[0] for session_id in recorder.opened]
    assert groups[:6] == groups[-6:] and len(set(groups[:6])) == 3
    assert len(set(groups[6:-6])) == 4 and not set(groups[6:-6]) & set(groups[:6])
    assert len(set(recorder.opened)) == 20
    assert {(sampling.temperature, sampling.max_tokens) for sampling in recorder.sampling} == {(1.0, 48)}


def test_a_step_without_different_rewards_changes_no_weights(make_loop, recorder, capsys):
    loop, run_dir = make_loop("train.steps=1", "eval.tasks=0", other=1)
    loop.run()
    assert recorder.calls == []
    (line,) = lines(run_dir, "metrics.jsonl")
    assert (line["n_groups_trained"], line["loss"], line["weights_version"]) == (0, None, 0)
    assert "weights unchanged" in capsys.readouterr().out


def test_a_gradient_that_is_not_finite_is_not_served(make_loop, recorder):
    loop, run_dir = make_loop("train.steps=1", "eval.tasks=0")
    recorder.step = lambda groups: StepReport(0.5, float("nan"), 0.1, 0.0, 0.001, 0.01, 8, 16, updated=False)
    loop.run()
    assert recorder.calls == [] and lines(run_dir, "metrics.jsonl")[0]["weights_version"] == 0


def test_a_step_whose_sessions_all_fail_ends_the_run_with_the_reason(make_loop, recorder):
    loop, run_dir = make_loop("eval.tasks=0", command="echo no such image >&2; exit 1")
    with pytest.raises(ServerError, match="none of 8 train sessions returned a reward.*no such image"):
        loop.run()
    assert recorder.calls == []
    assert len((run_dir.path / "trajectories" / "train_0001.jsonl").read_text().splitlines()) == 8


def test_checkpoints_and_evaluations_follow_every_steps(make_loop):
    loop, run_dir = make_loop("train.steps=3", "checkpoint.every_steps=1", "eval.every_steps=2")
    loop.run()
    assert [checkpoint.step for checkpoint in Checkpoints(run_dir.path / "checkpoints").all()] == [2, 3]
    assert [line["step"] for line in lines(run_dir, "evaluations.jsonl")] == [0, 2, 3]


def test_a_resumed_run_continues_the_step_count(make_loop):
    loop, run_dir = make_loop("train.steps=3", "eval.tasks=0", steps_done=2)
    loop.run()
    assert [line["step"] for line in lines(run_dir, "metrics.jsonl")] == [3]


def test_a_swallowed_signal_still_ends_the_run(make_loop, recorder, interrupts):
    loop, run_dir = make_loop("eval.tasks=0", interrupts=interrupts)

    def on_step():
        with suppress(BaseException):
            os.kill(os.getpid(), signal.SIGTERM)

    recorder.on_step = on_step
    with pytest.raises(Interrupted):
        loop.run()
    assert interrupts.exit_code == 143
    assert [entry[0] for entry in recorder.calls] == ["step"]
