"""Architecture rules: import boundaries of the packages, module docstrings, imports without side effects, and the page
that lists every file. Read from the source, so that an unused path cannot hide a violation."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path for package in ("client", "agent_server", "trainer", "setup") for path in (ROOT / package).rglob("*.py")
)
# Import name -> the only importers allowed, as path prefixes.
ALLOWED_IMPORTERS = {
    "vllm": ("trainer/engines/",),
    "ray": ("agent_server/executors/ray.py", "trainer/actors/ranks", "trainer/engines/"),
    "megatron": ("trainer/actors/megatron_",),
    "flask": ("agent_server/app.py", "agent_server/api/", "agent_server/dashboard/"),
    "minisweagent": ("agent_server/agents/",),
    "litellm": ("agent_server/agents/",),
    "torch": ("trainer/", "setup/"),
    "trainer": ("trainer/", "setup/"),
    # setup/images/ uses the names and checks of the sandboxes' images, setup/check/ the server's own checks: copies
    # would drift.
    "agent_server": ("agent_server/", "setup/images/", "setup/check/"),
}
# Package -> modules that its import must not load, directly or through other modules.
FORBIDDEN_IMPORTS = {
    "agent_server.scheduling": ("agent_server.agents", "agent_server.grading", "agent_server.worker.session")
}
# Of modules and packages: a name must state a purpose.
FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path, *, lazy: bool = True) -> set[str]:
    """Every dotted name that the file imports; without `lazy` only those that its own import executes."""
    tree, names = ast.parse(path.read_text()), set()
    for node in ast.walk(tree) if lazy else _executed(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.ImportFrom):
            pytest.fail(f"{path}: relative imports hide the imported package; write the full name")
    return names


def _executed(node: ast.AST):
    """The nodes that importing the module executes: no bodies of functions, none for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        type_checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not type_checking:
            yield child
            yield from _executed(child)


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_imports_respect_the_boundaries(path: Path):
    for name in imports(path):
        allowed = ALLOWED_IMPORTERS.get(name.split(".")[0])
        assert allowed is None or relative(path).startswith(allowed), (
            f"{relative(path)} imports {name}; only {', '.join(allowed)} may"
        )


def test_client_imports_neither_side_and_few_libraries():
    allowed = set(sys.stdlib_module_names) | {"client", "requests", "pydantic"}
    for path in (ROOT / "client").rglob("*.py"):
        assert {name.split(".")[0] for name in imports(path)} <= allowed, path


@pytest.mark.parametrize("package", FORBIDDEN_IMPORTS)
def test_a_package_does_not_load_a_forbidden_module(package: str):
    modules = {_module(path): path for path in SOURCES}
    pending = [name for name in modules if name == package or name.startswith(f"{package}.")]
    assert pending, f"there is no package {package}"
    loaded_by: dict[str, str] = dict.fromkeys(pending, "")
    while pending:
        importer = pending.pop()
        for name in imports(modules[importer], lazy=False) & modules.keys() - loaded_by.keys():
            loaded_by[name] = importer
            pending.append(name)
    for name, importer in loaded_by.items():
        assert not (name + ".").startswith(tuple(f"{banned}." for banned in FORBIDDEN_IMPORTS[package])), (
            f"{package} loads {name}, through {importer}"
        )


def _module(path: Path) -> str:
    return relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_no_module_without_a_purpose():
    assert not [path for path in SOURCES if FORBIDDEN_NAMES & set(path.relative_to(ROOT).with_suffix("").parts)]


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_every_module_states_its_role(path: Path):
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, f"{relative(path)} has no module docstring"


def test_importing_has_no_side_effect():
    """No thread, no child, no file, no output, no heavy package, in client/, agent_server/ and setup/."""
    modules = [
        _module(path)
        for path in SOURCES
        if not relative(path).startswith("trainer/") and path.stem not in {"__main__", "gunicorn.conf"}
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


def test_the_architecture_page_lists_every_file():
    tree = (ROOT / "docs" / "architecture.md").read_text().partition("## The tree\n")[2]
    files = [
        relative(path)
        for top in ("client", "agent_server", "trainer", "setup", "scripts")
        for pattern in ("*.py", "*.sh", "*.yaml", "*.toml")
        for path in (ROOT / top).rglob(pattern)
        if path.name != "__init__.py"
    ]
    helpers = [
        relative(path)
        for path in (ROOT / "tests").rglob("*.py")
        if not path.name.startswith("test_") and path.name != "__init__.py"
    ]
    assert files and helpers
    assert not [path for path in (*files, *helpers) if f"\n- `{path}`: " not in tree]
