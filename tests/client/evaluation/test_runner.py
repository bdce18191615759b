"""Attribution of a session's end to the model or to the infrastructure."""

from types import SimpleNamespace

import pytest

from client.errors import EndpointFailed, RateLimited
from client.evaluation.relay import ModelSession
from client.evaluation.runner import classify_failure
from client.wire import SessionView


def view(**fields) -> SessionView:
    ids = {"session_id": "s", "client_session_id": "c"}
    end = {"status": "completed", "reward": 0.0, "seconds": {"agent": 100.0}}
    return SessionView(**ids | end | fields)


def calls(**fields) -> ModelSession:
    """What classify_failure reads of a model session."""
    return SimpleNamespace(**{"fault": None, "pending_fault": None, "delay_s": 0.0} | fields)


LOST_WORKER = {"boundary": "server", "code": "worker_lost", "message": "gone"}
MODEL_FAILED = {"boundary": "model", "code": "model_unreachable", "message": "timeout"}
ENDINGS = {
    "model's own": (view(), calls(), None),
    "model's own, after waiting": (view(agent_exit_status="Submitted"), calls(delay_s=90.0), None),
    "model's own time": (view(agent_exit_status="TimeExceeded"), calls(delay_s=9.0), None),
    "time lost to the endpoint": (view(agent_exit_status="TimeExceeded"), calls(delay_s=11.0), "endpoint_failed"),
    "completed after a fault": (view(reward=1.0), calls(fault=EndpointFailed("no")), "endpoint_failed"),
    "completed without a reward": (view(reward=None), calls(), "server_error"),
    "the server's": (
        view(status="failed", reward=None, error=LOST_WORKER),
        calls(pending_fault=RateLimited("slow")),
        "worker_lost",
    ),
    "the agent gave up waiting": (
        view(status="failed", reward=None, error=MODEL_FAILED),
        calls(pending_fault=RateLimited("slow")),
        "rate_limited",
    ),
    "the connection to the relay": (
        view(status="failed", reward=None, error=MODEL_FAILED),
        calls(),
        "model_unreachable",
    ),
    "cancelled at the server": (view(status="cancelled", reward=None), calls(), "cancelled"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_an_ending_is_attributed(name):
    ended, model_session, code = ENDINGS[name]
    assert (classify_failure(ended, model_session) or {}).get("code") == code
