"""The batch's decisions by themselves: pass@k, what an endpoint's answer means, whose failure an ending is; and the relay's stream."""

import email.utils
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from fractions import Fraction
from types import SimpleNamespace

import openai
import pytest

from client.errors import EndpointFailed, EndpointRefused, KeyRefused, ModelUnreachable, QuotaExhausted, RateLimited
from client.evaluation import relay as batch_relay
from client.evaluation.endpoint import CallerGone, Endpoint
from client.evaluation.pass_at_k import estimate, ks, pass_at_k
from client.evaluation.relay import Talk
from client.evaluation.report import Progress, summarize, table
from client.evaluation.results import Record, Settings
from client.evaluation.sessions import failure_of
from client.evaluation.verdicts import Reply, Then, judge
from client.wire import SessionView
from tests.client.evaluation.fake_endpoint import KEY, Fault, serving


@pytest.mark.parametrize("samples", range(1, 7))
def test_pass_at_k_is_the_share_of_draws_that_hold_a_resolved_one(samples):
    for resolved, k in itertools.product(range(samples + 1), range(1, samples + 1)):
        draws = list(itertools.combinations(range(samples), k))
        assert pass_at_k(samples, resolved, k) == pytest.approx(
            float(Fraction(sum(min(draw) < resolved for draw in draws), len(draws))), abs=1e-12
        )


def test_pass_at_k_of_known_cases():
    assert pass_at_k(5, 2, 1) == pytest.approx(0.4) and pass_at_k(10, 3, 5) == pytest.approx(1 - 21 / 252)
    assert pass_at_k(200, 1, 100) == pytest.approx(0.5)
    for impossible in ((3, 1, 4), (3, 4, 1), (3, -1, 1), (3, 1, 0)):
        with pytest.raises(ValueError, match="does not exist"):
            pass_at_k(*impossible)


def test_an_estimate_is_over_tasks_with_enough_samples():
    found = estimate([(4, 4), (4, 2), (4, 0), (1, 1)], 2)
    assert (found.value, found.tasks) == (pytest.approx((1 + 5 / 6 + 0) / 3), 3)
    assert 0.0 <= found.low < found.value < found.high <= 1.0 and found == estimate([(4, 4), (4, 2), (4, 0), (1, 1)], 2)
    assert estimate([(1, 1)], 2) is None and estimate([], 1) is None


def test_the_interval_is_that_of_the_bootstraps_distribution():
    """50 tasks, half of them resolved: the mean of a resample is binomial, 2.5 % of it below 18/50."""
    found = estimate([(1, 1)] * 25 + [(1, 0)] * 25, 1)
    assert found.low == pytest.approx(0.36, abs=0.021) and found.high == pytest.approx(0.64, abs=0.021)


@pytest.mark.parametrize("counts", [[(2, 1)], [(2, 0), (2, 0)], [(2, 2), (2, 2), (2, 2)]])
def test_no_interval_where_a_bootstrap_has_nothing_to_say(counts):
    assert estimate(counts, 1).low is None and estimate(counts, 1).high is None


def test_which_k():
    assert [ks(samples) for samples in (1, 2, 3, 8, 10)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 10]]


JUDGED = {
    "OpenAI: rate": (429, '{"error": {"code": "rate_limit_exceeded", "type": "tokens"}}', Then.WAIT, RateLimited),
    "OpenAI: quota": (
        429,
        '{"error": {"code": "insufficient_quota", "type": "insufficient_quota"}}',
        Then.FAIL,
        QuotaExhausted,
    ),
    "quota word as type only": (
        429,
        '{"error": {"code": null, "type": "insufficient_quota"}}',
        Then.FAIL,
        QuotaExhausted,
    ),
    "payment required": (402, "", Then.FAIL, QuotaExhausted),
    "Anthropic: credit": (
        400,
        '{"error": {"message": "Your credit balance is too low to access the API"}}',
        Then.FAIL,
        QuotaExhausted,
    ),
    "insufficient balance": (400, '{"error": {"message": "Insufficient Balance"}}', Then.FAIL, QuotaExhausted),
    "Google: rate, in words of quota": (
        429,
        '[{"error": {"code": 429, "message": "You exceeded your current quota"}}]',
        Then.WAIT,
        RateLimited,
    ),
    "error is text": (429, '{"error": "too many"}', Then.WAIT, RateLimited),
    "wrapped rate": (200, '{"error": {"code": 429, "message": "upstream is busy"}}', Then.WAIT, RateLimited),
    "wrapped quota": (200, '{"error": {"code": 402, "message": "no credits"}}', Then.FAIL, QuotaExhausted),
    "key": (401, '{"error": {"message": "no"}}', Then.FAIL, KeyRefused),
    "forbidden": (403, "", Then.FAIL, EndpointRefused),
    "no such model": (404, '{"error": {"message": "The model does not exist"}}', Then.FAIL, EndpointRefused),
    "moved": (308, "", Then.FAIL, EndpointRefused),
    "timeout said": (408, "", Then.RETRY, EndpointFailed),
    "overloaded": (529, "", Then.RETRY, EndpointFailed),
    "gateway": (504, "<html>", Then.RETRY, EndpointFailed),
    "no choices": (200, '{"choices": []}', Then.RETRY, EndpointFailed),
    "a list": (200, "[]", Then.RETRY, EndpointFailed),
    "nothing": (0, "refused", Then.RETRY, ModelUnreachable),
    "completion": (200, '{"choices": [{"message": {"role": "assistant", "content": ""}}]}', Then.PASS_ON, None),
    "OpenAI: overflow": (
        400,
        '{"error": {"code": "context_length_exceeded", "message": "too long"}}',
        Then.PASS_ON,
        None,
    ),
    "Anthropic: overflow": (
        400,
        '{"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}',
        Then.PASS_ON,
        None,
    ),
}


