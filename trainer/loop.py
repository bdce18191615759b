"""The training loop: evaluate; then rollouts, advantages, an optimizer step, new weights into the engine; evaluate again.

Invariant: everything is on-policy: the engine samples with the weights of the last step, and nothing samples while weights
change. Only rewards of finished sessions reach the advantages.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from client.errors import ServerError
from trainer.actors.base import Actor, StepReport, TrainingSample
from trainer.algorithms.advantages import group_normalized
from trainer.checkpoints import Checkpoints
from trainer.config.schema import Config
from trainer.display import Display
from trainer.engines.base import Engine, Sampling
from trainer.interrupts import Interrupts
from trainer.rollouts.manager import RolloutManager, Rollouts
from trainer.run_dir import RunDir, rollout_metrics


class WeightVersions(Protocol):
    """Whoever must know which weights are served: the gateway."""

    def set_version(self, version: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Components:
    """What the loop drives. All are ready to work."""

    engine: Engine
    gateway: WeightVersions
    actor: Actor
    rollouts: RolloutManager
    checkpoints: Checkpoints


class Loop:
    """One run from the first evaluation to the last. `run_id` makes group ids unlike those of every other run;
    `weights_dir` is where weights pass from the actor to the engine; `done` counts the steps of earlier runs that this one
    continues."""

    def __init__(
        self,
        config: Config,
        components: Components,
        log: RunDir,
        display: Display,
        interrupts: Interrupts,
        run_id: str,
        weights_dir: Path,
        done: int = 0,
    ):
        self._config, self._components, self._log, self._display = config, components, log, display
        self._interrupts, self._run_id, self._weights_dir = interrupts, run_id, weights_dir
        self._done, self._version = done, 0

    def run(self) -> None:
        """Train for `train.steps` steps. Raises ServerError when a step's sessions all fail, ModelError when the engine does."""
        steps, every = self._config.train.steps, self._config.checkpoint.every_steps
        before = after = self._evaluate(self._done)
        for step in range(self._done + 1, steps + 1):
            self._step(step)
            if step == steps or (every and step % every == 0):
                self._phase(f"step {step}/{steps}: checkpoint")
                self._components.checkpoints.save(step, self._components.actor)
            if step == steps or (self._config.eval.every_steps and step % self._config.eval.every_steps == 0):
                after = self._evaluate(step)
        if before is not None:
            self._display.message(f"held-out resolved rate: before {before:.1%}, after {after:.1%}")

    def _evaluate(self, step: int) -> float | None:
        """The held-out resolved rate now, None where none is wanted. The same groups every time: a group keeps its row."""
        wanted = self._config.eval
        if not wanted.tasks:
            return None
        self._phase(f"evaluation after {step} steps")
        started = time.monotonic()
        group_ids = [f"{self._run_id}-eval{number:04d}" for number in range(wanted.tasks)]
        rollouts = self._collect("eval", step, group_ids, wanted.samples, wanted.temperature)
        metrics = rollout_metrics(rollouts)
        metrics["n_tasks"] = len({sample.metadata.get("task_id", sample.group_id) for sample in rollouts.samples})
        self._log.evaluation(step, metrics | {"seconds": round(time.monotonic() - started, 2)})
        self._display.message(
            f"evaluation after {step} steps: {metrics['resolved_rate']:.1%} of {metrics['n_samples']} sessions resolved, {metrics['n_tasks']} tasks"
        )
        return metrics["resolved_rate"]

    def _step(self, step: int) -> None:
        config, components, seconds = self._config, self._components, {}
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
        self._log.step(step, metrics)
        self._display.message(describe_step(name, metrics))

    def _collect(self, mode: str, step: int, group_ids: list[str], size: int, temperature: float) -> Rollouts:
        settings = self._config.rollout
        sampling = Sampling(temperature=temperature, top_p=settings.top_p, max_tokens=settings.max_tokens)

        def on_result(finished):
            self._log.session(mode, step, finished)
            if finished.failure or finished.alarm:
                self._display.message(f"session {finished.session.session_id}: {finished.failure or finished.alarm}")

        rollouts = self._components.rollouts.run(group_ids, size, mode, sampling, self._display.progress, on_result)
        if not rollouts.samples:
            raise ServerError(
                f"none of {len(rollouts.attempts)} {mode} sessions returned a reward; the last failure: {rollouts.failures[-1]}"
            )
        return rollouts

    def _phase(self, name: str) -> None:
        self._interrupts.check()
        self._display.phase(name)


def compute_advantages(rollouts: Rollouts) -> list[list[TrainingSample]]:
    """The samples with their advantages, by group. Groups whose rewards are all equal teach nothing and are left out."""
    groups = []
    for group in rollouts.groups:
        advantages = group_normalized([sample.reward for sample in group.samples])
        if any(advantages):
            groups.append(
                [TrainingSample(sample.trace, advantage) for sample, advantage in zip(group.samples, advantages)]
            )
    return groups


def describe_step(name: str, metrics: dict) -> str:
    """A step in one line."""
    line = f"{name}: reward {metrics['reward_mean']:.2f}, resolved {metrics['resolved_rate']:.0%} of {metrics['n_samples']}"
    if not metrics["updated"]:
        line += ", weights unchanged: " + (
            "no group with different rewards" if metrics["loss"] is None else "the gradient is not finite"
        )
    else:
        line += f", loss {metrics['loss']:.4f}, grad norm {metrics['grad_norm']:.2f}, logprob diff {metrics['logprob_diff_mean']:.4f}"
    line += " | " + ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in metrics["seconds"].items())
    return line + (f" | failures {metrics['failures']}" if metrics["failures"] else "")


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    seconds[phase] = time.monotonic() - started
