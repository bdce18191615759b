"""`python -m agent_server`: check everything, then become gunicorn.

Invariant: what cannot work is said here, before a port is open: settings, rows, images, Apptainer, port.
"""

import os
import socket
import sys
from pathlib import Path

from agent_server.agents.registry import load_agent
from agent_server.config import Settings, variable
from agent_server.observability import logs
from agent_server.sandboxes import apptainer
from agent_server.sandboxes.cgroups.delegation import set_up_delegation
from agent_server.tasks.catalog import open_catalog
from agent_server.validate import command as golden
from client.errors import ConfigError, ImageMissing, StackError, StorageError

EXIT_CONFIG = 2
MISSING_SHOWN = 5


def main() -> None:
    """Exits with 2 and one message when something is wrong; otherwise does not return."""
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(
            f"python -m agent_server: starts the agent server; `python -m agent_server golden --help` checks rows. Its settings are environment variables:\n{describe()}"
        )
        return
    if sys.argv[1:2] == ["golden"]:
        sys.exit(golden.main(sys.argv[2:]))
    if sys.argv[1:]:
        sys.exit(f"agent_server takes no arguments but `golden`, its settings come from the environment:\n{describe()}")
    try:
        settings = Settings.from_environment(os.environ)
        check(settings)
    except StackError as wrong:
        print(f"agent_server: {wrong}", file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    print(f"agent_server: listening on http://{settings.address}, work directory {settings.work_dir}", file=sys.stderr)
    if room := set_up_delegation():
        print(f"agent_server: each sandbox gets a cgroup in {room}", file=sys.stderr)
    config = os.path.join(os.path.dirname(__file__), "gunicorn.conf.py")
    os.execv(sys.executable, [sys.executable, "-m", "gunicorn", "-c", config, "agent_server.__main__:serve()"])


def serve():
    """What gunicorn calls for the application."""
    from agent_server.app import create_app

    logs.set_up()
    return create_app(Settings.from_environment(os.environ))


def check(settings: Settings) -> None:
    """Raises the first thing that would keep a session from running."""
    apptainer.find_apptainer()
    load_agent(settings)
    check_images(settings.sif_dir, open_catalog(settings).image_names())
    try:
        settings.work_dir.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        raise StorageError(f"AGENT_SERVER_WORK_DIR={settings.work_dir} cannot be made: {refused}") from refused
    check_port(settings)


def check_images(sif_dir: Path, names: set[str]) -> list[Path]:
    """Where the images of these names lie. Raises ImageMissing, ImageCorrupt."""
    paths = {name: apptainer.image_path(sif_dir, name) for name in sorted(names)}
    if missing := [name for name, path in paths.items() if not path.exists()]:
        shown = ", ".join(f"{name} ({paths[name].name})" for name in missing[:MISSING_SHOWN])
        raise ImageMissing(
            f"{len(missing)} of {len(paths)} images that the rows name are missing in R2E_SIF_DIR={sif_dir}: {shown}"
            f"{', ...' if len(missing) > MISSING_SHOWN else ''}; fetch or build them there, or drop the rows"
        )
    for path in paths.values():
        apptainer.check_image(path)
    return list(paths.values())


def describe() -> str:
    """Every setting with its variable, default and meaning."""
    return "\n".join(
        f"  {variable(name):40} {'(required)' if field.is_required() else field.default!s:10}  {field.description}"
        for name, field in Settings.model_fields.items()
    )


def check_port(settings: Settings) -> None:
    """Raises ConfigError where the server could not listen."""
    with socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as taken:
            raise ConfigError(
                f"cannot listen on {settings.address}: {taken.strerror}; stop what listens there or set AGENT_SERVER_PORT",
                field="port",
            ) from taken


if __name__ == "__main__":
    main()
