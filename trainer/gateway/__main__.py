"""The gateway's command line: `python -m trainer.gateway --engine-socket PATH --model DIR --port PORT`.

Invariant: the process loads the tokenizer, but no weights, and uses no GPU. SIGTERM ends it at once, and its engine
requests with it.
"""

import argparse
import json
import logging
import os
import sys
from pathlib import Path

from aiohttp import web

from client.errors import StackError
from trainer.engines.vllm import VllmGenerator
from trainer.gateway.render import Renderer
from trainer.gateway.server import create_app
from trainer.gateway.session import Sessions
from trainer.services.service import require_free_port


def main() -> int:
    """Serve until a signal. Returns the exit code: 1 where the port or the model cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.gateway", description="Chat completions for agents; token traces for the trainer."
    )
    parser.add_argument("--engine-socket", type=Path, required=True, help="Unix socket of the vLLM server")
    parser.add_argument("--model", required=True, help="folder of the model, for its tokenizer and chat template")
    parser.add_argument("--served-name", default="policy", help="name of the model in responses")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--chat-template-kwargs",
        type=json.loads,
        default={},
        metavar="JSON",
        help='arguments of the chat template, e.g. {"enable_thinking": false}',
    )
    parser.add_argument("--tools", action="store_true", help="agents call tools: refuse a template without them")
    args = parser.parse_args()
    token = os.environ.get("GATEWAY_CONTROL_TOKEN")
    if not token:
        parser.error("GATEWAY_CONTROL_TOKEN must be set: it is the trainer's token for the control routes")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    generator = VllmGenerator(args.engine_socket)
    try:
        require_free_port("the gateway", args.host, args.port)
        # Imported late. Not AutoTokenizer: it imports torch, which doubles this process's start time and memory.
        from transformers import PreTrainedTokenizerFast

        renderer = Renderer(PreTrainedTokenizerFast.from_pretrained(args.model), args.chat_template_kwargs)
        if args.tools:
            renderer.require_tool_calls()
    except StackError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 1
    app = create_app(Sessions(renderer, generator, args.served_name), token)
    app.on_cleanup.append(lambda _: generator.close())
    # A client that disconnects cancels its handler, and so its engine request. An access log costs more than a call.
    web.run_app(
        app,
        host=args.host,
        port=args.port,
        handler_cancellation=True,
        shutdown_timeout=0.1,
        access_log=None,
        print=None,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
