"""Custom agent for tests: AGENT_SERVER_AGENT=tests.agent_server.agents.custom_agent:CustomAgent."""

import requests

from agent_server.agents.base import AgentResult


class CustomAgent:
    """Calls the model once, runs its answer as a command, and submits."""

    def run(self, problem_statement, sandbox, endpoint, *, agent_timeout_s, command_timeout_s, trajectory, seconds):
        answer = requests.post(
            f"{endpoint.base_url}/v1/chat/completions",
            headers={"Authorization": f"Bearer {endpoint.api_key}"},
            json={"model": "policy", "messages": [{"role": "user", "content": problem_statement}]},
            timeout=endpoint.timeout_s,
        ).json()
        command = answer["choices"][0]["message"]["content"].removeprefix("```bash\n").removesuffix("\n```")
        result = sandbox.run(command, cwd="/testbed", timeout_s=command_timeout_s)
        trajectory.write_text(result.output)
        return AgentResult("Done", True, "", 1)


class EchoingAgent:
    """Runs the model's answer as it is, and submits it as its patch."""

    def run(self, problem_statement, sandbox, endpoint, *, agent_timeout_s, command_timeout_s, trajectory, seconds):
        answer = requests.post(
            f"{endpoint.base_url}/v1/chat/completions",
            headers={"Authorization": f"Bearer {endpoint.api_key}"},
            json={"messages": [{"role": "user", "content": problem_statement}]},
            timeout=endpoint.timeout_s,
        ).json()["choices"][0]["message"]["content"]
        result = sandbox.run(answer, cwd="/testbed", timeout_s=command_timeout_s)
        return AgentResult(f"Done: {result.returncode} {answer}", True, answer, 1)


class Unfit:
    """A class whose `run` takes other arguments than an agent's."""

    def run(self, problem_statement):
        raise NotImplementedError


class NotAnAgent:
    """A class without `run`."""


class EndlessAgent:
    """Never ends by itself. It does not know AgentTimeout."""

    def run(self, problem_statement, sandbox, endpoint, *, agent_timeout_s, command_timeout_s, trajectory, seconds):
        while True:
            sandbox.run("sleep 1", cwd="/testbed", timeout_s=command_timeout_s)
