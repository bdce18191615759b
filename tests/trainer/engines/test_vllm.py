"""The real vLLM server with a tiny random Llama, alone and behind the real gateway process."""

import asyncio
import json
import os
import re
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from client.errors import ContextLengthExceeded, ModelError, ModelUnreachable
from trainer.engines import unix_http
from trainer.engines.base import Sampling
from trainer.engines.vllm import VllmGenerator
from trainer.gateway.control import GatewayControl
from trainer.services.service import Service, free_port

ROOT = Path(__file__).parents[3]
MESSAGES = [{"role": "user", "content": "go"}]
PROMPT = [1, 40, 50, 60, 70]
LONG = Sampling(temperature=0.0, max_tokens=2000)  # seconds of sampling; greedy sampling meets no end of turn

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vllm")]


def with_generator(socket, scenario):
    async def main():
        generator = VllmGenerator(socket)
        try:
            return await scenario(generator)
        finally:
            await generator.close()

    return asyncio.run(main())


def logprobs_of(directory, prompt, tokens):
    """Logprobs of the same tokens by transformers, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(tokens)[:, None])[:, 0]


def mean_difference(directory, prompt, completion) -> float:
    import torch

    expected = logprobs_of(directory, prompt, list(completion.tokens))
    return (expected - torch.tensor(completion.logprobs)).abs().mean().item()


def count(engine, metric: str) -> float:
    """One of vLLM's own metrics, summed over its labels."""
    text = unix_http.request(engine.socket, "GET", "/metrics", timeout_s=10).body.decode()
    return sum(float(value) for value in re.findall(rf"^vllm:{metric}\{{.*?\}} (\S+)", text, re.M))


def running(engine) -> float:
    return count(engine, "num_requests_running")


@contextmanager
def aborted(engine):
    """Assert that the block aborts one request in the engine: it neither completes nor continues sampling."""
    finished, tokens = (count(engine, name) for name in ("request_success_total", "generation_tokens_total"))
    yield
    wait_until(lambda: running(engine) == 0)
    assert count(engine, "request_success_total") == finished
    sampled = count(engine, "generation_tokens_total") - tokens
    assert 0 < sampled < LONG.max_tokens
    time.sleep(0.3)
    assert count(engine, "generation_tokens_total") - tokens == sampled