@pytest.mark.parametrize("name", JUDGED)
def test_what_an_answer_means(name):
    status, body, then, error = JUDGED[name]
    verdict = judge(Reply(status, {}, body.encode()))
    assert verdict.then is then and type(verdict.error) is (error or type(None))
    if then is Then.PASS_ON and status == 400:
        assert (verdict.status, verdict.answer["error"]["code"]) == (400, "context_length_exceeded")


def test_what_an_endpoint_asks_to_wait():
    def asked(**headers: str) -> float | None:
        return judge(Reply(429, {name.replace("_", "-"): value for name, value in headers.items()}, b"")).wait_s

    assert [asked(retry_after="7"), asked(retry_after="0.5"), asked(retry_after_ms="250")] == [7.0, 0.5, 0.25]
    assert asked(retry_after="soon") is asked() is None
    assert asked(retry_after=email.utils.formatdate(time.time() + 30, usegmt=True)) == pytest.approx(30, abs=2)
    assert asked(retry_after="Thu, 01 Jan 1970 00:00:00 GMT") == 0.0


def view(**fields) -> SessionView:
    return SessionView(
        **{
            "session_id": "s",
            "client_session_id": "c",
            "status": "completed",
            "reward": 0.0,
            "seconds": {"agent": 100.0},
        }
        | fields
    )


def talk(**fields) -> Talk:
    return SimpleNamespace(**{"fault": None, "pending": None, "lost_s": 0.0} | fields)


