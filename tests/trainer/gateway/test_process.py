"""The gateway as a process: its requirements at start, and its end on SIGTERM with calls in flight."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from trainer.engines.base import Sampling
from trainer.gateway.control import GatewayControl
from trainer.services.service import Service, free_port

ROOT = Path(__file__).parents[3]
ENV = dict(os.environ, PYTHONPATH=str(ROOT), GATEWAY_CONTROL_TOKEN="control")


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory, chatml_tokenizer):
    directory = tmp_path_factory.mktemp("tokenizer")
    chatml_tokenizer.save_pretrained(directory)
    return directory


def command(engine_socket, model, port):
    arguments = ["--engine-socket", str(engine_socket), "--model", str(model), "--port", str(port)]
    return [sys.executable, "-m", "trainer.gateway", *arguments]


def test_a_missing_token_and_a_port_in_use_are_reported(tokenizer_dir):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = command("/nonexistent", tokenizer_dir, port)
        without = {name: value for name, value in ENV.items() if name != "GATEWAY_CONTROL_TOKEN"}
        for env, status, message in ((without, 2, "GATEWAY_CONTROL_TOKEN must be set"), (ENV, 1, f"needs port {port}")):
            ended = subprocess.run(arguments, env=env, capture_output=True, text=True)
            assert ended.returncode == status and message in ended.stderr and "Traceback" not in ended.stderr


def test_tools_need_a_template_whose_calls_can_be_read(tokenizer_dir):
    arguments = [*command("http://127.0.0.1:9", tokenizer_dir, free_port()), "--tools"]
    ended = subprocess.run(arguments, env=ENV, capture_output=True, text=True)
    assert ended.returncode == 1 and "does not render tool calls in a form that can be read" in ended.stderr
    assert "<function=bash>" in ended.stderr and '{"name": "bash"' in ended.stderr and "Traceback" not in ended.stderr


def test_sigterm_aborts_calls_in_flight(tokenizer_dir, tmp_path):
    """The connections of engine and agent close, and the process ends by itself, long before it would be killed."""
    aborted = asyncio.Event()
    started = asyncio.Event()

    async def models(_):
        return web.json_response({"data": [{"max_model_len": 2048}]})

    async def completions(_):
        started.set()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            aborted.set()
            raise

    async def main():
        app = web.Application()
        app.add_routes([web.get("/v1/models", models), web.post("/v1/completions", completions)])
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        engine_socket, port = tmp_path / "engine.sock", free_port()
        await web.UnixSite(runner, engine_socket).start()
        url = f"http://127.0.0.1:{port}"
        service = Service(
            "gateway",
            command(engine_socket, tokenizer_dir, port),
            ENV,
            tmp_path / "gateway.log",
            url + "/healthz",
            stop_grace_s=60,
        )
        service.start()
        try:
            await asyncio.to_thread(service.wait_ready, 60)
            await asyncio.to_thread(GatewayControl(url, "control").open, "one", "key", Sampling())
            async with aiohttp.ClientSession() as http:
                body = {"messages": [{"role": "user", "content": "go"}]}
                post = asyncio.create_task(
                    http.post(url + "/v1/chat/completions", headers={"Authorization": "Bearer key"}, json=body)
                )
                async with asyncio.timeout(20):
                    await started.wait()
                    await asyncio.to_thread(service.stop)
                    await aborted.wait()
                    with pytest.raises(aiohttp.ClientError):
                        await post
        finally:
            await asyncio.to_thread(service.stop)
            await runner.cleanup()

    asyncio.run(main())
