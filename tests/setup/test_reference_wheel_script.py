"""setup/reference_wheel.sh: one download, whole or not at all. Python is a stub whose pip writes a file."""

import pytest

from tests.setup.conftest import FakeMachine

SCRIPT, WHEEL = "setup/reference_wheel.sh", "swebench-4.1.0-py3-none-any.whl"
PIP = f"""for last; do [ "$previous" = --dest ] && folder=$last; previous=$last; done
mkdir -p "$folder" && echo half >"$folder/{WHEEL}" && [ -z "$FAIL" ] && echo whole >"$folder/{WHEEL}"
"""


@pytest.fixture
def cache(fake_machine: FakeMachine, tmp_path):
    fake_machine.stub("python", PIP)
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def test_the_wheel_is_fetched_once(fake_machine: FakeMachine, cache):
    for _ in range(2):
        ran = fake_machine.run(SCRIPT, "python", str(cache))
        assert ran.returncode == 0, ran.stderr
    assert (cache / WHEEL).read_text() == "whole\n" and {path.name for path in cache.iterdir()} == {WHEEL, "wheel.log"}
    assert fake_machine.calls == [
        f"python -m pip download --no-deps --only-binary=:all: --dest {cache}/wheel.partial swebench==4.1.0"
    ]


def test_a_download_that_fails_leaves_no_wheel(fake_machine: FakeMachine, cache):
    ran = fake_machine.run(SCRIPT, "python", str(cache), FAIL="1")
    assert ran.returncode == 78 and "remedy:" in ran.stderr and not (cache / WHEEL).exists()
    assert fake_machine.run(SCRIPT, "python", str(cache)).returncode == 0
    assert (cache / WHEEL).read_text() == "whole\n"