LOST_WORKER = {"boundary": "server", "code": "worker_lost", "message": "gone"}
MODEL_FAILED = {"boundary": "model", "code": "model_unreachable", "message": "timeout"}
ENDINGS = {
    "its own": (view(), talk(), None),
    "its own, though it waited": (view(agent_exit_status="Submitted"), talk(lost_s=90.0), None),
    "its own time": (view(agent_exit_status="TimeExceeded"), talk(lost_s=9.0), None),
    "time that the endpoint took": (view(agent_exit_status="TimeExceeded"), talk(lost_s=11.0), "endpoint_failed"),
    "completed after a fault": (view(reward=1.0), talk(fault=EndpointFailed("no")), "endpoint_failed"),
    "completed without a reward": (view(reward=None), talk(), "server_error"),
    "the server's": (
        view(status="failed", reward=None, error=LOST_WORKER),
        talk(pending=RateLimited("slow")),
        "worker_lost",
    ),
    "the agent gave up waiting": (
        view(status="failed", reward=None, error=MODEL_FAILED),
        talk(pending=RateLimited("slow")),
        "rate_limited",
    ),
    "the way to the relay": (view(status="failed", reward=None, error=MODEL_FAILED), talk(), "model_unreachable"),
    "somebody else's cancel": (view(status="cancelled", reward=None), talk(), "cancelled"),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_whose_failure_an_ending_is(name):
    ended, said, code = ENDINGS[name]
    assert (failure_of(ended, said) or {}).get("code") == code


def record(task: str, sample: int, **fields) -> Record:
    end = {"status": "completed", "reward": 0.0, "exit_status": "Submitted", "submission": ""}
    return Record(task_id=task, sample=sample, session_id=f"{task}{sample}", **end | fields)


def test_a_summary_counts_the_last_line_of_a_sample_and_all_tokens():
    failed = {
        "status": "failed",
        "reward": None,
        "error": {"boundary": "sandbox", "code": "sandbox_died"},
        "prompt_tokens": 5,
    }
    records = [
        record("a", 0, **failed),
        record("a", 0, resolved=True, prompt_tokens=7),
        record("a", 1),
        record("b", 0, **failed),
    ]
    told = summarize(Settings(model="m", base_url="", split="eval", tasks=("a", "b", "c"), samples=2), records)
    assert (told["samples"], told["completed"], told["resolved"], told["not_run"], told["prompt_tokens"]) == (
        6,
        2,
        1,
        3,
        17,
    )
    assert told["failures"] == {"sandbox/sandbox_died": 1}
    assert [(k, found["value"], found["tasks"]) for k, found in told["pass_at"].items()] == [
        ("1", 0.5, 1),
        ("2", 1.0, 1),
    ]
    assert "sandbox/sandbox_died" in table(told)


def test_progress_counts_what_was_there_before():
    before = [record("a", 0, resolved=True), record("b", 0, status="failed")]
    progress = Progress(SimpleNamespace(isatty=lambda: False, write=lambda text: None, flush=lambda: None), before, 8)
    progress.after(record("b", 0))
    assert progress.line(10.0) == "2 of 8 samples completed, 1 resolved (50.0%), 0:01:00 left"


@pytest.mark.parametrize("tools", [False, True])
def test_an_agent_that_wants_a_stream_gets_one(tools):
    """Read by OpenAI's own client; the endpoint is asked for the whole answer, and a fault in between does not show."""
    with serving() as played:
        played.plays = {"the task": ["ls"]}
        endpoint = Endpoint(
            f"{played.url}/v1", "some-model", api_key=KEY, sampling={"temperature": 0.3}, patience_s=5, call_timeout_s=5
        )
        with batch_relay.serving("127.0.0.1", 0, endpoint) as relay, relay.talk(pytest.fail) as talk:
            client = openai.OpenAI(base_url=f"{relay.url}/v1", api_key=talk.key, max_retries=0)
            offered = {"tools": [{"type": "function", "function": {"name": "bash", "parameters": {}}}]} if tools else {}
            messages = [{"role": "user", "content": "the task"}]
            chunks = list(
                client.chat.completions.create(
                    model="policy", messages=messages, stream=True, stream_options={"include_usage": True}, **offered
                )
            )
            models = [model.id for model in client.models.list()]
        deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
        said = (
            [call.function.arguments for delta in deltas for call in delta.tool_calls or ()]
            if tools
            else [d.content for d in deltas if d.content]
        )
    assert said == (['{"command": "ls"}'] if tools else ["```bash\nls\n```"]) and models == ["some-model"]
    assert chunks[-1].usage.total_tokens == 2 and chunks[-2].choices[0].finish_reason == "stop"
    assert [(r["model"], r["temperature"], "stream" in r) for r in played.requests] == [("some-model", 0.3, False)]
    assert (talk.calls, talk.completion_tokens, len(talk.conversation["messages"])) == (1, 1, 2)


def test_the_relay_answers_only_its_sessions():
    with serving() as played:
        endpoint = Endpoint(played.url, "m", api_key=KEY, sampling={}, patience_s=1, call_timeout_s=5)
        with batch_relay.serving("127.0.0.1", 0, endpoint) as relay:
            with relay.talk(pytest.fail) as talk:
                pass
            for key in ("guess", talk.key, KEY):
                with pytest.raises(openai.AuthenticationError):
                    openai.OpenAI(base_url=f"{relay.url}/v1", api_key=key, max_retries=0).chat.completions.create(
                        model="m", messages=[]
                    )
    assert not played.requests


def test_a_rate_limit_that_one_call_meets_holds_back_all():
    """The others are not even sent; callers that leave are let go."""
    left = threading.Event()
    with serving() as played, ThreadPoolExecutor(8) as threads:
        played.fault = lambda text, turn: Fault(429, headers={"Retry-After": "60"})
        endpoint = Endpoint(played.url, "m", api_key=KEY, sampling={}, patience_s=1, call_timeout_s=5)
        waiting = threading.Event()

        def call() -> None:
            endpoint.complete({"messages": []}, left.is_set, lambda seconds, fault: waiting.set())

        calls = [threads.submit(call)]
        try:
            assert waiting.wait(10)
            calls += [threads.submit(call) for _ in range(7)]
            assert not wait(calls, timeout=0.5).done and played.statuses == [429]
        finally:
            left.set()
        assert all(isinstance(ended.exception(timeout=10), CallerGone) for ended in calls) and played.statuses == [429]


def test_progress_on_a_terminal_is_one_line_drawn_anew():
    shown = []
    progress = Progress(SimpleNamespace(isatty=lambda: True, write=shown.append, flush=lambda: None), [], 2)
    progress.after(record("a", 0))
    progress.after(record("b", 0, resolved=True))
    progress.close()
    text = "".join(shown)
    assert (
        text.count("\n") == 1
        and text.endswith("\n")
        and [line.split(",")[0] for line in text.split("\r")[1:]]
        == ["1 of 2 samples completed", "2 of 2 samples completed"]
    )
