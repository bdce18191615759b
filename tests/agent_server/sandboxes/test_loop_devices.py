"""Loop devices of killed sandbox starts."""

import subprocess
from pathlib import Path

from agent_server.sandboxes.loop_devices import LoopDeviceSweeper


def test_only_the_device_of_a_killed_start_is_detached(tmp_path):
    """Three devices: unconfigured as after a killed start, unconfigured of another server, and configured."""
    ours, theirs = tmp_path / "images", tmp_path / "other"
    attached = {}
    for name, folder, options in (("left", ours, []), ("theirs", theirs, []), ("in use", ours, ["--offset", "4096"])):
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.sif").write_bytes(b"\0" * 65536)
        losetup = ["losetup", "--find", "--show", "--read-only", *options, str(folder / f"{name}.sif")]
        attached[name] = Path(subprocess.run(losetup, check=True, capture_output=True, text=True).stdout.strip()).name
    try:
        sweeper = LoopDeviceSweeper(ours)
        assert sweeper.sweep() == [], "it may be a running start"
        assert sweeper.sweep() == [attached["left"]] and sweeper.sweep() == []
        still = {name for name, device in attached.items() if Path(f"/sys/block/{device}/loop/backing_file").exists()}
        assert still == {"theirs", "in use"}
    finally:
        for name in ("theirs", "in use"):
            subprocess.run(["losetup", "--detach", f"/dev/{attached[name]}"], check=True)
