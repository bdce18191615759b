"""Sessions of the gateway: opened by the trainer, called by one agent, closed into a trace.

Invariant: a completion is recorded in the token tree before it is returned. An identical request gets the recorded
response, so a retry is never sampled again. After `close` nothing is sampled and no engine request is left.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, replace

from client.errors import Conflict, NotFound, Unauthorized
from trainer.engines.base import Generator, Sampling
from trainer.gateway.chat import ChatRequest, completion_body, normalize_message
from trainer.gateway.render import Renderer
from trainer.gateway.trace import History, TokenTree, trace_to_wire

KEEP_CLOSED = 1024  # closed sessions whose traces are kept


@dataclass(eq=False, slots=True)
class _Call:
    """An engine request in flight. Identical HTTP requests share it; `n_waiting` is their number."""

    task: asyncio.Task
    n_waiting: int = 0


class GatewaySession:
    """One agent's conversations with the model. Not thread-safe: it belongs to the gateway's event loop."""

    def __init__(self, key: str, sampling: Sampling, renderer: Renderer, generator: Generator, model: str):
        self.key, self.sampling = key, sampling
        self._renderer, self._generator, self._model = renderer, generator, model
        self._tree = TokenTree()
        self._completed: dict[tuple, dict] = {}
        self._in_flight: dict[tuple, _Call] = {}
        self._closed = False

    def status(self) -> dict[str, int]:
        """`n_calls`: distinct completed calls; `in_flight`: calls in the engine."""
        return {"n_calls": len(self._tree), "in_flight": len(self._in_flight)}

    async def complete(self, request: ChatRequest) -> dict:
        """The `chat.completion` body for `request`.

        A call is aborted in the engine when the last request that waits for it is cancelled. Raises Conflict when the
        session is closed before the call completes, and what the generator raises.
        """
        if self._closed:
            raise _ended()
        history = History(request.messages, request.tools)
        reasoning = tuple(message.get("reasoning_content") for message in request.messages)
        identity = (history.digests[-1], reasoning, request.max_tokens)
        if identity in self._completed:
            return self._completed[identity]
        call = self._in_flight.get(identity)
        if call is None:
            call = _Call(asyncio.create_task(self._generate(request, history, identity)))
            self._in_flight[identity] = call
        call.n_waiting += 1
        try:
            await asyncio.wait({call.task})
        finally:
            call.n_waiting -= 1
            if call.n_waiting == 0:
                call.task.cancel()  # no effect on a completed task
                if self._in_flight.get(identity) is call:
                    del self._in_flight[identity]
        if call.task.cancelled():
            raise _ended()
        return call.task.result()

    async def close(self) -> dict:
        """Abort calls in flight and refuse later ones. Returns the trace in wire form."""
        self._closed = True
        tasks = [call.task for call in self._in_flight.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        return trace_to_wire(self._tree.trace())

    async def _generate(self, request: ChatRequest, history: History, identity: tuple) -> dict:
        turn = self._tree.find(history)
        if turn is None:
            before: list[int] = []
            new_prompt = self._renderer.prompt(request.messages, request.tools)
        else:
            before = turn.sequence()
            new_messages = request.messages[turn.n_messages :]
            new_prompt = self._renderer.continuation(turn.completion.tokens, new_messages, request.tools)
        sampling = self._sampling_for(request)
        completion = await self._generator.generate(before + new_prompt, sampling)
        message = self._renderer.parse(completion.tokens, request.tools)
        self._tree.add(turn, new_prompt, completion, history, normalize_message(message))
        # Here and not in `complete`: the client may disconnect before `complete` resumes.
        n_prompt_tokens = len(before) + len(new_prompt)
        self._completed[identity] = completion_body(self._model, message, completion, n_prompt_tokens)
        return self._completed[identity]

    def _sampling_for(self, request: ChatRequest) -> Sampling:
        """The policy's own sampling; a request can only lower `max_tokens`."""
        policy = self.sampling
        return replace(
            policy,
            max_tokens=min(policy.max_tokens, request.max_tokens or policy.max_tokens),
            stop_token_ids=policy.stop_token_ids or self._renderer.stop_token_ids,
        )


class Sessions:
    """All sessions of a gateway, by id for the trainer and by key for agents."""

    def __init__(self, renderer: Renderer, generator: Generator, model: str):
        self.model = model
        self._renderer, self._generator = renderer, generator
        self._open: dict[str, GatewaySession] = {}
        self._by_key: dict[str, GatewaySession] = {}
        self._closed: OrderedDict[str, tuple[str, dict]] = OrderedDict()  # id -> key, trace in wire form
        self._closed_keys: set[str] = set()

    def open(self, session_id: str, key: str, sampling: Sampling) -> None:
        """Open a session. Idempotent. Raises Conflict for another key or sampling, or an ended session."""
        known = self._open.get(session_id)
        if known is not None and (known.key, known.sampling) == (key, sampling):
            return
        if known is not None or key in self._by_key:
            raise Conflict(
                f"session {session_id} or its key is already open with other settings: use a fresh id and key"
            )
        if session_id in self._closed or key in self._closed_keys:
            raise Conflict(f"session {session_id} has ended: use a fresh id and key")
        session = GatewaySession(key, sampling, self._renderer, self._generator, self.model)
        self._open[session_id] = self._by_key[key] = session

    def for_key(self, key: str) -> GatewaySession:
        """The open session of an agent's bearer token. Raises Unauthorized, or Conflict where the session has ended."""
        session = self._by_key.get(key)
        if session is not None:
            return session
        if key in self._closed_keys:
            raise _ended()
        raise Unauthorized("the API key must be that of an open session; this one is unknown")

    async def close(self, session_id: str) -> dict:
        """Close a session. Idempotent. Returns its trace in wire form. Raises NotFound for an unknown session."""
        session = self._open.get(session_id)
        if session is not None:
            trace = await session.close()
            if self._open.pop(session_id, None) is not None:  # else a concurrent close was faster
                del self._by_key[session.key]
                self._remember(session_id, session.key, trace)
        if session_id not in self._closed:
            raise NotFound(
                f"no session {session_id}: it was never opened, or {KEEP_CLOSED} sessions have been closed since"
            )
        return self._closed[session_id][1]

    def status(self) -> dict[str, dict[str, int]]:
        """The open sessions: `{session_id: {"n_calls", "in_flight"}}`."""
        return {session_id: session.status() for session_id, session in self._open.items()}

    def set_version(self, version: int) -> None:
        """Set the weight version of later completions. Raises Conflict while a call is in flight."""
        busy = [session_id for session_id, status in self.status().items() if status["in_flight"]]
        if busy:
            raise Conflict(f"the weight version cannot change while calls are in flight: close {', '.join(busy)} first")
        self._generator.version = version

    def _remember(self, session_id: str, key: str, trace: dict) -> None:
        self._closed[session_id] = (key, trace)
        self._closed_keys.add(key)
        while len(self._closed) > KEEP_CLOSED:
            _, (old_key, _) = self._closed.popitem(last=False)
            self._closed_keys.discard(old_key)


def _ended() -> Conflict:
    return Conflict("this session has ended: stop the agent")
