"""The import rules: which room may know which. Read from the source, so that an unused path cannot hide a breach."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path for package in ("client", "agent_server", "trainer", "setup") for path in (ROOT / package).rglob("*.py")
)
# Import name -> where it may stand, as path prefixes.
CONFINED = {
    "vllm": ("trainer/engines/vllm.py",),
    "megatron": ("trainer/actors/megatron_",),
    "flask": ("agent_server/app.py", "agent_server/api/", "agent_server/dashboard/"),
    "minisweagent": ("agent_server/agents/",),
    "litellm": ("agent_server/agents/",),
    "torch": ("trainer/", "setup/"),
    "trainer": ("trainer/", "setup/"),
    # setup/images/ names and checks images as the sandboxes that start from them do, setup/check/ holds a node against what the
    # server itself demands: another copy of those rules would drift.
    "agent_server": ("agent_server/", "setup/images/", "setup/check/"),
}
HOMELESS = {"utils", "helpers", "common", "misc"}


def imports(path: Path) -> set[str]:
    """Every dotted name the file imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
        elif isinstance(node, ast.ImportFrom):
            pytest.fail(f"{path}: relative imports hide where a name comes from")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_stay_in_their_rooms(path):
    here = str(path.relative_to(ROOT))
    for name in imports(path):
        top = name.split(".")[0]
        allowed = CONFINED.get(top)
        assert allowed is None or here.startswith(allowed), (
            f"{here} imports {name}; allowed only in {', '.join(allowed)}"
        )
        assert not HOMELESS & set(name.split(".")) or top not in {"client", "agent_server", "trainer"}, (
            f"{here} imports {name}"
        )


def test_client_imports_nothing_of_either_side_and_little_else():
    allowed = set(sys.stdlib_module_names) | {"client", "requests", "pydantic"}
    for path in (ROOT / "client").rglob("*.py"):
        assert {name.split(".")[0] for name in imports(path)} <= allowed, path


def test_no_homeless_files():
    assert not [path for path in SOURCES if path.stem in HOMELESS]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_says_its_role(path):
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path.relative_to(ROOT)} has no module docstring"


def test_importing_starts_nothing():
    """No thread, no child, no file, no output, no heavy package: importing both sides' light halves is free of effects."""
    modules = [
        str(path.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__")
        for path in SOURCES
        if path.parts[-2] != "setup"
        and path.stem not in {"__main__", "gunicorn.conf"}
        and "trainer" not in path.parts[len(ROOT.parts) :]
    ]
    script = (
        "import sys, threading, importlib, os\n"
        "before = set(os.listdir('.'))\n"
        f"[importlib.import_module(name) for name in {modules!r}]\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "heavy = {'torch', 'vllm', 'litellm', 'minisweagent', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert set(os.listdir('.')) == before\n"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0 and result.stdout == "" and result.stderr == "", result.stderr


def test_the_architecture_page_has_a_purpose_for_every_file():
    page = (ROOT / "docs" / "architecture.md").read_text()
    files = [
        str(path.relative_to(ROOT))
        for top in ("client", "agent_server", "trainer", "setup", "scripts")
        for pattern in ("*.py", "*.sh", "*.yaml", "*.toml")
        for path in (ROOT / top).rglob(pattern)
        if path.name != "__init__.py"
    ]
    assert not [path for path in files if f"`{path}`" not in page]
