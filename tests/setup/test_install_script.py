"""setup/install.sh: no work when everything is installed, a fresh start after an interruption, nothing is ever removed.

Python and pip are stubs that record their calls. The real ones have run before these tests (scripts/test.sh).
"""

import shutil
from pathlib import Path

import pytest

from tests.setup.conftest import ROOT, FakeMachine

# A stub of Python: its "virtual environment" holds a copy of itself, and FAIL names the pip call that fails.
PYTHON = """case "$*" in
  *ensurepip*) exit 0 ;;
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && touch "$3/bin/pip" && chmod +x "$3/bin/pip" ;;
  *"-m pip $FAIL"*) test -z "$FAIL" || { echo "ERROR: no more room" >&2; exit 1; } ;;
esac"""


@pytest.fixture
def checkout(fake_machine: FakeMachine, tmp_path: Path) -> Path:
    """A copy of the files that install.sh reads, so that the real .venv is out of reach."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "setup", root / "setup", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    fake_machine.stub("python3.11", PYTHON)
    return root


def install(fake_machine: FakeMachine, checkout: Path, extras: str, fail: str = ""):
    """Run it; returns the finished process and its pip calls."""
    (fake_machine.folder / "calls").unlink(missing_ok=True)
    ran = fake_machine.run(checkout / "setup/install.sh", extras, FAIL=fail)
    return ran, [call.split("-m pip ")[1] for call in fake_machine.calls if "-m pip" in call]


def test_a_second_run_does_nothing(fake_machine: FakeMachine, checkout: Path):
    ran, pip = install(fake_machine, checkout, "all")
    assert ran.returncode == 0, ran.stderr
    assert pip == [
        "install --upgrade pip>=25",
        f"install --editable {checkout}[agent-server,trainer,dev,docs,cpu]",
        "uninstall --yes torchvision torchaudio torchcodec",
    ]
    ran, pip = install(fake_machine, checkout, "all")
    assert (ran.returncode, ran.stderr, fake_machine.calls) == (0, "", [])


def test_a_gpu_machine_gets_the_gpu_engine(fake_machine: FakeMachine, checkout: Path):
    fake_machine.stub("nvidia-smi", "echo 'GPU 0: NVIDIA H200'")
    ran, pip = install(fake_machine, checkout, "all")
    assert ran.returncode == 0, ran.stderr
    assert pip[1:] == [f"install --editable {checkout}[agent-server,trainer,dev,docs,gpu]"]


def test_changed_requirements_update_the_installation(fake_machine: FakeMachine, checkout: Path):
    install(fake_machine, checkout, "all")
    (checkout / ".venv/kept").touch()
    with (checkout / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    ran, pip = install(fake_machine, checkout, "all")
    assert ran.returncode == 0 and len(pip) == 3
    assert (checkout / ".venv/kept").exists()


@pytest.mark.parametrize("fail", ["install --upgrade", "install --editable", "uninstall"])
def test_an_interrupted_installation_starts_again_from_nothing(fake_machine: FakeMachine, checkout: Path, fail: str):
    ran, _ = install(fake_machine, checkout, "all", fail=fail)
    assert ran.returncode == 78
    assert "ERROR: no more room" in ran.stderr and "remedy: see the lines above" in ran.stderr
    (checkout / ".venv/half").touch()
    ran, pip = install(fake_machine, checkout, "all")
    assert ran.returncode == 0 and len(pip) == 3
    assert not (checkout / ".venv/half").exists()


def test_all_extends_the_agent_server_and_is_never_reduced(fake_machine: FakeMachine, checkout: Path):
    ran, pip = install(fake_machine, checkout, "agent-server")
    assert pip[1:] == [f"install --editable {checkout}[agent-server]"], "no engine, so nothing to uninstall"
    ran, pip = install(fake_machine, checkout, "all")
    assert pip[1] == f"install --editable {checkout}[agent-server,trainer,dev,docs,cpu]"
    ran, pip = install(fake_machine, checkout, "agent-server")
    assert (ran.returncode, pip) == (0, [])


def test_without_a_usable_python_the_error_names_the_remedy(fake_machine: FakeMachine, checkout: Path):
    ran = fake_machine.run(checkout / "setup/install.sh", "all", PYTHON="python2")
    assert ran.returncode == 78
    assert "PYTHON=python2 cannot" in ran.stderr and "apt-get install -y python3 python3-venv" in ran.stderr


@pytest.mark.parametrize("script, argument", [("install.sh", "evrything"), ("setup.sh", "trian")])
def test_a_misspelt_purpose_is_an_error(fake_machine: FakeMachine, checkout: Path, script: str, argument: str):
    ran = fake_machine.run(checkout / "setup" / script, argument)
    assert ran.returncode == 78 and f"not '{argument}'" in ran.stderr and "remedy: bash setup/" in ran.stderr
