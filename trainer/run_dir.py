"""The folder of a run, `runs/<name>/`:

    config.resolved.toml    the configuration with every default; can be run again
    metrics.jsonl           one line a training step
    evaluations.jsonl       one line a held-out evaluation
    trajectories/*.jsonl    one line per session, failed ones included: client output and every token
    reward.png              training reward and its running mean, held-out resolved rate
    checkpoints/            the newest checkpoints, each with Hugging Face-format weights
    agent_server/           the started agent server's records and the agents' own trajectories
    logs/                   stdout and stderr of the services

Invariant: a folder belongs to one run. A line is written whole, as soon as its event has happened.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from client.atomic_write import replacing, write_text
from client.errors import ConfigError
from trainer.config.file import to_toml
from trainer.config.schema import Config
from trainer.records import Segment
from trainer.rollouts.manager import RolloutBatch
from trainer.rollouts.result import RolloutResult

RESOLVED = 1.0
RUNNING_MEAN_STEPS = 5


class RunDir:
    """Writer of one run's folder, `path`. `decode` turns token ids into text, for the trajectories only."""

    def __init__(self, config: Config):
        """Make a new folder: `name`, or `name-2`, `name-3`, ... where it exists. Raises ConfigError."""
        self.path = _make_directory(config.run.dir, config.run.name)
        self.decode: Callable[[Sequence[int]], str] | None = None
        (self.path / "trajectories").mkdir()
        write_text(self.path / "config.resolved.toml", to_toml(config))
        self._rewards: list[tuple[int, float]] = []
        self._held_out: list[tuple[int, float]] = []

    def write_session(self, mode: str, step: int, result: RolloutResult) -> None:
        """Add a session to the trajectories of `mode` (`train` or `eval`)."""
        record = {
            "session_id": result.session.session_id,
            "group_id": result.session.group_id,
            "mode": result.session.mode,
            "step": step,
            "seconds": round(result.seconds, 3),
            "reward": result.sample.reward if result.sample else None,
            "exit_status": result.sample.exit_status if result.sample else None,
            "failure": result.failure.as_dict() if result.failure else None,
            "alarm": result.alarm or None,
            "client": {"exit_code": result.exit.exit_code, "output": result.exit.output, "log": result.exit.log},
            "n_calls": result.trace.n_calls,
            "segments": [self._segment(segment) for segment in result.trace.segments],
        }
        self._append(f"trajectories/{mode}_{step:04d}.jsonl", record)

    def write_step(self, step: int, metrics: dict) -> None:
        """Add a step's line to metrics.jsonl and redraw the curve."""
        self._append("metrics.jsonl", {"step": step, **metrics})
        self._rewards.append((step, metrics["reward_mean"]))
        self._draw()

    def write_evaluation(self, step: int, metrics: dict) -> None:
        """Add a held-out evaluation, made after `step` optimizer steps."""
        self._append("evaluations.jsonl", {"step": step, **metrics})
        self._held_out.append((step, metrics["resolved_rate"]))
        self._draw()

    def _segment(self, segment: Segment) -> dict:
        record = {"parent": segment.parent, "sampled": segment.sampled, "tokens": segment.tokens}
        if self.decode:
            record["text"] = self.decode(segment.tokens)
        if segment.sampled:
            record |= {"logprobs": segment.logprobs, "version": segment.version, "finish_reason": segment.finish_reason}
        return record

    def _append(self, name: str, record: dict) -> None:
        # JSON has no NaN and no infinity: a gradient norm that is not finite is written as text ("nan", "inf").
        record = {
            key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
        }
        with open(self.path / name, "a") as file:
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")

    def _draw(self) -> None:
        # Figure, not pyplot: no global state, no backend, no display. Imported late: it takes a second.
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        if self._rewards:
            steps, rewards = zip(*self._rewards, strict=True)
            axes.plot(steps, rewards, "o", color="tab:blue", alpha=0.4, label="training: mean reward of the step")
            axes.plot(
                steps, _running_mean(rewards), color="tab:blue", label=f"training: running mean of {RUNNING_MEAN_STEPS}"
            )
        if self._held_out:
            axes.plot(*zip(*self._held_out, strict=True), "s--", color="tab:orange", label="held-out: resolved rate")
            for step, rate in self._held_out:
                axes.annotate(f"{rate:.0%}", (step, rate), textcoords="offset points", xytext=(0, 8), ha="center")
        axes.set(xlabel="optimizer step", ylabel="reward", ylim=(-0.05, 1.25), title=self.path.name)
        axes.legend(loc="upper left")
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))
        axes.grid(alpha=0.3)
        with replacing(self.path / "reward.png") as temporary:
            figure.savefig(temporary, format="png", dpi=120)


def rollout_metrics(rollouts: RolloutBatch) -> dict:
    """The metrics that training steps and evaluations share. Means and rates are None without samples."""
    samples = rollouts.samples
    n = len(samples)
    return {
        "reward_mean": sum(sample.reward for sample in samples) / n if n else None,
        "resolved_rate": sum(sample.reward >= RESOLVED for sample in samples) / n if n else None,
        "n_samples": n,
        "n_sessions": len(rollouts.results),
        "exit_statuses": dict(Counter(sample.exit_status for sample in samples)),
        "calls_mean": sum(sample.trace.n_calls for sample in samples) / n if n else None,
        "sampled_tokens": sum(sample.trace.n_sampled() for sample in samples),
        "cut_off_turns": sum(
            segment.finish_reason == "length" for sample in samples for segment in sample.trace.segments
        ),
        "failures": dict(Counter(f"{failure.boundary}.{failure.code}" for failure in rollouts.failures)),
        "refills": rollouts.refills,
        "alarms": sum(bool(result.alarm) for result in rollouts.results),
    }


def _running_mean(values: Sequence[float]) -> list[float]:
    windows = [values[max(0, end - RUNNING_MEAN_STEPS) : end] for end in range(1, len(values) + 1)]
    return [sum(window) / len(window) for window in windows]


def _make_directory(parent: Path, name: str) -> Path:
    number = 1
    while True:
        directory = parent / (name if number == 1 else f"{name}-{number}")
        try:
            directory.mkdir(parents=True)
            return directory.resolve()
        except FileExistsError:
            number += 1
        except OSError as error:
            raise ConfigError(
                f"run.dir ({parent}) cannot be written to: {error.strerror}; set another folder"
            ) from None
