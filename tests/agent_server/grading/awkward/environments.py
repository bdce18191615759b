"""Python environments for the awkward repositories: /opt/venvs/NAME in their image, with packages of PyPI.

    python -m tests.agent_server.grading.awkward.environments CACHE    by setup/setup.sh test: downloads what is missing

Invariant: the set-up downloads, once per list of packages, and tests do not. The folder appears only when complete.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PYTEST = "pytest==9.1.1"
PACKAGES = {
    "plain": (PYTEST,),
    "old": ("pytest==6.2.5",),
    "xdist": (PYTEST, "pytest-xdist==3.8.0"),
    "plugins": (
        PYTEST, "pytest-cov==7.1.0", "pytest-randomly==4.0.1", "pytest-rerunfailures==16.1", "pytest-asyncio==1.3.0",
        "pytest-timeout==2.4.0", "pyfakefs==5.10.2", "hypothesis==6.148.7",
    ),
    "subtests": ("pytest==8.4.2", "pytest-subtests==0.14.2"),
    "tools": (PYTEST, "tox==4.32.0", "tox-current-env==0.0.16", "nox==2025.11.12"),
    "django": ("Django==5.2.8", PYTEST, "pytest-django==4.11.1", "tblib==3.2.2"),
}  # fmt: skip
PYTHON = ("3", "11")  # of the demo image, on every machine


def environments(cache: Path) -> Path:
    """The folder with the environments of all names, below the set-up's cache folder."""
    folder = _folder(cache)
    assert folder.is_dir(), f"the tests' environments must be in {folder}: bash setup/setup.sh test"
    return folder


def download(cache: Path) -> None:
    """Make the environments that `environments` returns, if they are not there."""
    folder = _folder(cache)
    if folder.is_dir():
        return
    print("[setup] fetching the packages of the tests' images", flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        for name, packages in PACKAGES.items():
            _make(Path(made, "venvs", name), packages)
        Path(made, "venvs").rename(folder)


def _folder(cache: Path) -> Path:
    return cache / "awkward" / hashlib.sha256(repr((PACKAGES, PYTHON)).encode()).hexdigest()[:16]


def _make(prefix: Path, packages: tuple[str, ...]) -> None:
    """A virtual environment as `python3 -m venv` makes it, of a Python that this machine may not have."""
    site = prefix / f"lib/python{'.'.join(PYTHON)}/site-packages"
    options = ["--python-version", "".join(PYTHON), "--implementation", "cp", "--only-binary", ":all:"]
    command = [sys.executable, "-m", "pip", "install", "-q", *options, "--target", str(site), *packages]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"pip cannot install {packages}: {done.stdout}{done.stderr}"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    for name in ("python", "python3"):
        (prefix / "bin" / name).symlink_to(f"/usr/bin/python{'.'.join(PYTHON)}")
    for program in [path for path in (site / "bin").glob("*") if path.is_file()]:
        lines = program.read_text().splitlines(keepends=True)
        script = prefix / "bin" / program.name
        script.write_text(f"#!/opt/venvs/{prefix.name}/bin/python\n{''.join(lines[1:])}")
        script.chmod(0o755)
    shutil.rmtree(site / "bin", ignore_errors=True)


def install_make(root: Path) -> None:
    """Put this machine's make into an image's root, with the libraries that it needs: the image's may be older."""
    folder = root / "opt/make"
    folder.mkdir(parents=True)
    program = shutil.which("make")
    assert program, "make must be installed on this machine, for the image of a test: apt-get install make"
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    libraries = [word for word in listed.split() if word.startswith("/")]
    for path in (program, *libraries):
        shutil.copy(path, folder)
    loader = next(Path(path).name for path in libraries if "/ld-" in path)
    script = root / "usr/local/bin/make"
    script.write_text(f'#!/bin/sh\nexec /opt/make/{loader} --library-path /opt/make /opt/make/make "$@"\n')
    script.chmod(0o755)


if __name__ == "__main__":
    download(Path(sys.argv[1]))
