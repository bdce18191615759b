"""setup/install.sh: instant when all is there, from scratch after an interruption, never less than what was there.

Python and pip are stubs here that note their calls; the real ones have run before these tests could (scripts/test.sh).
"""

import shutil
from pathlib import Path

import pytest

from tests.setup.conftest import ROOT, World

# Stands for a Python: makes a "virtual environment" that holds a copy of itself, and lets FAIL make one pip call fail.
PYTHON = """case "$*" in
  *ensurepip*) exit 0 ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && touch "$3/bin/pip" && chmod +x "$3/bin/pip" ;;
  *"-m pip $FAIL"*) test -z "$FAIL" || { echo "ERROR: no more room" >&2; exit 1; } ;;
esac"""


@pytest.fixture
def checkout(world: World, tmp_path: Path) -> Path:
    """A copy of what install.sh reads, so that the real .venv is out of reach."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "setup", root / "setup", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    world.stub("python3.11", PYTHON)
    return root


def install(world: World, checkout: Path, wanted: str, fail: str = ""):
    """Runs it; returns what ran and the pip calls it made."""
    (world.folder / "calls").unlink(missing_ok=True)
    ran = world.run(checkout / "setup/install.sh", wanted, FAIL=fail)
    return ran, [call.split("-m pip ")[1] for call in world.calls if "-m pip" in call]


def test_a_second_run_does_nothing(world: World, checkout: Path):
    ran, pip = install(world, checkout, "all")
    assert ran.returncode == 0, ran.stderr
    assert pip == [
        "install --upgrade pip>=25",
        f"install --editable {checkout}[agent-server,trainer,dev,cpu]",
        "uninstall --yes torchvision torchaudio torchcodec",
    ]
    ran, pip = install(world, checkout, "all")
    assert (ran.returncode, ran.stderr, world.calls) == (0, "", [])


def test_a_gpu_machine_gets_the_gpu_engine(world: World, checkout: Path):
    world.stub("nvidia-smi", "echo 'GPU 0: NVIDIA H200'")
    ran, pip = install(world, checkout, "all")
    assert ran.returncode == 0, ran.stderr
    assert pip[1:] == [f"install --editable {checkout}[agent-server,trainer,dev,gpu]"]


def test_changed_requirements_are_installed_over_what_is_there(world: World, checkout: Path):
    install(world, checkout, "all")
    (checkout / ".venv/kept").touch()
    with (checkout / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    ran, pip = install(world, checkout, "all")
    assert ran.returncode == 0 and len(pip) == 3
    assert (checkout / ".venv/kept").exists()


@pytest.mark.parametrize("fail", ["install --upgrade", "install --editable", "uninstall"])
def test_an_interrupted_installation_is_done_again_from_nothing(world: World, checkout: Path, fail: str):
    ran, _ = install(world, checkout, "all", fail=fail)
    assert ran.returncode == 78
    assert "ERROR: no more room" in ran.stderr and "remedy: look at the lines above" in ran.stderr
    (checkout / ".venv/half").touch()
    ran, pip = install(world, checkout, "all")
    assert ran.returncode == 0 and len(pip) == 3
    assert not (checkout / ".venv/half").exists()


def test_the_agent_server_alone_then_everything_then_never_less(world: World, checkout: Path):
    ran, pip = install(world, checkout, "agent-server")
    assert pip[1:] == [f"install --editable {checkout}[agent-server]"], "no engine, so nothing to take out again"
    ran, pip = install(world, checkout, "all")
    assert pip[1] == f"install --editable {checkout}[agent-server,trainer,dev,cpu]"
    ran, pip = install(world, checkout, "agent-server")
    assert (ran.returncode, pip) == (0, [])


def test_without_a_fitting_python_the_remedy_is_named(world: World, checkout: Path):
    ran = world.run(checkout / "setup/install.sh", "all", PYTHON="python2")
    assert ran.returncode == 78
    assert "PYTHON=python2 cannot" in ran.stderr and "apt-get install -y python3 python3-venv" in ran.stderr


@pytest.mark.parametrize("script, argument", [("install.sh", "evrything"), ("setup.sh", "trian")])
def test_a_misspelt_purpose_is_named(world: World, checkout: Path, script: str, argument: str):
    ran = world.run(checkout / "setup" / script, argument)
    assert ran.returncode == 78 and f"not '{argument}'" in ran.stderr and "remedy: bash setup/" in ran.stderr
