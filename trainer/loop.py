"""The training loop: evaluation, then steps of rollouts, advantages, optimizer step and weight update, then evaluation.

Invariant: training is on-policy. The engine samples with the weights of the last step, and no session runs while
weights change. Only rewards of completed sessions reach the advantages.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from client.errors import ServerError
from trainer.actors.base import Actor, StepReport, TrainingSample
from trainer.algorithms.advantages import grpo_advantages
from trainer.checkpoints import Checkpoints
from trainer.config.schema import Config
from trainer.display import Display
from trainer.engines.base import Engine, Sampling
from trainer.interrupts import Interrupts
from trainer.rollouts.manager import RolloutBatch, RolloutManager
from trainer.rollouts.result import RolloutResult
from trainer.run_dir import RunDir, rollout_metrics


class Gateway(Protocol):
    """The control call that the loop makes to the gateway."""

    def set_version(self, version: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Components:
    """The components that the loop drives, all of them ready."""

    engine: Engine
    gateway: Gateway
    actor: Actor
    rollouts: RolloutManager
    checkpoints: Checkpoints


class Loop:
    """One run, from the first evaluation to the last.

    `run_id` prefixes group ids, so that they differ from those of other runs. The actor hands weights to the engine in
    `weights_dir`. `steps_done` counts the steps of the run that this one resumes.
    """

    def __init__(
        self,
        config: Config,
        components: Components,
        run_dir: RunDir,
        display: Display,
        interrupts: Interrupts,
        run_id: str,
        weights_dir: Path,
        steps_done: int = 0,
    ):
        self._config, self._components, self._run_dir, self._display = config, components, run_dir, display
        self._interrupts, self._run_id, self._weights_dir = interrupts, run_id, weights_dir
        self._steps_done, self._version = steps_done, 0

    def run(self) -> None:
        """Train up to step `train.steps`.

        Raises ServerError when all sessions of a step fail, ModelError when the engine fails, Interrupted on a signal.
        """
        steps, every = self._config.train.steps, self._config.checkpoint.every_steps
        before = after = self._evaluate(self._steps_done)
        for step in range(self._steps_done + 1, steps + 1):
            self._step(step)
            if step == steps or (every and step % every == 0):
                self._phase(f"step {step}/{steps}: checkpoint")
                self._components.checkpoints.save(step, self._components.actor)
            if step == steps or (self._config.eval.every_steps and step % self._config.eval.every_steps == 0):
                after = self._evaluate(step)
        if before is not None and after is not None:
            self._display.message(f"held-out resolved rate: before {before:.1%}, after {after:.1%}")

    def _evaluate(self, step: int) -> float | None:
        """The held-out resolved rate after `step` steps; None where `eval.tasks` is 0.

        The group ids are the same at every evaluation: the agent server keeps the row of a group id.
        """
        settings = self._config.eval
        if not settings.tasks:
            return None
        self._phase(f"evaluation after {step} steps")
        started = time.monotonic()
        group_ids = [f"{self._run_id}-eval{number:04d}" for number in range(settings.tasks)]
        rollouts = self._collect("eval", step, group_ids, settings.samples, settings.temperature)
        metrics = rollout_metrics(rollouts)
        metrics["n_tasks"] = len({sample.metadata.get("task_id", sample.group_id) for sample in rollouts.samples})
        self._run_dir.write_evaluation(step, metrics | {"seconds": round(time.monotonic() - started, 2)})
        self._display.message(
            f"evaluation after {step} steps: {metrics['resolved_rate']:.1%} of {metrics['n_samples']} sessions "
            f"resolved, {metrics['n_tasks']} tasks"
        )
        return metrics["resolved_rate"]

    def _step(self, step: int) -> None:
        config, components = self._config, self._components
        seconds: dict[str, float] = {}  # by phase
        name = f"step {step}/{config.train.steps}"
        self._phase(f"{name}: rollouts")
        with _timed(seconds, "rollout"):
            group_ids = [f"{self._run_id}-s{step:04d}g{number:03d}" for number in range(config.rollout.groups_per_step)]
            rollouts = self._collect("train", step, group_ids, config.rollout.group_size, config.rollout.temperature)
        groups = compute_advantages(rollouts)
        report = None
        if groups:
            self._phase(f"{name}: optimizer step")
            with _timed(seconds, "train"):
                report = components.actor.step(groups)
        if report and report.updated:
            self._phase(f"{name}: new weights")
            with _timed(seconds, "save_weights"):
                components.actor.save_weights(self._weights_dir)
            with _timed(seconds, "load_weights"):
                self._version += 1
                components.engine.load_weights(self._weights_dir, self._version)
                components.gateway.set_version(self._version)
        metrics = rollout_metrics(rollouts) | {
            "n_groups": len(rollouts.groups),
            "n_groups_trained": len(groups),
            "weights_version": self._version,
            "seconds": {phase: round(value, 2) for phase, value in seconds.items()},
            **(asdict(report) if report else dict.fromkeys(StepReport.__dataclass_fields__)),
        }
        self._run_dir.write_step(step, metrics)
        self._display.message(describe_step(name, metrics))

    def _collect(self, mode: str, step: int, group_ids: list[str], size: int, temperature: float) -> RolloutBatch:
        settings = self._config.rollout
        sampling = Sampling(temperature=temperature, top_p=settings.top_p, max_tokens=settings.max_tokens)

        def on_result(result: RolloutResult) -> None:
            self._run_dir.write_session(mode, step, result)
            if result.failure or result.alarm:
                self._display.message(f"session {result.session.session_id}: {result.failure or result.alarm}")

        rollouts = self._components.rollouts.run(group_ids, size, mode, sampling, self._display.progress, on_result)
        if not rollouts.samples:
            raise ServerError(
                f"none of {len(rollouts.results)} {mode} sessions returned a reward; "
                f"the last failure: {rollouts.failures[-1]}"
            )
        return rollouts

    def _phase(self, name: str) -> None:
        self._interrupts.check()
        self._display.phase(name)


def compute_advantages(rollouts: RolloutBatch) -> list[list[TrainingSample]]:
    """The samples with their advantages, by group. Groups whose rewards are all equal are left out."""
    groups = []
    for group in rollouts.groups:
        advantages = grpo_advantages([sample.reward for sample in group.samples])
        if any(advantages):
            pairs = zip(group.samples, advantages, strict=True)
            groups.append([TrainingSample(sample.trace, advantage) for sample, advantage in pairs])
    return groups


def describe_step(name: str, metrics: dict) -> str:
    """A step's metrics in one line."""
    line = f"{name}: reward {metrics['reward_mean']:.2f}"
    line += f", resolved {metrics['resolved_rate']:.0%} of {metrics['n_samples']}"
    if metrics["updated"]:
        line += f", loss {metrics['loss']:.4f}, grad norm {metrics['grad_norm']:.2f}"
        line += f", logprob diff {metrics['logprob_diff_mean']:.4f}"
    else:
        reason = "no group with different rewards" if metrics["loss"] is None else "the gradient is not finite"
        line += f", weights unchanged: {reason}"
    line += " | " + ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in metrics["seconds"].items())
    return line + (f" | failures {metrics['failures']}" if metrics["failures"] else "")


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    seconds[phase] = time.monotonic() - started
