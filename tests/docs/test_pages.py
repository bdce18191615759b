"""The pages agree with the code: links, settings, keys, the contract's fields, metrics."""

import re
import subprocess

import pytest
import requests

from agent_server.config import PREFIX, Settings, variable
from agent_server.relax_names import RELAX_NAMES
from client.wire import SessionRequest, SessionView, Status
from scripts.reference import main as check_reference
from tests.docs.blocks import PAGES, ROOT
from trainer.config.schema import Config, config_keys

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
CLIENT_VARIABLES = {"AGENT_SERVER_URL"}


def page_text(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def read_section(text: str, heading: str) -> str:
    """The text below a heading, up to the next one."""
    return re.split(r"^#+ ", text.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def anchors(text: str) -> set[str]:
    """The anchors that a forge gives the headings."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_one_page():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, anchor in LINK.findall(page.read_text()):
        if target.startswith("http"):
            continue
        path = page.parent / target if target else page
        assert path.is_file(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(path.read_text()), f"{page.name}: {target}#{anchor}"


def test_the_site_builds_without_a_broken_link(tmp_path):
    """`scripts/docs.sh` into a folder of the test. The generated tables are current, so it changes no page."""
    assert check_reference(["--check"]) == 0, "run: .venv/bin/python -m scripts.reference"
    result = subprocess.run(
        ["bash", "scripts/docs.sh", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    html = [path.read_text() for path in (tmp_path / "site").glob("*.html")]
    assert len(html) >= len(list((ROOT / "docs").glob("*.md")))
    loads = r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"'
    assert not [url for text in html for url in re.findall(loads, text)], "the site must load nothing from elsewhere"


def test_a_stale_table_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("scripts.reference.DOCS", tmp_path)
    (tmp_path / "page.md").write_text("<!-- generated: keys -->\nold\n<!-- end -->\n")
    assert check_reference(["--check"]) == 1 and "page.md" in capsys.readouterr().err
    assert check_reference([]) == 0 and "`train.steps`" in (tmp_path / "page.md").read_text()
    assert check_reference(["--check"]) == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_and_keys_exist(page):
    text = page.read_text()
    settings = {variable(name) for name in Settings.model_fields} | CLIENT_VARIABLES
    settings |= {f"{PREFIX}{name.upper()}" for name in RELAX_NAMES}
    assert set(re.findall(r"\bAGENT_SERVER_[A-Z0-9_]*[A-Z0-9]\b", text)) <= settings
    sections = "|".join(Config.model_fields)
    named = set(re.findall(rf"`((?:{sections})\.[a-z_]+)`", text))
    assert named <= {key for key, _ in config_keys()} | {"run.log"}  # an attribute of Dataset.outcomes


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_in_text_exist(page):
    """A path in backticks that begins with a folder of the repository is there."""
    named = re.findall(r"`((?:client|agent_server|trainer|setup|scripts|docs|tests)/[\w./-]*)`", page.read_text())
    assert not [path for path in named if not (ROOT / path).exists()]


@pytest.mark.parametrize("heading, model", [("Session request", SessionRequest), ("Session", SessionView)])
def test_the_contract_lists_every_field(heading, model):
    rows = [
        line.split("|") for line in read_section(page_text("contract.md"), heading).splitlines() if line[:3] == "| `"
    ]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row[1])} == set(model.model_fields)
    if model is SessionRequest:
        for row in rows:
            name = row[1].strip(" `")
            assert row[2].strip() == ("yes" if model.model_fields[name].is_required() else "no"), name


def test_the_contract_lists_every_status():
    text = read_section(page_text("contract.md"), "Session")
    assert all(f"`{status}`" in text for status in Status)


def test_metrics_are_those_of_the_server(server):
    exposed = requests.get(f"{server.url}/metrics", timeout=10).text
    served = {name.removeprefix("agent_server_") for name in re.findall(r"^# TYPE (agent_server_\w+)", exposed, re.M)}
    served = {re.sub("_(total|created)$", "", name) for name in served}
    rows = re.findall(r"^\| (`.*?) \|", read_section(page_text("agent-server.md"), "Metrics and logs"), re.M)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == served
