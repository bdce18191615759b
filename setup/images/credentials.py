"""Registry credentials for skopeo: Apptainer's variables, its login file, or docker's.

Invariant: a password is never on a command line and never written to disk.
"""

import base64
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from client.errors import ConfigError

USERNAME, PASSWORD = "APPTAINER_DOCKER_USERNAME", "APPTAINER_DOCKER_PASSWORD"


def skopeo_environment(environment: Mapping[str, str], references: Iterable[str]) -> dict[str, str]:
    """Return variables that give skopeo the credentials that Apptainer would use at the hosts of `references`
    (`HOST/PATH`). Raises ConfigError."""
    username, password = environment.get(USERNAME), environment.get(PASSWORD)
    if bool(username) != bool(password):
        raise ConfigError(f"{USERNAME} and {PASSWORD} must be set together, and one is empty; set both or neither")
    if username and password:
        entry = {"auth": base64.b64encode(f"{username}:{password}".encode()).decode()}
        hosts = {source.partition("/")[0] for source in references}
        return {"REGISTRY_AUTH_FILE": _memory_file(json.dumps({"auths": {host: entry for host in sorted(hosts)}}))}
    home = Path(environment.get("HOME", "/"))
    logins = [home / ".apptainer/docker-config.json"]
    logins += [Path(environment["DOCKER_CONFIG"]) / "config.json"] if environment.get("DOCKER_CONFIG") else []
    login = next(filter(Path.is_file, logins), None)
    return {"REGISTRY_AUTH_FILE": str(login)} if login else {}


def _memory_file(text: str) -> str:
    """A path that child processes can read while this process lives."""
    descriptor = os.memfd_create("auth")
    os.write(descriptor, text.encode())
    return f"/proc/{os.getpid()}/fd/{descriptor}"
