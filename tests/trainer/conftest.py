"""Small real models for tests: tokenizers of two template families, two tiny Llamas, a vLLM server of one of them."""

from pathlib import Path

import pytest

# Plain ChatML with a default system prompt, as in small instruct models.
CHATML = (
    "{% for m in messages %}"
    "{% if loop.first and m.role != 'system' %}<|im_start|>system\nBe of help.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The relevant properties of Qwen3's template: thinking is kept only after the last user message, the system prompt has
# the tools, tool results are grouped into one user turn.
THINKING = (
    "{% if tools %}<|im_start|>system\n"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "Tools:{% for t in tools %}{{ '\n' }}{{ t | tojson }}{% endfor %}\n"
    "Call them as <tool_call>JSON</tool_call>.<|im_end|>\n"
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}"
    "{% set answer = m.content %}{% set thought = m.reasoning_content or '' %}"
    "{% if not thought and '</think>' in answer %}"
    "{% set thought = answer.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set answer = answer.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>assistant\n"
    "{% if loop.index0 > ns.last and (loop.last or thought) %}<think>\n{{ thought }}\n</think>\n\n{% endif %}"
    "{{ answer }}"
    "{% for c in m.tool_calls or [] %}{{ '\n' }}<tool_call>\n"
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% elif m.role == 'tool' %}"
    "{% if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n' }}<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% elif m.role == 'user' or not loop.first %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def make_tokenizer(template: str):
    """A byte-level BPE tokenizer of about 400 tokens: lossless for any text, common words are one token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    corpus = ["system user assistant tool bash echo cat sed output returncode the answer is total of that"] * 20
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        corpus,
        trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="session")
def chatml_tokenizer():
    return make_tokenizer(CHATML)


@pytest.fixture(scope="session")
def thinking_tokenizer():
    return make_tokenizer(THINKING)


def make_llama(directory: Path, seed: int, tokenizer) -> Path:
    """A random bf16 Llama with tied embeddings in Hugging Face format. Its large logits make seeds differ clearly.

    The end of turn has logit 0, so greedy sampling never chooses it, whichever way ties are rounded.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.get_input_embeddings().weight.data[tokenizer.eos_token_id] = 0
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory, thinking_tokenizer) -> Path:
    """Folder of the model that `vllm_engine` starts with."""
    return make_llama(tmp_path_factory.mktemp("llama"), 0, thinking_tokenizer)


@pytest.fixture(scope="session")
def other_llama(tmp_path_factory, thinking_tokenizer) -> Path:
    """The same architecture with other weights."""
    return make_llama(tmp_path_factory.mktemp("llama"), 1, thinking_tokenizer)


@pytest.fixture(scope="session")
def vllm_engine(tiny_llama, tmp_path_factory):
    """One vLLM server for all tests of the session. A test that loads other weights must restore these."""
    from trainer.engines.vllm import VllmEngine

    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_PORT", "tcp://10.96.0.12:8000")  # as Kubernetes sets it for a Service `vllm`
        engine = VllmEngine(tiny_llama, log, max_model_len=2048, eager=True, kv_cache_gib=0.1, cpu_threads="0-1")
    engine.start()
    try:
        engine.wait_ready(240)
        yield engine
    finally:
        engine.stop()