def read_or_empty(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def wait_until(condition, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.05)


async def sampling_starts(engine, call: asyncio.Task) -> None:
    """Wait until the engine samples for `call`. Fails with the call's result where it ends before."""
    while await asyncio.to_thread(running, engine) != 1:
        assert not call.done(), f"the call ended before it was seen: {call}"
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_are_of_the_sampled_tokens(vllm_engine, tiny_llama, temperature):
    """At any temperature and top-p, logprobs are those of the model's own distribution."""
    sampling = Sampling(temperature=temperature, top_p=0.9, max_tokens=60)
    completion = with_generator(vllm_engine.socket, lambda g: g.generate(PROMPT, sampling))
    assert len(completion.tokens) == len(completion.logprobs) == 60 and completion.finish_reason == "length"
    assert all(logprob <= 0 for logprob in completion.logprobs)
    assert mean_difference(tiny_llama, PROMPT, completion) < 0.05


def test_stop_tokens_end_a_turn_and_belong_to_it(vllm_engine, tiny_llama):
    async def scenario(generator):
        free = await generator.generate(PROMPT, Sampling(temperature=0.0, max_tokens=30))
        stop = free.tokens[10]
        sampling = Sampling(temperature=0.0, max_tokens=30, stop_token_ids=(stop,))
        return free, stop, await generator.generate(PROMPT, sampling)

    free, stop, completion = with_generator(vllm_engine.socket, scenario)
    end = free.tokens.index(stop) + 1
    assert completion.tokens == free.tokens[:end] and completion.finish_reason == "stop"
    assert len(completion.logprobs) == end


def test_the_context_length_is_enforced(vllm_engine):
    async def scenario(generator):
        with pytest.raises(ContextLengthExceeded, match="maximum context length is 2048 tokens, the prompt has 2048"):
            await generator.generate([40] * 2048, Sampling())
        return await generator.generate([40] * 2040, Sampling(max_tokens=100))  # room for 8

    completion = with_generator(vllm_engine.socket, scenario)
    assert len(completion.tokens) <= 8


def test_only_its_user_reaches_the_api(vllm_engine):
    """It obeys whoever reaches it. (torch's processes listen on loopback, for each other.)"""
    assert vllm_engine.socket.parent.stat().st_mode & 0o777 == 0o700
    folder, program = f"TMPDIR={vllm_engine.socket.parent}".encode(), b"vllm.entrypoints.openai.api_server"
    processes = [
        process
        for process in Path("/proc").glob("[0-9]*")
        if folder in read_or_empty(process / "environ").split(b"\0")
        and program in read_or_empty(process / "cmdline").split(b"\0")
    ]
    opened = {os.readlink(file) for process in processes for file in (process / "fd").iterdir() if file.is_symlink()}
    listening = {family: listening_sockets(family) & opened for family in ("unix", "tcp", "tcp6")}
    assert listening["unix"] and not listening["tcp"] | listening["tcp6"]


def listening_sockets(family: str) -> set[str]:
    """Sockets of this machine that listen, as links in /proc name them."""
    listens, inode = ("00010000", 6) if family == "unix" else ("0A", 9)
    lines = [line.split() for line in Path("/proc/net", family).read_text().splitlines()]
    return {f"socket:[{fields[inode]}]" for fields in lines if fields[3] == listens}


def test_a_rejected_request_is_not_an_unreachable_engine(vllm_engine):
    with pytest.raises(ModelError) as caught:
        with_generator(vllm_engine.socket, lambda g: g.generate([10**9], Sampling()))
    assert type(caught.value) is ModelError


def test_cancelling_aborts_inside_the_engine(vllm_engine):
    async def scenario(generator):
        with aborted(vllm_engine):
            task = asyncio.create_task(generator.generate(PROMPT, LONG))
            await sampling_starts(vllm_engine, task)
            task.cancel()
            await asyncio.wait({task})

    with_generator(vllm_engine.socket, scenario)


def test_new_weights_reach_every_layer_and_are_reversible(vllm_engine, tiny_llama, other_llama):
    """Covers tied embeddings, bf16 weights and prefixes cached under old weights: each has caused errors."""

    def sample(version):
        async def scenario(generator):
            generator.version = version
            return await generator.generate(PROMPT * 20, Sampling(max_tokens=60))

        return with_generator(vllm_engine.socket, scenario)

    assert mean_difference(tiny_llama, PROMPT * 20, sample(0)) < 0.05
    try:
        vllm_engine.load_weights(other_llama, 1)
        completion = sample(1)
        assert completion.version == 1
        assert mean_difference(other_llama, PROMPT * 20, completion) < 0.05
        assert mean_difference(tiny_llama, PROMPT * 20, completion) > 1
    finally:
        vllm_engine.load_weights(tiny_llama, 2)
    assert mean_difference(tiny_llama, PROMPT * 20, sample(2)) < 0.05


def test_loading_weights_aborts_calls_in_flight(vllm_engine, tiny_llama):
    async def scenario(generator):
        task = asyncio.create_task(generator.generate(PROMPT, LONG))
        await sampling_starts(vllm_engine, task)
        await asyncio.to_thread(vllm_engine.load_weights, tiny_llama, 3)
        with pytest.raises(ModelUnreachable, match="send it again"):
            await task
        return await generator.generate(PROMPT, Sampling(max_tokens=5))

    assert len(with_generator(vllm_engine.socket, scenario).tokens) == 5


def test_an_engine_that_dies_is_unreachable(tmp_path):
    """Connection refused, connection closed before the response, and a response of status 500."""

    async def main():
        async def hang_up(_, writer):
            writer.close()

        async def fail(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\ndead")
            await writer.drain()
            writer.close()

        servers = [await asyncio.start_unix_server(answer, tmp_path / answer.__name__) for answer in (hang_up, fail)]
        for name in ("hang_up", "fail", "nothing"):
            generator = VllmGenerator(tmp_path / name)
            with pytest.raises(ModelUnreachable):
                await generator.generate(PROMPT, Sampling())
            await generator.close()
        for server in servers:
            server.close()

    asyncio.run(main())


@pytest.fixture(scope="module")
def gateway(vllm_engine, tiny_llama, tmp_path_factory):
    """The gateway's process in front of the real engine: (url, control)."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "trainer.gateway", "--engine-socket", str(vllm_engine.socket)]
    command += ["--model", str(tiny_llama), "--port", str(port)]
    env = dict(os.environ, GATEWAY_CONTROL_TOKEN="control", PYTHONPATH=str(ROOT))
    service = Service("gateway", command, env, tmp_path_factory.mktemp("gateway") / "gateway.log", url + "/healthz")
    service.start()
    try:
        service.wait_ready(60)
        yield url, GatewayControl(url, "control")
    finally:
        service.stop()


def chat(url, key, messages, **fields):
    body = json.dumps({"messages": messages, **fields}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(url + "/v1/chat/completions", body, headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def test_a_conversation_is_recorded_as_the_engines_sequence(gateway, tiny_llama, thinking_tokenizer):
    url, control = gateway
    control.open("episode", "k1", Sampling(max_tokens=24))
    messages = list(MESSAGES)
    for turn in range(3):
        answer = chat(url, "k1", messages)
        messages += [answer["choices"][0]["message"], {"role": "user", "content": f"observation {turn}"}]
    trace = control.close("episode")
    assert trace.n_calls == 3 and [segment.parent for segment in trace.segments] == [-1, 0, 1, 2, 3, 4]
    assert answer["usage"]["prompt_tokens"] == sum(len(segment.tokens) for segment in trace.segments[:-1])
    # The model's logprobs of the whole sequence agree turn by turn: nothing was shifted or re-tokenised.
    prompt: list[int] = []
    for segment in trace.segments:
        if segment.sampled:
            expected = logprobs_of(tiny_llama, prompt, list(segment.tokens))
            assert (expected - expected.new_tensor(segment.logprobs)).abs().mean() < 0.05
        prompt += segment.tokens


def test_closing_a_session_aborts_in_the_engine(gateway, vllm_engine):
    url, control = gateway
    control.open("stopped", "k2", LONG)

    async def main():
        async with aiohttp.ClientSession() as http:
            headers = {"Authorization": "Bearer k2"}
            post = asyncio.create_task(
                http.post(url + "/v1/chat/completions", headers=headers, json={"messages": MESSAGES})
            )
            await sampling_starts(vllm_engine, post)
            trace = await asyncio.to_thread(control.close, "stopped")
            response = await post
            return trace, response.status, (await response.json())["error"]["code"]

    with aborted(vllm_engine):
        trace, status, code = asyncio.run(main())
    assert (status, code, trace.n_calls) == (409, "conflict", 0)


def test_an_agent_that_disconnects_aborts_in_the_engine(gateway, vllm_engine):
    url, control = gateway
    control.open("left", "k3", LONG)

    async def main():
        async with aiohttp.ClientSession() as http:
            headers = {"Authorization": "Bearer k3"}
            post = asyncio.create_task(
                http.post(url + "/v1/chat/completions", headers=headers, json={"messages": MESSAGES})
            )
            await sampling_starts(vllm_engine, post)
            post.cancel()
            await asyncio.wait({post})

    with aborted(vllm_engine):
        asyncio.run(main())
    assert control.status()["left"] == {"n_calls": 0, "in_flight": 0}
    assert control.close("left").n_calls == 0


def test_a_prompt_that_is_too_long_is_reported_to_the_agent(gateway):
    url, control = gateway
    control.open("long", "k4", Sampling(max_tokens=8))
    with pytest.raises(urllib.error.HTTPError) as caught:
        chat(url, "k4", [{"role": "user", "content": "long " * 4000}])
    error = json.load(caught.value)["error"]
    assert (caught.value.code, error["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 2048 tokens" in error["message"]
    control.close("long")
