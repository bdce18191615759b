"""What a run leaves behind in `runs/<name>/`:

    config.resolved.toml    the configuration with every default written out; can be run again
    metrics.jsonl           one line a training step
    evaluations.jsonl       one line a held-out evaluation
    trajectories/*.jsonl    one line a session, failed ones included: what the client returned, and every token
    reward.png              training reward and its running mean, held-out resolved rate
    checkpoints/            the newest checkpoints, each with Hugging Face-format weights
    agent_server/           the started agent server's records and the agents' own trajectories
    logs/                   what the services printed

Invariant: a folder belongs to one run; a line is written whole, as soon as what it tells has happened.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from client.errors import ConfigError
from trainer.config.file import to_toml
from trainer.config.schema import Config
from trainer.records import Segment
from trainer.rollouts.manager import Rollouts
from trainer.rollouts.result import RolloutResult

RESOLVED = 1.0
RUNNING_MEAN_STEPS = 5


class RunDir:
    """The folder of one run. `decode` turns token ids into text, for readers of the trajectories only."""

    def __init__(self, config: Config):
        """Make a fresh folder: `name`, or `name-2`, `name-3`, ... where it exists. Raises ConfigError."""
        self.directory = _fresh_directory(config.run.dir, config.run.name)
        self.decode: Callable[[Sequence[int]], str] | None = None
        (self.directory / "trajectories").mkdir()
        (self.directory / "config.resolved.toml").write_text(to_toml(config))
        self._rewards: list[tuple[int, float]] = []
        self._held_out: list[tuple[int, float]] = []

    def session(self, stage: str, step: int, finished: RolloutResult) -> None:
        """Add a session to the trajectories of `stage` (`step` or `eval`)."""
        record = {
            "session_id": finished.session.session_id,
            "group_id": finished.session.group_id,
            "mode": finished.session.mode,
            "step": step,
            "seconds": round(finished.seconds, 3),
            "reward": finished.sample.reward if finished.sample else None,
            "exit_status": finished.sample.exit_status if finished.sample else None,
            "failure": finished.failure.as_dict() if finished.failure else None,
            "alarm": finished.alarm or None,
            "client": {"exit_code": finished.exit.exit_code, "output": finished.exit.output, "log": finished.exit.log},
            "n_calls": finished.trace.n_calls,
            "segments": [self._segment(segment) for segment in finished.trace.segments],
        }
        self._append(f"trajectories/{stage}_{step:04d}.jsonl", record)

    def step(self, step: int, metrics: dict) -> None:
        """Add a step's line to metrics.jsonl and redraw the curve."""
        self._append("metrics.jsonl", {"step": step, **metrics})
        self._rewards.append((step, metrics["reward_mean"]))
        self._draw()

    def evaluation(self, step: int, metrics: dict) -> None:
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
        # JSON has no word for a gradient norm that is not finite: it stands as text ("nan", "inf").
        record = {
            key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
        }
        with open(self.directory / name, "a") as file:
            file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")

    def _draw(self) -> None:
        # Figure itself, not pyplot: no global state, no backend to choose, no display needed. Imported late: it takes a second.
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        if self._rewards:
            steps, rewards = zip(*self._rewards)
            axes.plot(steps, rewards, "o", color="tab:blue", alpha=0.4, label="training: mean reward of the step")
            axes.plot(
                steps, _running_mean(rewards), color="tab:blue", label=f"training: running mean of {RUNNING_MEAN_STEPS}"
            )
        if self._held_out:
            axes.plot(*zip(*self._held_out), "s--", color="tab:orange", label="held-out: resolved rate")
            for step, rate in self._held_out:
                axes.annotate(f"{rate:.0%}", (step, rate), textcoords="offset points", xytext=(0, 8), ha="center")
        axes.set(xlabel="optimizer step", ylabel="reward", ylim=(-0.05, 1.25), title=self.directory.name)
        axes.legend(loc="upper left")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        part = self.directory / "reward.png.part"
        figure.savefig(part, format="png", dpi=120)
        part.replace(self.directory / "reward.png")


def rollout_metrics(rollouts: Rollouts) -> dict:
    """The figures of a set of rollouts that training steps and evaluations share."""
    samples = rollouts.samples
    n = len(samples)
    return {
        "reward_mean": sum(sample.reward for sample in samples) / n if n else None,
        "resolved_rate": sum(sample.reward >= RESOLVED for sample in samples) / n if n else None,
        "n_samples": n,
        "n_sessions": len(rollouts.attempts),
        "exit_statuses": dict(Counter(sample.exit_status for sample in samples)),
        "calls_mean": sum(sample.trace.n_calls for sample in samples) / n if n else None,
        "sampled_tokens": sum(sample.trace.n_sampled() for sample in samples),
        "cut_off_turns": sum(
            segment.finish_reason == "length" for sample in samples for segment in sample.trace.segments
        ),
        "failures": dict(Counter(f"{failure.boundary}.{failure.code}" for failure in rollouts.failures)),
        "refills": rollouts.refills,
        "alarms": sum(bool(attempt.alarm) for attempt in rollouts.attempts),
    }


def _running_mean(values: Sequence[float]) -> list[float]:
    windows = [values[max(0, end - RUNNING_MEAN_STEPS) : end] for end in range(1, len(values) + 1)]
    return [sum(window) / len(window) for window in windows]


def _fresh_directory(parent: Path, name: str) -> Path:
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
                f"run.dir ({parent}) cannot be written to: {error.strerror}; give another folder"
            ) from None
