"""Fetches the images that the task rows name, from their registry into R2E_SIF_DIR, for the agent server's sandboxes.

Rows: R2E_DATA_PATH, the same file or folder that the agent server gets. Credentials: APPTAINER_DOCKER_USERNAME and _PASSWORD, or what
`apptainer registry login` or `docker login` have written. Can be ended at any moment, also with kill -9; the next run goes on from there.
Exit codes: 0 every image can be used, 1 some cannot (the table says why), 78 a person has to do something first.
Invariant: only images that the rows name are fetched, and none that is there and whole is touched.
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from agent_server.sandboxes.apptainer import check_image, find_apptainer
from client.errors import ConfigError, ImageCorrupt, StackError
from setup.images import convert
from setup.images.credentials import skopeo_environment
from setup.images.fetch import Fetch
from setup.images.folder import Folder, size_of
from setup.images.plan import Room, gb
from setup.images.programs import Programs
from setup.images.registry import Registry, find_skopeo, reference
from setup.images.report import Outcome, Report
from setup.images.rows import AUTO, names_of
from setup.images.threads import for_each

EXIT_CONFIG = 78


def main() -> int:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        names, folder = (
            names_of(_path("R2E_DATA_PATH", "the task rows"), os.environ.get("AGENT_SERVER_DATASET", AUTO)),
            Folder(_path("R2E_SIF_DIR", "the folder for the images")),
        )
        folder.refuse_same_files(names)
        if options.json and not options.json.parent.is_dir():
            raise ConfigError(f"--json {options.json}: there is no folder {options.json.parent}; make it first")
        if options.prune:
            return prune(folder, names, options.dry_run)
        find_apptainer()
        find_skopeo()
        with Report(len(names)) as report, folder.held(report.say) as leftovers:
            if leftovers:
                report.say(f"removed {leftovers} half-made images of a run that was killed")
            provide(names, folder, report, options)
    except StackError as wrong:
        print(f"[images] {wrong}", file=sys.stderr)
        return EXIT_CONFIG
    except KeyboardInterrupt:
        print("[images] interrupted; run this again to go on from here", file=sys.stderr)
        return 128 + signal.SIGINT
    print(report.table())
    if options.json:
        report.write_json(options.json)
    return report.exit_code()


def provide(names: list[str], folder: Folder, report: Report, options: argparse.Namespace) -> None:
    """Look at what is there, fetch the rest, and prove it if asked to."""
    broken = look(names, folder, report, options.jobs if options.verify else 0)
    wanted = [name for name in names if name not in report.outcomes]
    if options.dry_run:
        for name in wanted:
            report.add(Outcome(name, "to fetch", str(folder.path(name)), broken.get(name, "")))
        return
    programs = Programs(
        folder.alive, skopeo_environment(os.environ, [reference(name, options.mirror) for name in wanted])
    )
    registry = Registry(programs, folder.work, options.mirror, options.no_https, options.attempts, report.say)
    room = Room(None if options.disk_gb is None else round(options.disk_gb * 1e9), round(options.keep_free_gb * 1e9))
    Fetch(folder, registry, programs, report, options.form, room, options.jobs, broken).run(wanted)
    if options.verify:
        for_each(
            [name for name in wanted if report.outcomes[name].state == "fetched"],
            options.jobs,
            lambda name: _prove(name, folder, report),
        )


def look(names: list[str], folder: Folder, report: Report, openers: int) -> dict[str, str]:
    """Reports what is there and usable; returns the broken ones with the reason. Opens each image in a sandbox, `openers` at once,
    unless that is 0."""
    broken: dict[str, str] = {}

    def one(name: str) -> None:
        path = folder.path(name)
        try:
            check_image(path)
            reason = convert.why_broken(path) if openers else ""
        except ImageCorrupt as corrupt:
            reason = str(corrupt)
        if reason:
            broken[name] = reason
            report.say(f"{name} is broken and will be fetched again: {reason}")
        else:
            report.add(Outcome(name, "present", str(path)))

    for_each([name for name in names if folder.path(name).exists()], max(1, openers), one)
    return broken


def prune(folder: Folder, names: list[str], dry_run: bool) -> int:
    """Shows what no row names, then removes it."""
    with folder.held(lambda text: print(f"[images] {text}", file=sys.stderr)):
        unnamed = [(path, size_of(path)) for path in folder.unnamed(names)]
        for path, size in unnamed:
            print(f"{gb(size):>10}  {path}")
        print(
            f"{len(unnamed)} images that no row names, {gb(sum(size for _, size in unnamed))}"
            + ("; nothing removed (--dry-run)" if dry_run else ""),
            flush=True,
        )
        for path, _ in [] if dry_run else unnamed:
            folder.discard(path)
    return 0


def _prove(name: str, folder: Folder, report: Report) -> None:
    if reason := convert.why_broken(folder.path(name)):
        report.add(Outcome(name, "broken", str(folder.path(name)), f"just fetched, and {reason}"))


def _path(variable: str, what: str) -> Path:
    if not (value := os.environ.get(variable)):
        raise ConfigError(f"{variable} must be set: {what}, as the agent server gets it")
    return Path(value)


def _at_least(least: float, kind=float):
    def number(text: str):
        if (value := kind(text)) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least:g}")
        return value

    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m setup.images", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--form",
        choices=("sif", "directory"),
        default="sif",
        help="one file an image, or an unpacked directory: larger, starts faster. One that is there in the other form stays",
    )
    parser.add_argument("--jobs", type=_at_least(1, int), default=4, help="images at once (default 4)")
    parser.add_argument(
        "--attempts",
        type=_at_least(1, int),
        default=5,
        help="at everything asked of the registry, with growing random pauses (default 5)",
    )
    parser.add_argument(
        "--mirror",
        default="",
        metavar="HOST[/PREFIX]",
        help="pull from there, whatever host an image's name says (none: docker.io)",
    )
    parser.add_argument(
        "--no-https", action="store_true", help="the registry speaks plain HTTP, or its certificate need not be known"
    )
    parser.add_argument(
        "--disk-gb",
        type=_at_least(0),
        metavar="GB",
        help="the most that R2E_SIF_DIR may take, temporary files included (default: any)",
    )
    parser.add_argument(
        "--keep-free-gb",
        type=_at_least(0),
        default=5.0,
        metavar="GB",
        help="what stays free on its file system (default 5)",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="open every image in a sandbox and run `true`; what is broken is fetched again",
    )
    parser.add_argument(
        "--prune", action="store_true", help="instead of fetching, show and then remove the images that no row names"
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be fetched or removed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the report, every image with state and reason")
    return parser


if __name__ == "__main__":
    sys.exit(main())
