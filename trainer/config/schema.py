"""What a run can be told: every key with its meaning, default and bounds.

Invariant: a Config is frozen and knows no key but these; units stand in the names. `trainer.config.file` reads one from
TOML, `trainer.config.checks` says what its keys must be to each other and what this machine must have.
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
    """`$NAME` and `~` become what they stand for; SWE_RL_CACHE, where unset, is the repository's .cache folder."""
    environment = {"SWE_RL_CACHE": str(REPOSITORY / ".cache"), **os.environ}
    parts = []
    for part in path.expanduser().parts:
        if part.startswith("$"):
            if part[1:] not in environment:
                raise ValueError(f"the environment variable {part} is not set: set it or write the path out")
            part = environment[part[1:]]
        parts.append(part)
    return Path(*parts)


FilePath = Annotated[Path, AfterValidator(_expand)]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)


class Run(Section):
    name: str = Field(
        "run",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="The run's folder in run.dir; a number is added where it exists.",
    )
    dir: FilePath = Field(Path("runs"), description="Where runs leave their files.")


class Model(Section):
    path: FilePath = Field(description="Hugging Face-format model to start from: a folder with config.json.")


class Train(Section):
    steps: Count = Field(description="Optimizer steps.")


class AgentServer(Section):
    url: str | None = Field(
        None,
        pattern=r"^https?://[^\s/]+$",
        description="A running agent server. Without it one is started here from the keys below.",
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
    seed: int = Field(0, description="Orders the training rows.")
    command_timeout_s: Seconds = Field(60, description="Longest time of one command of the agent.")
    sandbox_start_timeout_s: Seconds = Field(
        60, description="Longest time until a sandbox answers; a session starts two."
    )
    agent_timeout_s: Seconds = Field(1800, description="Longest time an agent may work on a session.")
    grading_timeout_s: Seconds = Field(900, description="Longest time a submission's tests may run.")
    session_timeout_s: Seconds = Field(
        3000, description="Longest time of a whole session once admitted: sandbox, agent, grading."
    )
    start_timeout_s: Seconds = Field(60, description="Longest time until the started server answers.")


class Gateway(Section):
    host: str = Field("127.0.0.1", description="Address the gateway listens on; 0.0.0.0 for agents on other machines.")
    port: Port = Field(8200, description="Port the gateway listens on.")
    chat_template_kwargs: dict[str, bool | int | float | str] = Field(
        {}, description="Arguments of the model's chat template, for instance { enable_thinking = false }."
    )
    public_url: str | None = Field(
        None, pattern=r"^https?://[^\s/]+$", description="How agents reach the gateway; default http://host:port."
    )
    start_timeout_s: Seconds = Field(60, description="Longest time until the gateway answers.")

    @property
    def url(self) -> str:
        return self.public_url or f"http://{self.host}:{self.port}"


class Engine(Section):
    port: Port = Field(8100, description="Port vLLM listens on, on 127.0.0.1.")
    max_model_len: Count = Field(description="Context window in tokens: prompt and answer together.")
    dtype: str = Field("bfloat16", description="Number format of the served weights.")
    eager: bool = Field(False, description="Do not compile the model: ready sooner, samples slower.")
    kv_cache_gib: float | None = Field(
        None, gt=0, description="Memory for cached keys and values; unset, vLLM takes nearly all there is."
    )
    cpu_threads: str | None = Field(
        None, description="Cores of vLLM's threads on a CPU, such as 0-1; unset, vLLM leaves some idle."
    )
    args: list[str] = Field([], description="Further arguments of the vLLM server, as on its command line.")
    start_timeout_s: Seconds = Field(600, description="Longest time until vLLM answers.")


class Rollout(Section):
    groups_per_step: Count = Field(description="Task rows a step; each is a group.")
    group_size: int = Field(ge=2, description="Sessions a group: samples of the same row, compared with each other.")
    temperature: float = Field(1.0, gt=0, description="Sampling temperature of training sessions.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus of the sampling, training and held-out.")
    max_tokens: Count = Field(description="New tokens a model call, at most.")
    max_tries: Count = Field(
        3, description="Sessions one sample may cost when infrastructure fails; then its group goes without it."
    )
    max_clients: Count = Field(256, description="Client processes at once; more sessions wait for their turn.")
    client_command: str = Field(
        f"exec sh '{CLIENT_SCRIPT}'", description="What is run for each session, by /bin/bash -lc."
    )
    client_timeout_s: Seconds = Field(7200, description="Longest time of one client, the server's queue included.")


class Eval(Section):
    tasks: int = Field(0, ge=0, description="Held-out rows evaluated before and after training; 0: none.")
    samples: Count = Field(4, description="Sessions a held-out row.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature of held-out sessions.")
    every_steps: int = Field(0, ge=0, description="Evaluate also after every so many steps; 0: only before and after.")


class Actor(Section):
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="Where training runs: cpu, cuda or cuda:N.")
    compute_dtype: Literal["bfloat16", "float32"] = Field(
        "bfloat16", description="Number format of the forward pass; weights and optimizer are float32."
    )
    learning_rate: float = Field(1e-6, gt=0, description="Constant learning rate of AdamW.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's decoupled weight decay.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are scaled down to this norm.")
    max_microbatch_tokens: Count = Field(4096, description="Tokens that go through the model at once.")


class Algorithm(Section):
    clip_low: float = Field(0.2, gt=0, lt=1, description="Lower clip of the probability ratio.")
    clip_high: float = Field(0.28, gt=0, description="Upper clip of the probability ratio.")


class Checkpoint(Section):
    every_steps: int = Field(0, ge=0, description="Write a checkpoint after every so many steps; 0: only at the end.")
    keep: Count = Field(2, description="Checkpoints that stay; older ones are removed.")
    resume_from: FilePath | None = Field(
        None, description="Folder `checkpoints` of an earlier run: the newest in it is continued, up to train.steps."
    )


class Config(Section):
    """Everything a run needs to know. Sections without required keys may be left out."""

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
        for key, leaf in field.annotation.model_fields.items():
            yield f"{section}.{key}", leaf
