"""The vLLM engine: `VllmEngine` runs the server and updates weights, `VllmGenerator` samples tokens.

Invariant: token ids in, token ids out. The server must echo the exact prompt, or the call fails. Logprobs are those of
the model's own distribution (temperature 1, before top-p): `--logprobs-mode raw_logprobs`. The server listens on a Unix
socket in a folder of this user's alone: whoever reaches it may load weights, and its API key guards some routes only.
"""

import http.client
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from client.errors import ContextLengthExceeded, ModelError, ModelUnreachable
from client.service_links import without_service_links
from trainer.engines import unix_http
from trainer.engines.base import Completion, Sampling
from trainer.engines.vllm_worker import PolicyLoader
from trainer.services.service import Service

ROOT = Path(__file__).parents[2]
CONNECT_TIMEOUT_S = 10.0
HEALTH_TIMEOUT_S = 5.0
LOAD_TIMEOUT_S = 1800.0  # a large model from a slow disk


class VllmEngine:
    """One vLLM server, an `Engine` for the model in the Hugging Face-format directory `model`.

    It listens on the Unix socket `socket`, and its output goes to `log`.
    `eager` skips compilation: it starts far sooner and samples slower.
    `kv_cache_gib` is the memory of the KV cache; by default vLLM takes nearly all memory, on a CPU the machine's.
    `cpu_threads` binds the OpenMP threads on a CPU ("0-1"); by default vLLM leaves cores idle. `extra_args` are further
    command-line arguments of the server (tensor parallelism, memory share).
    """

    def __init__(
        self,
        model: Path,
        log: Path,
        *,
        max_model_len: int,
        eager: bool = False,
        dtype: str = "bfloat16",
        kv_cache_gib: float | None = None,
        cpu_threads: str | None = None,
        extra_args: Sequence[str] = (),
    ):
        # vLLM leaves sockets and rendezvous files behind: they go to a folder that is removed with the engine.
        self._scratch = tempfile.TemporaryDirectory(prefix="swe-rl-vllm-")
        self.socket = Path(self._scratch.name, "api.sock")
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(model), "--uds", str(self.socket), "--dtype", dtype]
        command += ["--max-model-len", str(max_model_len), "--logprobs-mode", "raw_logprobs"]
        # Not the model's generation_config: only the policy's sampling parameters apply.
        command += ["--generation-config", "vllm", "--disable-uvicorn-access-log"]
        command += ["--worker-extension-cls", f"{PolicyLoader.__module__}.{PolicyLoader.__qualname__}"]
        command += ["--enforce-eager"] if eager else []
        command += ["--kv-cache-memory-bytes", str(int(kv_cache_gib * 2**30))] if kv_cache_gib is not None else []
        command += extra_args
        # A Kubernetes Service `vllm` would set VLLM_PORT to a URL, and vLLM would not start.
        env = without_service_links(os.environ, "VLLM_")
        env |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
        # vLLM's workers import PolicyLoader.
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
        if eager:
            # vLLM compiles one small sampler function all the same, and that needs a C++ compiler.
            env["TORCHDYNAMO_DISABLE"] = "1"
        if cpu_threads is not None:
            env["VLLM_CPU_OMP_THREADS_BIND"] = cpu_threads
        env["TMPDIR"] = self._scratch.name
        self._service = Service("vLLM", command, env, log, self._is_healthy, unreachable=ModelUnreachable)

    def start(self) -> None:
        """Start the server and return at once."""
        os.makedirs(self._scratch.name, mode=0o700, exist_ok=True)
        self._service.start()

    def wait_ready(self, timeout_s: float) -> None:
        """Return when the server answers. Raises ModelUnreachable, with the end of the log, if it ends or is late."""
        self._service.wait_ready(timeout_s)

    def check(self) -> None:
        """Raise ModelUnreachable, with the end of the log, if the server has ended."""
        self._service.check()

    def load_weights(self, directory: Path, version: int) -> None:
        """Serve the weights in `directory` from now on. Aborts calls in flight and drops cached prefixes.

        Raises ModelError where vLLM refuses. It then stays paused, so that nothing is sampled from a half-loaded model.
        """
        self._post("/pause?mode=abort")
        load = {"method": "load_policy", "kwargs": {"weights_path": str(Path(directory).resolve())}}
        self._post("/collective_rpc", load)
        if not self._post("/reset_prefix_cache").get("success"):
            raise ModelError("vLLM must drop its cached prefixes when weights change, but refused to")
        self._post("/update_weight_version", {"new_version": str(version)})
        self._post("/resume")

    def stop(self) -> None:
        """End the server and all its processes. Repeatable."""
        self._service.stop()
        self._scratch.cleanup()

    def _is_healthy(self) -> bool:
        try:
            return self._request("GET", "/health", HEALTH_TIMEOUT_S).status == 200
        except (OSError, http.client.HTTPException):
            return False

    def _post(self, target: str, content: object = None) -> dict:
        try:
            status, body = self._request("POST", target, LOAD_TIMEOUT_S, content)
        except (OSError, http.client.HTTPException) as error:
            self._service.check()
            raise ModelUnreachable(f"vLLM at {self.socket} did not answer POST {target}: {error!r}") from error
        if status != 200:
            raise ModelError(f"vLLM answered POST {target} with {status}: {body[:2000].decode(errors='replace')}")
        return json.loads(body) if body else {}

    def _request(self, method: str, target: str, timeout_s: float, content: object = None) -> unix_http.Response:
        return unix_http.request(self.socket, method, target, timeout_s=timeout_s, content=content)


