"""Schema of a run's configuration: every key with its meaning, default and bounds.

Invariant: a Config is frozen and rejects unknown keys; names end in their unit. `trainer.config.file` reads one from
TOML. `trainer.config.checks` has the rules across keys and the requirements on this machine.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

import client

REPOSITORY = Path(__file__).resolve().parents[2]
CLIENT_SCRIPT = Path(client.__file__).with_name("agent_client.sh")


def _expand(path: Path) -> Path:
    """Expand `~`, and path components of the form `$NAME`. SWE_RL_CACHE defaults to the repository's .cache folder."""
    environment = {"SWE_RL_CACHE": str(REPOSITORY / ".cache"), **os.environ}
    parts = []
    for part in path.expanduser().parts:
        if part.startswith("$"):
            if part[1:] not in environment:
                raise ValueError(f"the environment variable {part} is not set: set it or write the full path")
            part = environment[part[1:]]
        parts.append(part)
    return Path(*parts)


FilePath = Annotated[Path, AfterValidator(_expand)]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """Base of all sections: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


class Run(Section):
    name: str = Field(
        "run",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Name of the run's folder in run.dir; a number is appended where it exists.",
    )
    dir: FilePath = Field(Path("runs"), description="Parent folder of all runs' folders.")


class Model(Section):
    path: FilePath = Field(description="Hugging Face-format model to start from: a folder with config.json.")


class Train(Section):
    steps: Count = Field(description="Optimizer steps.")


class AgentServer(Section):
    url: str | None = Field(
        None,
        pattern=r"^https?://[^\s/]+$",
        description="URL of a running agent server; unset: one is started here from the keys below.",
    )
    host: str = Field("127.0.0.1", description="Address the started agent server listens on.")
    port: Port = Field(8300, description="Port the started agent server listens on.")
    data_path: FilePath | None = Field(
        None, description="Task rows: a parquet or JSONL file, or a folder with train.* and eval.*."
    )
    sif_dir: FilePath | None = Field(None, description="Folder of the rows' images (.sif).")
    agent_config: str = Field("text", description="Agent configuration: text, tools, or the path of a YAML file.")
    train_concurrency: Count = Field(32, description="Training sessions the server runs at once.")
    eval_concurrency: Count = Field(32, description="Held-out sessions the server runs at once.")
    seed: int = Field(0, description="Seed of the order of the training rows.")
    command_timeout_s: Seconds = Field(60, description="Time limit of one command of the agent.")
    sandbox_start_timeout_s: Seconds = Field(
        60, description="Time limit until a sandbox answers; a session starts up to four."
    )
    agent_timeout_s: Seconds = Field(1800, description="Time limit of the agent in a session.")
    grading_timeout_s: Seconds = Field(900, description="Time limit of a submission's tests.")
    session_timeout_s: Seconds = Field(
        3000, description="Time limit of a whole session once admitted: sandbox, agent, grading."
    )
    start_timeout_s: Seconds = Field(60, description="Time limit until the started server answers.")


class Gateway(Section):
    host: str = Field("127.0.0.1", description="Address the gateway listens on; 0.0.0.0 for agents on other machines.")
    port: Port = Field(8200, description="Port the gateway listens on.")
    chat_template_kwargs: dict[str, bool | int | float | str] = Field(
        {}, description="Arguments of the model's chat template, for instance { enable_thinking = false }."
    )
    public_url: str | None = Field(
        None,
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$",
        description="URL of the gateway for agents, with a path or without; default http://host:port.",
    )
    start_timeout_s: Seconds = Field(60, description="Time limit until the gateway answers.")

    @property
    def url(self) -> str:
        """The URL of the gateway for agents."""
        return (self.public_url or f"http://{self.host}:{self.port}").rstrip("/")


class Engine(Section):
    max_model_len: Count = Field(description="Context window in tokens: prompt and answer together.")
    dtype: str = Field("bfloat16", description="Number format of the served weights.")
    eager: bool = Field(False, description="Do not compile the model: vLLM starts sooner and samples slower.")
    kv_cache_gib: float | None = Field(
        None, gt=0, description="Memory of the KV cache in GiB; unset: vLLM takes nearly all memory."
    )
    cpu_threads: str | None = Field(
        None, description="CPU cores of vLLM's threads, such as 0-1; unset: vLLM leaves some idle."
    )
    args: list[str] = Field([], description="Further command-line arguments of the vLLM server.")
    start_timeout_s: Seconds = Field(600, description="Time limit until vLLM answers.")


class Rollout(Section):
    groups_per_step: Count = Field(description="Groups per step, one task row each.")
    group_size: int = Field(ge=2, description="Sessions per group: samples of one row, compared with each other.")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature of training sessions.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling (top-p) of training and held-out sessions.")
    max_tokens: Count = Field(description="Maximum of new tokens per model call.")
    max_tries: Count = Field(
        3, description="Sessions per sample when infrastructure fails; then the group goes without it."
    )
    max_clients: Count = Field(256, description="Maximum of client processes at once; further sessions wait.")
    client_command: str = Field(
        f"exec sh '{CLIENT_SCRIPT}'", description="Shell command of each session's client, run by /bin/bash -lc."
    )
    client_timeout_s: Seconds = Field(7200, description="Time limit of one client, the server's queue included.")


class Eval(Section):
    tasks: int = Field(0, ge=0, description="Held-out rows evaluated before and after training; 0: none.")
    samples: Count = Field(4, description="Sessions per held-out row.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature of held-out sessions.")
    every_steps: int = Field(0, ge=0, description="Steps between evaluations; 0: only before and after training.")


class Actor(Section):
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="Device of the actor: cpu, cuda or cuda:N.")
    compute_dtype: Literal["bfloat16", "float32"] = Field(
        "bfloat16", description="Number format of the forward pass; weights and optimizer are float32."
    )
    learning_rate: float = Field(1e-6, gt=0, description="Constant learning rate of AdamW.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's decoupled weight decay.")
    max_grad_norm: float = Field(
        1.0, gt=0, description="Maximum gradient norm; larger gradients are scaled down to it."
    )
    max_microbatch_tokens: Count = Field(4096, description="Tokens per forward pass.")


class Algorithm(Section):
    clip_low: float = Field(0.2, gt=0, lt=1, description="Lower clip of the probability ratio, at 1 - clip_low.")
    clip_high: float = Field(0.28, gt=0, description="Upper clip of the probability ratio, at 1 + clip_high.")


class Checkpoint(Section):
    every_steps: int = Field(0, ge=0, description="Steps between checkpoints; 0: only at the end.")
    keep: Count = Field(2, description="Newest checkpoints that are kept; older ones are removed.")
    resume_from: FilePath | None = Field(
        None, description="Folder `checkpoints` of an earlier run: its newest is resumed, up to train.steps."
    )


class Config(Section):
    """A run's whole configuration. Sections without required keys may be left out."""

    run: Run = Run()
    model: Model
    train: Train
    agent_server: AgentServer = AgentServer()
    gateway: Gateway = Gateway()
    engine: Engine
    rollout: Rollout
    eval: Eval = Eval()
    actor: Actor = Actor()
    algorithm: Algorithm = Algorithm()
    checkpoint: Checkpoint = Checkpoint()


def config_keys() -> Iterator[tuple[str, FieldInfo]]:
    """Every `section.key` with its field, in order."""
    for section, field in Config.model_fields.items():
        assert isinstance(field.annotation, type) and issubclass(field.annotation, Section)
        for key, leaf in field.annotation.model_fields.items():
            yield f"{section}.{key}", leaf
