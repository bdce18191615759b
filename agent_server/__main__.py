"""`python -m agent_server`: checks settings, rows, images, Apptainer and port, then execs gunicorn.

Invariant: a configuration that cannot work is refused before a port is open.
"""

import os
import socket
import sys
from pathlib import Path
from wsgiref.types import WSGIApplication

from pydantic.fields import FieldInfo

from agent_server.agents.registry import load_agent
from agent_server.config import Settings, variable
from agent_server.control_token import control_token
from agent_server.layers import command as prepare
from agent_server.observability import logs
from agent_server.private_files import FOLDER_MODE
from agent_server.sandboxes import apptainer, network
from agent_server.sandboxes.cgroups.delegation import set_up_delegation
from agent_server.tasks import unusable
from agent_server.tasks.catalog import open_catalog
from agent_server.validate import command as validate
from client.errors import ConfigError, ImageMissing, StackError, StorageError

EXIT_CONFIG = 2
MISSING_SHOWN = 5
VALIDATE = ("validate", "golden")  # `golden` is an alias of the first release's command
HELP = """python -m agent_server: starts the agent server.
python -m agent_server validate: checks that rows can be graded; see its --help.
python -m agent_server prepare: prepares the rows' repositories ahead of their first sessions; see its --help.
The settings are environment variables:"""


def main() -> None:
    """Exits with 2 and one message when something is wrong; otherwise does not return."""
    arguments = sys.argv[1:]
    if arguments in (["-h"], ["--help"]):
        print(f"{HELP}\n{describe()}")
        return
    if arguments[:1] and arguments[0] in VALIDATE:
        sys.exit(validate.main(arguments[1:], name=arguments[0]))
    if arguments[:1] == ["prepare"]:
        sys.exit(prepare.main(arguments[1:]))
    if arguments:
        sys.exit(f"unknown arguments {' '.join(arguments)!r}\n{HELP}\n{describe()}")
    try:
        settings = Settings.from_environment(os.environ)
        check(settings)
        control_token(settings)
    except StackError as error:
        print(f"agent_server: {error}", file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    print(f"agent_server: listening on http://{settings.address}, work directory {settings.work_dir}", file=sys.stderr)
    if not settings.token:
        print(f"agent_server: PATCH /limits needs the token in {settings.control_token_file}", file=sys.stderr)
    if parent := set_up_delegation():
        print(f"agent_server: each sandbox gets a cgroup in {parent}", file=sys.stderr)
    config = os.path.join(os.path.dirname(__file__), "gunicorn.conf.py")
    os.execv(sys.executable, [sys.executable, "-m", "gunicorn", "-c", config, "agent_server.__main__:serve()"])


def describe() -> str:
    """One line per setting: variable, default and meaning."""
    return "\n".join(
        f"  {variable(name):40} {_default_text(field):10}  {field.description}"
        for name, field in Settings.model_fields.items()
    )


def _default_text(field: FieldInfo) -> str:
    if field.is_required():
        return "(required)"
    return "" if field.default in ((), {}) else str(field.default)


def serve() -> WSGIApplication:
    """The application, for gunicorn."""
    from agent_server.app import create_app

    logs.set_up()
    return create_app(Settings.from_environment(os.environ))


def check(settings: Settings) -> None:
    """Raises the first error that would keep every session from running."""
    apptainer.find_apptainer()
    if settings.sandbox_network:
        network.find_programs()
    load_agent(settings)
    catalog = open_catalog(settings)
    check_images(settings.sif_dir, catalog.image_names())
    try:
        settings.work_dir.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
    except OSError as refused:
        raise StorageError(
            f"AGENT_SERVER_WORK_DIR={settings.work_dir} must be a writable folder ({refused}); choose another"
        ) from refused
    unusable.write(catalog.unusable, settings.unusable_rows_file)
    if catalog.unusable:
        print(
            f"agent_server: {len(catalog.unusable)} rows are left out, since no session could use them;"
            f" {settings.unusable_rows_file} has the reasons",
            file=sys.stderr,
        )
    check_port(settings)


def check_images(sif_dir: Path, names: set[str]) -> list[Path]:
    """Paths of the images of these names. Raises ImageMissing, ImageCorrupt."""
    paths = {name: apptainer.image_path(sif_dir, name) for name in sorted(names)}
    if missing := [name for name, path in paths.items() if not path.exists()]:
        shown = ", ".join(f"{name} ({paths[name].name})" for name in missing[:MISSING_SHOWN])
        more = ", ..." if len(missing) > MISSING_SHOWN else ""
        raise ImageMissing(
            f"{len(missing)} of {len(paths)} images that the rows name are missing in R2E_SIF_DIR={sif_dir}:"
            f" {shown}{more}; fetch or build them there, drop the rows, or set AGENT_SERVER_UNUSABLE_ROWS=skip"
        )
    for path in paths.values():
        apptainer.check_image(path)
    return list(paths.values())


def check_port(settings: Settings) -> None:
    """Raises ConfigError where the server could not listen."""
    with socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as taken:
            raise ConfigError(
                f"cannot listen on {settings.address}: {taken.strerror};"
                " stop the process that listens there or set AGENT_SERVER_PORT",
                field="port",
            ) from taken


if __name__ == "__main__":
    main()
