"""Who we are to the registry: apptainer's variables, its login file, or docker's.

Invariant: a password is never on a command line nor written to disk.
"""

import base64
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from client.errors import ConfigError

USERNAME, PASSWORD = "APPTAINER_DOCKER_USERNAME", "APPTAINER_DOCKER_PASSWORD"


def skopeo_environment(environment: Mapping[str, str], references: Iterable[str]) -> dict[str, str]:
    """What makes skopeo use the same credentials as apptainer would, at the hosts of `references` (`HOST/PATH`). Raises ConfigError."""
    username, password = environment.get(USERNAME), environment.get(PASSWORD)
    if bool(username) != bool(password):
        raise ConfigError(f"{USERNAME} and {PASSWORD} belong together, and one is empty; set both or neither")
    if username and password:
        entry = {"auth": base64.b64encode(f"{username}:{password}".encode()).decode()}
        hosts = {source.partition("/")[0] for source in references}
        return {"REGISTRY_AUTH_FILE": _in_memory(json.dumps({"auths": {host: entry for host in sorted(hosts)}}))}
    home = Path(environment.get("HOME", "/"))
    logins = [home / ".apptainer/docker-config.json"]
    logins += [Path(environment["DOCKER_CONFIG"]) / "config.json"] if environment.get("DOCKER_CONFIG") else []
    return {"REGISTRY_AUTH_FILE": str(found)} if (found := next(filter(Path.is_file, logins), None)) else {}


def _in_memory(text: str) -> str:
    """A path that our children can read while we live."""
    descriptor = os.memfd_create("auth")
    os.write(descriptor, text.encode())
    return f"/proc/{os.getpid()}/fd/{descriptor}"
