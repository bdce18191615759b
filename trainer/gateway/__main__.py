"""The gateway's process: `python -m trainer.gateway --engine-url URL --model DIR --port PORT`.

Invariant: it holds no GPU and no weights, only the tokenizer; SIGTERM ends it at once and with it its engine requests.
"""

import argparse
import json
import logging
import os
import sys

from aiohttp import web

from client.errors import StackError
from trainer.engines.vllm import VllmGenerator
from trainer.gateway.render import Renderer
from trainer.gateway.server import create_app
from trainer.gateway.session import Sessions
from trainer.services.service import require_free_port


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.gateway", description="Chat completions for agents; token traces for the trainer."
    )
    parser.add_argument("--engine-url", required=True, help="the vLLM server, e.g. http://127.0.0.1:8100")
    parser.add_argument(
        "--model", required=True, help="directory of the model: its tokenizer and chat template are used"
    )
    parser.add_argument("--served-name", default="policy", help="the model's name in answers")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--chat-template-kwargs", type=json.loads, default={}, metavar="JSON", help="e.g. enable_thinking"
    )
    args = parser.parse_args()
    token = os.environ.get("GATEWAY_CONTROL_TOKEN")
    if not token:
        parser.error("GATEWAY_CONTROL_TOKEN must be set in the environment: the trainer's key to the control routes")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    generator = VllmGenerator(args.engine_url)
    try:
        require_free_port("the gateway", args.host, args.port)
        # Late and not AutoTokenizer: that one imports torch, twice the start and the memory of this process.
        from transformers import PreTrainedTokenizerFast

        renderer = Renderer(PreTrainedTokenizerFast.from_pretrained(args.model), args.chat_template_kwargs)
    except StackError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 1
    app = create_app(Sessions(renderer, generator, args.served_name), token)
    app.on_cleanup.append(lambda _: generator.close())
    # A client that leaves cancels its handler, and with it its engine request. An access log would cost more than the calls.
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
