"""Which setting of the server sets a limit that ended the tests of a row.

Invariant: a limit is named as the server's variable with its value, so that raising it needs no search.
"""

from agent_server.config import Settings, variable

SETTINGS = {
    "memory": "sandbox_memory_mib",
    "processes": "sandbox_processes",
    "disk": "sandbox_disk_mib",
    "cpu": "sandbox_cpu_s",
    "time": "grading_timeout_s",
}


def setting_of_limit(limit: str, settings: Settings) -> str:
    """`AGENT_SERVER_SANDBOX_PROCESSES=512` for `processes`. `limit`: as in CommandResult, or `cpu`; "" for others."""
    if not (name := SETTINGS.get(limit)):
        return ""
    value = getattr(settings, name)
    return f"{variable(name)}={value:g}" if isinstance(value, float) else f"{variable(name)}={value}"