class VllmGenerator:
    """A `Generator` on `/v1/completions` of the vLLM server at a Unix socket. Use and close it in one event loop."""

    def __init__(self, socket: Path):
        self.version = 0
        self._socket = socket
        self._http: aiohttp.ClientSession | None = None
        self._max_model_len: int | None = None

    async def generate(self, prompt: list[int], sampling: Sampling) -> Completion:
        """Sample a continuation of `prompt`. Cancelling closes the connection, and vLLM then aborts the request."""
        version = self.version
        room = await self._context_length() - len(prompt)
        if room < 1:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {self._max_model_len} tokens, the prompt has {len(prompt)}: "
                "shorten the conversation"
            )
        body = {
            "prompt": prompt,
            "max_tokens": min(sampling.max_tokens, room),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stop_token_ids": list(sampling.stop_token_ids),
            "logprobs": 0,  # of the sampled token only
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,  # saves vLLM from decoding every token for the logprobs
        }
        choice = (await self._request("POST", "/v1/completions", body))["choices"][0]
        if choice["finish_reason"] not in ("stop", "length"):
            raise ModelUnreachable(
                f"vLLM ended the request with {choice['finish_reason']!r} (new weights?): send it again"
            )
        tokens, logprobs = tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"])
        if choice["prompt_token_ids"] != prompt or len(tokens) != len(logprobs):
            raise ModelError(
                "vLLM must echo the prompt's token ids and return one logprob per sampled token, but did not"
            )
        return Completion(tokens, logprobs, choice["finish_reason"], version)

    async def close(self) -> None:
        """Close all connections, which aborts calls in flight."""
        if self._http is not None:
            await self._http.close()

    async def _context_length(self) -> int:
        if self._max_model_len is None:
            self._max_model_len = (await self._request("GET", "/v1/models"))["data"][0]["max_model_len"]
        return self._max_model_len

    async def _request(self, method: str, path: str, body: dict | None = None) -> dict:
        if self._http is None:
            # No limit on connections or on the total time: the session's limits end a call by cancelling it.
            self._http = aiohttp.ClientSession(
                # Shorter than vLLM's own keep-alive, so that no call uses a connection that vLLM is closing.
                connector=aiohttp.UnixConnector(str(self._socket), limit=0, keepalive_timeout=2.0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            )
        try:
            async with self._http.request(method, f"http://localhost{path}", json=body) as response:
                if response.status == 200:
                    return await response.json()
                text = (await response.text())[:2000]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ModelUnreachable(f"vLLM at {self._socket} did not answer {method} {path}: {error!r}") from error
        if response.status >= 500:
            raise ModelUnreachable(f"vLLM answered {method} {path} with {response.status}: {text}")
        raise ModelError(f"vLLM refused {method} {path} with {response.status}: {text}")
