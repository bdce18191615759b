"""setup/check.sh on what the agent server loads: settings, agent, rows, images, port, loop devices, clocks."""

import json
import re
import shutil
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow.parquet as parquet

from tests.setup.check.conftest import IMAGE, assert_only


def test_a_taken_port(check, free_port: int):
    with socket.create_server(("127.0.0.1", free_port)):
        assert_only(check(), "port", f"127.0.0.1:{free_port}", "set AGENT_SERVER_PORT")


def test_a_port_where_an_agent_server_listens(check, free_port: int):
    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"limits": {}}')

        def log_message(self, *_):
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", free_port), Healthy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        table = check()
        server.shutdown()
    assert table.status["port"] == "ok" and "an agent server listens" in table.text["port"]


def test_a_missing_image(check, tmp_path: Path, demo_cache: Path):
    table = check(R2E_DATA_PATH=str(demo_cache / "tasks"), R2E_SIF_DIR=str(tmp_path / "tmp"))
    assert_only(table, "images", f"demo/quickstart:1 ({IMAGE})", "into R2E_SIF_DIR")
    assert table.status["sandbox"] == "ok", "another image is tried"


def test_a_broken_image(check, tmp_path: Path, demo_cache: Path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / IMAGE).write_text("<html>404 not found</html>")
    assert_only(
        check(R2E_DATA_PATH=str(demo_cache / "tasks"), R2E_SIF_DIR=str(tmp_path / "images")),
        "images",
        "not a SIF file",
        "fetch or build",
    )


def test_rows_that_cannot_be_read(check, tmp_path: Path, demo_cache: Path):
    shutil.copytree(demo_cache / "tasks", tmp_path / "rows")
    (tmp_path / "rows" / "train.parquet").write_bytes(b"PAR1 half of a download")
    table = check(R2E_DATA_PATH=str(tmp_path / "rows"), R2E_SIF_DIR=str(demo_cache / "images"))
    assert_only(table, "rows", "train.parquet cannot be read", "set R2E_DATA_PATH to readable rows")
    assert table.status["images"] == "warn"


def test_a_row_that_cannot_be_graded(check, tmp_path: Path, demo_cache: Path):
    row = parquet.read_table(demo_cache / "tasks" / "train.parquet").to_pylist()[0]
    (tmp_path / "rows.jsonl").write_text(json.dumps(row | {"FAIL_TO_PASS": []}) + "\n")
    table = check(R2E_DATA_PATH=str(tmp_path / "rows.jsonl"), R2E_SIF_DIR=str(demo_cache / "images"))
    assert_only(table, "rows", f"row {row['instance_id']!r}: its FAIL_TO_PASS is empty", "docs/datasets.md")


def test_rows_that_are_left_out_are_counted(check, tmp_path: Path, demo_cache: Path):
    row = parquet.read_table(demo_cache / "tasks" / "train.parquet").to_pylist()[0]
    bad = row | {"instance_id": "bad", "problem_statement": ""}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(bad) + "\n")
    images = {"R2E_DATA_PATH": str(tmp_path / "rows.jsonl"), "R2E_SIF_DIR": str(demo_cache / "images")}
    table = check(AGENT_SERVER_UNUSABLE_ROWS="skip", **images)
    assert (table.code, table.status["rows"], table.status["images"]) == (0, "warn", "ok")
    assert "1 train, 1 eval" in table.text["rows"]
    assert "1 rows are left out, the first: row 'bad': its problem_statement is empty" in table.text["rows"]


def test_missing_rows(check, tmp_path: Path, demo_cache: Path):
    table = check(R2E_DATA_PATH=str(tmp_path / "nowhere"), R2E_SIF_DIR=str(demo_cache / "images"))
    assert_only(table, "rows", "nowhere does not exist", "R2E_DATA_PATH")
    assert table.status["settings"] == "ok"


def test_a_misspelt_setting(check):
    assert_only(check(AGENT_SERVER_PROT="8600"), "settings", "did you mean AGENT_SERVER_PORT?", "correct the variable")


def test_an_agent_that_cannot_be_loaded(check):
    assert_only(check(AGENT_SERVER_AGENT="nowhere:Agent"), "agent", "No module named 'nowhere'", "AGENT_SERVER_AGENT")


def test_a_leaked_loop_device_is_reported_and_kept(check, tmp_path: Path, demo_cache: Path):
    images = tmp_path / "images"
    images.mkdir()
    (images / IMAGE).symlink_to(demo_cache / "images" / IMAGE)
    (images / "other.sif").write_bytes(bytes(1 << 20))
    device = subprocess.run(
        ["losetup", "--find", "--show", str(images / "other.sif")], capture_output=True, text=True, check=True
    ).stdout.strip()
    try:
        table = check(R2E_DATA_PATH=str(demo_cache / "tasks"), R2E_SIF_DIR=str(images))
        assert (table.code, table.status["loops"]) == (0, "warn") and f"losetup -d {device}" in table.text["loops"], (
            table.output
        )
        assert Path(f"/sys/block/{Path(device).name}/loop/backing_file").read_text().strip() == str(
            images / "other.sif"
        )
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


@contextmanager
def web_server(ahead_s: float):
    """Yield the URL of a web server whose clock is `ahead_s` ahead."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response_only(404)
            self.send_header("Date", formatdate(time.time() + ahead_s, usegmt=True))
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_clocks_are_compared_with_gateway_and_agent_server(check):
    with web_server(3600) as gateway, web_server(0) as agent_server:
        table = check("--gateway", gateway, AGENT_SERVER_URL=agent_server)
    assert (table.code, table.status["clock_gw"], table.status["clock_agent"]) == (0, "warn", "ok"), table.output
    assert re.search(r"\+(3599|3600|3601) s", table.text["clock_gw"])
