"""The evaluation command against a real agent server: results, predictions, trajectories, bad input."""

import pytest

from tests.agent_server.conftest import free_port
from tests.client.evaluation.command import (
    FIX,
    TASK_A,
    TASK_B,
    TEXT,
    WRONG,
    finish,
    read_lines,
    read_results,
    read_summary,
)
from tests.client.evaluation.fake_endpoint import KEY, Fault


def test_two_tasks_two_samples(evaluate, endpoint, server, tmp_path):
    endpoint.scripts[TEXT[TASK_B]] = [WRONG[TASK_B], FIX[TASK_B]]
    sampling = ("--temperature", "0.7", "--max-tokens", "99", "--extra", '{"top_p": 0.5}')
    out, err = finish(evaluate("--samples", "2", "--concurrency", "2", *sampling), 0)

    results = read_results(tmp_path)
    assert results.keys() == {(task, index) for task in (TASK_A, TASK_B) for index in (0, 1)}
    ends = {(line["status"], line["exit_status"], line["calls"]) for line in results.values()}
    assert ends == {("completed", "Submitted", 2)}
    assert sorted(line["reward"] for line in results.values()) == [0.0, 1.0, 1.0, 1.0]
    assert results[TASK_A, 0]["reward"] == results[TASK_A, 1]["reward"] == 1.0
    summary = read_summary(tmp_path)
    assert (summary["pass_at"]["1"]["value"], summary["pass_at"]["2"]["value"]) == (0.75, 1.0)
    counts = {"completed": 4, "resolved": 3, "calls": 8, "prompt_tokens": 8, "completion_tokens": 8}
    counts |= {"infrastructure_failures": 0, "not_run": 0, "failures": {}, "exit_statuses": {"Submitted": 4}}
    assert {name: summary[name] for name in counts} == counts
    assert "75.0% (50.0% to 100.0%; 2 tasks)" in out and "4 of 4 samples completed, 3 resolved (75.0%)" in err

    assert endpoint.keys == {f"Bearer {KEY}"}
    assert {(r["model"], r["temperature"], r["max_tokens"], r["top_p"]) for r in endpoint.requests} == {
        ("some-model", 0.7, 99, 0.5)
    }
    written = [path for folder in (tmp_path / "out", server.work_dir) for path in folder.rglob("*") if path.is_file()]
    assert len(written) > 5 and not [path for path in written if KEY.encode() in path.read_bytes()]

    before = len(endpoint.requests)
    finish(evaluate("--samples", "2", *sampling), 0)
    assert len(endpoint.requests) == before + 1, "a finished evaluation only probes"


def test_swebench_reads_the_predictions(evaluate, endpoint, tmp_path):
    from swebench.harness.utils import get_predictions_from_file

    endpoint.scripts[TEXT[TASK_B]] = [WRONG[TASK_B], FIX[TASK_B]]
    finish(evaluate("--samples", "2"), 0)
    for index in (0, 1):
        read = get_predictions_from_file(str(tmp_path / "out" / f"predictions-{index}.jsonl"), "", "")
        assert {p["instance_id"]: (p["model_name_or_path"], p["model_patch"]) for p in read} == {
            task: ("some-model", read_results(tmp_path)[task, index]["submission"]) for task in (TASK_A, TASK_B)
        }
    assert "diff --git" in read_results(tmp_path)[TASK_A, 0]["submission"]


@pytest.mark.parametrize("only_resolved", [False, True])
def test_trajectories_are_the_relayed_conversations(evaluate, endpoint, tmp_path, only_resolved):
    endpoint.scripts[TEXT[TASK_B]] = [WRONG[TASK_B]]
    finish(evaluate(*["--only-resolved"] * only_resolved), 0)
    kept = {line["task_id"]: line for line in read_lines(tmp_path / "out" / "trajectories.jsonl")}
    rewards = {TASK_A: 1.0} if only_resolved else {TASK_A: 1.0, TASK_B: 0.0}
    assert {task: line["reward"] for task, line in kept.items()} == rewards
    requests = [request["messages"] for request in endpoint.requests]
    last = [messages for messages in requests if TEXT[TASK_A] in str([message["content"] for message in messages])][-1]
    messages = kept[TASK_A]["messages"]
    assert messages[:-1] == last
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert FIX[TASK_A] in messages[2]["content"] and "COMPLETE_TASK" in messages[-1]["content"]


