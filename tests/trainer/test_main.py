"""The trainer's command line: help, `check`, refusal before anything is started."""

import subprocess
import sys
from pathlib import Path

from trainer.config.schema import config_keys

RUNS = Path(__file__).parents[2] / "scripts" / "runs"
QUICKSTART = RUNS / "quickstart.toml"


def trainer(*arguments: str) -> subprocess.CompletedProcess:
    """Run the trainer's command line."""
    command = [sys.executable, "-m", "trainer", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=RUNS.parents[1])


def test_help_lists_every_key_with_its_meaning():
    text = trainer("--help").stdout
    assert all(key in text and field.description.split()[0] in text for key, field in config_keys())


def test_check_accepts_a_file_for_another_machine():
    done = trainer("check", str(QUICKSTART), "model.path=/nowhere")
    assert done.returncode == 0 and "valid" in done.stdout
    assert "not on this machine: model.path (/nowhere)" in done.stdout


def test_run_refuses_with_exit_code_2_and_leaves_nothing(tmp_path):
    for override in ("model.path=/nowhere", "model.pth=x"):
        done = trainer("run", str(QUICKSTART), override, f"run.dir={tmp_path}/runs")
        assert done.returncode == 2 and "model.p" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_nothing_heavy_is_imported_to_validate():
    heavy = ("torch", "transformers", "vllm", "aiohttp", "matplotlib", "numpy", "rich")
    code = (
        "import sys; from trainer.__main__ import main; main(['check', 'scripts/runs/quickstart.toml']); "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=RUNS.parents[1])
    assert done.stdout.splitlines()[-1] == "[]"
