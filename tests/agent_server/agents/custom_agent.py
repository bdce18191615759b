"""An agent of the tests' own, plugged in by AGENT_SERVER_AGENT=tests.agent_server.agents.custom_agent:CustomAgent."""

import requests

from agent_server.agents.base import AgentResult


class CustomAgent:
    """Asks the model once, runs what it says, submits."""

    def run(self, problem_statement, sandbox, endpoint, *, agent_timeout_s, command_timeout_s, trajectory, seconds):
        answer = requests.post(
            f"{endpoint.base_url}/v1/chat/completions", timeout=endpoint.timeout_s, headers={"Authorization": f"Bearer {endpoint.api_key}"},
            json={"model": "policy", "messages": [{"role": "user", "content": problem_statement}]},
        ).json()  # fmt: skip
        command = answer["choices"][0]["message"]["content"].removeprefix("```bash\n").removesuffix("\n```")
        result = sandbox.run(command, cwd="/testbed", timeout_s=command_timeout_s)
        trajectory.write_text(result.output)
        return AgentResult("Done", True, "", 1)


class Unfit:
    """Has a method of the right name that takes the wrong things."""

    def run(self, problem_statement):
        raise NotImplementedError


class NotAnAgent:
    """Has none."""