def test_trajectories_of_tool_calls_include_the_tools(evaluate, endpoint, own_server, tmp_path):
    own = own_server(AGENT_SERVER_AGENT_CONFIG="tools")
    finish(evaluate(server_url=own.url), 0)
    kept = {line["task_id"]: line for line in read_lines(tmp_path / "out" / "trajectories.jsonl")}
    assert [tool["function"]["name"] for tool in kept[TASK_A]["tools"]] == ["bash"]
    assert kept[TASK_A]["messages"][-1]["tool_calls"][0]["function"]["name"] == "bash" and kept[TASK_A]["reward"] == 1.0


def test_the_models_own_failures_are_scored(evaluate, endpoint, tmp_path):
    """A prompt beyond the context window, in another wording than OpenAI's, and an agent that never submits."""
    overflow = b'{"object": "error", "message": "This model\'s maximum context length is 512 tokens.", "code": 400}'
    endpoint.scripts[TEXT[TASK_B]] = ["text:I give up"]
    endpoint.fault = lambda text, turn: Fault(400, overflow) if text == TEXT[TASK_A] and turn == 1 else None
    finish(evaluate(), 0)
    assert {task: read_results(tmp_path)[task, 0]["reward"] for task in (TASK_A, TASK_B)} == {TASK_A: 0.0, TASK_B: 0.0}
    assert read_results(tmp_path)[TASK_A, 0]["exit_status"] == "ContextWindowExceeded"


BAD = {
    "no such task": (
        ["--tasks", f"{TASK_A}x"],
        {},
        1,
        f"--tasks {TASK_A}x: the server has no such row in train; did you mean {TASK_A}?",
    ),
    "no samples": (["--samples", "0"], {}, 1, "--samples 0: Input should be greater than or equal to 1"),
    "no concurrency": (["--concurrency", "0"], {}, 1, "--concurrency 0 must be at least 1"),
    "no key": ([], {"THE_KEY": ""}, 1, "--api-key-env THE_KEY: that variable is not set"),
    "wrong key": ([], {"THE_KEY": "sk-other"}, 1, "the endpoint refuses the API key"),
    "extra is no JSON": (["--extra", "{"], {}, 1, "--extra { must be JSON"),
    "extra takes the messages": (["--extra", '{"messages": []}'], {}, 1, "must be a JSON object without"),
    "base url": (["--base-url", "localhost:8000"], {}, 1, "--base-url localhost:8000 must be http://"),
    "endpoint down": (
        ["--base-url", "http://127.0.0.1:9"],
        {},
        1,
        "the probe of http://127.0.0.1:9 failed: the endpoint did not answer",
    ),
    "server down": (["--server", "http://127.0.0.1:9"], {}, 75, "is the agent server up?"),
    "server is no URL": (["--server", "nowhere"], {}, 1, "--server nowhere: Invalid URL"),
    "relay address": (["--relay-host", "192.0.2.1"], {}, 1, "give an address of this machine"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_any_session(evaluate, endpoint, tmp_path, name):
    options, environment, code, message = BAD[name]
    endpoint.fault = lambda text, turn: (
        Fault(401, b'{"error": {"message": "wrong key"}}') if endpoint.keys == {"Bearer sk-other"} else None
    )
    _, err = finish(evaluate(*options, environment=environment), code)
    assert message in err and "Traceback" not in err
    assert not endpoint.begun and not read_results(tmp_path)


def test_the_agent_servers_token_comes_from_the_environment(evaluate, own_server, tmp_path):
    own = own_server(AGENT_SERVER_TOKEN="server-token")
    _, err = finish(evaluate(server_url=own.url), 1)
    assert "AGENT_SERVER_TOKEN" in err and "Traceback" not in err
    finish(evaluate(server_url=own.url, environment={"AGENT_SERVER_TOKEN": "server-token"}), 0)
    assert read_summary(tmp_path)["resolved"] == 2


def test_the_relays_port_can_be_fixed(evaluate, own_server, tmp_path):
    port = free_port()
    own = own_server(AGENT_SERVER_BASE_URLS=f"http://127.0.0.1:{port}")
    _, err = finish(evaluate(server_url=own.url), 1)
    assert "AGENT_SERVER_BASE_URLS" in err and "Traceback" not in err
    finish(evaluate("--relay-port", str(port), server_url=own.url), 0)
    assert read_summary(tmp_path)["resolved"] == 2
