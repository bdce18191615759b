"""Fetches the images that the task rows name, from their registry into R2E_SIF_DIR, for the agent server's sandboxes.

The rows come from R2E_DATA_PATH, the same file or folder as the agent server's. The credentials are
APPTAINER_DOCKER_USERNAME and _PASSWORD, or those of `apptainer registry login` or `docker login`. A run may be
killed at any moment; the next run continues. Exit codes: 0 every image is usable, 1 some are not (the table has the
reasons), 78 a person must act first. Invariant: only images that the rows name are fetched, and an intact image is
never touched.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from agent_server.sandboxes.apptainer import check_image, find_apptainer
from client.errors import ConfigError, ImageCorrupt, StackError
from setup.images import convert
from setup.images.credentials import skopeo_environment
from setup.images.fetch import ImageFetcher
from setup.images.plan import DiskLimits, gb
from setup.images.programs import ProgramRunner
from setup.images.registry import Registry, find_skopeo, reference
from setup.images.report import ImageResult, Report
from setup.images.rows import AUTO, image_names
from setup.images.store import ImageStore, measure_size
from setup.images.threads import for_each

EXIT_CONFIG = 78


def main() -> int:
    """Returns the exit code."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        names = image_names(_path("R2E_DATA_PATH", "the task rows"), os.environ.get("AGENT_SERVER_DATASET", AUTO))
        store = ImageStore(_path("R2E_SIF_DIR", "the folder for the images"))
        store.check_unique_files(names)
        if options.json and not options.json.parent.is_dir():
            raise ConfigError(f"--json {options.json}: the folder {options.json.parent} does not exist; make it first")
        if options.prune:
            return prune(store, names, options.dry_run)
        find_apptainer()
        find_skopeo()
        with Report(len(names)) as report, store.locked(report.log) as leftovers:
            if leftovers:
                report.log(f"removed {leftovers} half-built images of a killed run")
            ensure(names, store, report, options)
    except StackError as error:
        _log(str(error))
        return EXIT_CONFIG
    except KeyboardInterrupt:
        _log("interrupted; run this again to continue")
        return 128 + signal.SIGINT
    print(report.table())
    if options.json:
        report.write_json(options.json)
    return report.exit_code()


def ensure(names: list[str], store: ImageStore, report: Report, options: argparse.Namespace) -> None:
    """Make every image usable: inspect those in the folder, fetch the others, and verify the fetched ones if asked
    to."""
    broken = inspect(names, store, report, options.jobs if options.verify else 0)
    to_fetch = [name for name in names if name not in report.results]
    if options.dry_run:
        for name in to_fetch:
            report.add(ImageResult(name, "to fetch", str(store.path(name)), broken.get(name, "")))
        return
    references = [reference(name, options.mirror) for name in to_fetch]
    programs = ProgramRunner(store.alive, skopeo_environment(os.environ, references))
    registry = Registry(programs, store.work, options.mirror, options.no_https, options.attempts, report.log)
    budget = None if options.disk_gb is None else round(options.disk_gb * 1e9)
    limits = DiskLimits(budget, round(options.keep_free_gb * 1e9))
    ImageFetcher(store, registry, programs, report, options.form, limits, options.jobs, broken).run(to_fetch)
    if options.verify:
        fetched = [name for name in to_fetch if report.results[name].state == "fetched"]
        for_each(fetched, options.jobs, lambda name: verify(name, store, report))


def inspect(names: list[str], store: ImageStore, report: Report, sandboxes: int) -> dict[str, str]:
    """Report the usable images in the folder; returns the broken ones with the reason. Opens each image in a
    sandbox, that many at once, unless `sandboxes` is 0."""
    broken: dict[str, str] = {}

    def inspect_image(name: str) -> None:
        path = store.path(name)
        try:
            check_image(path)
            reason = convert.try_image(path) if sandboxes else ""
        except ImageCorrupt as error:
            reason = str(error)
        if reason:
            broken[name] = reason
            report.log(f"{name} is broken and will be fetched again: {reason}")
        else:
            report.add(ImageResult(name, "present", str(path)))

    for_each([name for name in names if store.path(name).exists()], max(1, sandboxes), inspect_image)
    return broken


def verify(name: str, store: ImageStore, report: Report) -> None:
    """Open a fetched image in a sandbox, and report it as broken if that fails."""
    if reason := convert.try_image(store.path(name)):
        report.add(ImageResult(name, "broken", str(store.path(name)), f"just fetched, and {reason}"))


def prune(store: ImageStore, names: list[str], dry_run: bool) -> int:
    """List the images that no row names, then remove them. Returns the exit code."""
    with store.locked(_log):
        images = [(path, measure_size(path)) for path in store.unreferenced(names)]
        for path, size in images:
            print(f"{gb(size):>10}  {path}")
        total = f"{len(images)} images that no row names, {gb(sum(size for _, size in images))}"
        print(total + ("; nothing removed (--dry-run)" if dry_run else ""), flush=True)
        if not dry_run:
            for path, _ in images:
                store.discard(path)
    return 0


def _log(text: str) -> None:
    print(f"[images] {text}", file=sys.stderr, flush=True)


def _path(variable: str, content: str) -> Path:
    if not (value := os.environ.get(variable)):
        raise ConfigError(f"{variable} must be set to {content}; use the agent server's value")
    return Path(value)


def _at_least(least: float, kind: Callable[[str], float] = float) -> Callable[[str], float]:
    def number(text: str) -> float:
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
        help="one file per image, or an unpacked directory: larger, starts faster. Images in the other form are kept",
    )
    parser.add_argument("--jobs", type=_at_least(1, int), default=4, help="concurrent images (default 4)")
    parser.add_argument(
        "--attempts",
        type=_at_least(1, int),
        default=5,
        help="attempts at each request to the registry, with growing random pauses (default 5)",
    )
    parser.add_argument(
        "--mirror",
        default="",
        metavar="HOST[/PREFIX]",
        help="pull from this registry, in place of the host in an image's name (default: docker.io)",
    )
    parser.add_argument(
        "--no-https", action="store_true", help="the registry uses plain HTTP or an unknown certificate"
    )
    parser.add_argument(
        "--disk-gb",
        type=_at_least(0),
        metavar="GB",
        help="maximum size of R2E_SIF_DIR, temporary files included (default: no limit)",
    )
    parser.add_argument(
        "--keep-free-gb",
        type=_at_least(0),
        default=5.0,
        metavar="GB",
        help="space that stays free on its file system (default 5)",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="open every image in a sandbox and run `true`; broken ones are fetched again",
    )
    parser.add_argument(
        "--prune", action="store_true", help="instead of fetching, list and then remove the images that no row names"
    )
    parser.add_argument("--dry-run", action="store_true", help="only list what would be fetched or removed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result of every image to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
