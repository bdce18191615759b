"""setup/images without a registry: names, error classes, order, disk space, and the end of a fetch at the pull
limit."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from agent_server.tasks.catalog import Catalog
from client.errors import ConfigError
from setup.images.fetch import ImageFetcher
from setup.images.plan import DiskLimits, Image, bytes_needed, next_to_start, space_error, to_evict
from setup.images.programs import ProgramRunner
from setup.images.registry import (
    AccessRefused,
    NotInRegistry,
    PullLimitReached,
    RegistryError,
    RegistryUnavailable,
    classify_error,
    reference,
)
from setup.images.report import Report
from setup.images.rows import distinct_images, image_names, read_rows
from setup.images.store import ImageStore


def image(name: str, *layers: str, size: int = 10) -> Image:
    return Image(name, f"registry/{name}", dict.fromkeys(layers, size))


def test_every_image_is_listed_once_from_the_first_non_empty_column():
    rows = [
        {"image_name": "c", "image": "", "docker_image": None},
        {"image": "b", "image_name": "c"},
        {"docker_image": "a", "image": "b"},
        {"image_name": "c"},
    ]
    assert distinct_images(rows) == ["c", "b", "a"]


def test_a_row_without_an_image_gets_the_derived_one_or_is_an_error():
    rows = [{"instance_id": "django__django-1"}, {"instance_id": "x", "image": "own"}]
    assert distinct_images(rows, lambda row: f"swe/{row['instance_id']}:latest") == [
        "swe/django__django-1:latest",
        "own",
    ]
    with pytest.raises(
        ConfigError, match="row django__django-1 names no image: docker_image, image, image_name are all empty"
    ):
        distinct_images(rows)


def test_rows_come_from_a_file_or_from_both_modes_of_a_folder(tmp_path: Path):
    parquet.write_table(
        pa.table({"instance_id": ["1"], "docker_image": ["a"], "patch": ["long"]}), tmp_path / "train.parquet"
    )
    (tmp_path / "eval.jsonl").write_text('{"instance_id": "2", "image": "b"}\n\n')
    (tmp_path / "warmup.jsonl").write_text('{"instance_id": "3", "image": "not of the agent server"}\n')
    assert distinct_images(read_rows(tmp_path)) == ["a", "b"]
    assert read_rows(tmp_path / "train.parquet") == [{"instance_id": "1", "docker_image": "a"}]
    with pytest.raises(ConfigError, match="is no file and has no train or eval rows"):
        read_rows(tmp_path / "nowhere")
    (tmp_path / "train.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(ConfigError, match="train.parquet cannot be read as parquet"):
        read_rows(tmp_path)


OLD_ROW = {"base_commit": "c0ffee", "patch": "d", "test_patch": "t", "FAIL_TO_PASS": ["a"], "PASS_TO_PASS": []}
KINDS = {
    "R2E-Gym": {"docker_image": "n/a:1", "image_name": "b", "expected_output_json": '{"a": "PASSED"}'},
    "old row of SWE-bench": OLD_ROW | {"repo": "django/django", "version": "4.0"},
    "row of SWE-Gym": OLD_ROW | {"repo": "getmoto/moto", "version": "5.0"},
    "named by docker_image": OLD_ROW | {"repo": "django/django", "version": "4.0", "docker_image": "d", "image": "i"},
    "SWE-rebench": OLD_ROW | {"docker_image": "swerebench/x", "install_config": {"test_cmd": "pytest"}},
    "SWE-rebench V2": OLD_ROW | {"image_name": "d/x:1", "language": "python", "install_config": {"test_cmd": "t"}},
    "SWE-bench Live": OLD_ROW | {"test_cmds": ["pytest"], "log_parser": "pytest"},
    "SWE-bench Multilingual": OLD_ROW | {"repo": "gin-gonic/gin", "version": "1805"},
    "SWE-bench Pro": {
        "base_commit": "c0ffee", "test_patch": "t", "fail_to_pass": "['a']", "before_repo_set_cmd": "x",
        "selected_test_files_to_run": "['a']", "dockerhub_tag": "tag", "run_script": "r", "parser_script": "p",
    },
    "SWE-smith": {"image_name": "smith", "patch": "d", "FAIL_TO_PASS": ["a"], "PASS_TO_PASS": [], "test_cmd": "pytest"},
    "own script": {"eval_script": "true", "image_name": "n", "image": "i"},
}  # fmt: skip


@pytest.mark.parametrize("row", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_images_are_fetched_under_the_names_that_the_server_looks_for(tmp_path: Path, row, suffix: str):
    row = {"instance_id": "a__B-1", "problem_statement": "p"} | row
    path = tmp_path / f"rows{suffix}"
    if suffix == ".jsonl":
        path.write_text(json.dumps(row) + "\n")
    else:
        parquet.write_table(pa.Table.from_pylist([row]), path)
    assert set(image_names(path, "auto")) == Catalog(path).image_names()


@pytest.mark.parametrize(
    "name, mirror, expected",
    [
        ("debian:12", "", "docker.io/library/debian:12"),
        ("swebench/x:1", "", "docker.io/swebench/x:1"),
        ("ghcr.io/a/b:1", "", "ghcr.io/a/b:1"),
        ("localhost/a", "", "localhost/a"),
        ("host:5000/a/b", "", "host:5000/a/b"),
        ("debian", "mirror.corp/hub/", "mirror.corp/hub/library/debian"),
        ("ghcr.io/a/b:1", "127.0.0.1:5000", "127.0.0.1:5000/a/b:1"),
    ],
)
def test_the_registry_of_a_name(name: str, mirror: str, expected: str):
    assert reference(name, mirror) == expected


@pytest.mark.parametrize(
    "message, kind",
    [
        ("reading manifest x in docker.io/a/denied: manifest unknown: manifest unknown", NotInRegistry),
        ("name unknown: repository name not known to registry", NotInRegistry),
        (
            "unable to retrieve auth token: invalid username/password: unauthorized: incorrect username or password",
            AccessRefused,
        ),
        ("errors: denied: requested access to the resource is denied", AccessRefused),
        (
            "toomanyrequests: You have reached your pull rate limit. You may increase the limit by authenticating",
            PullLimitReached,
        ),
        ('Get "https://h/v2/": http: server gave HTTP response to HTTPS client', RegistryError),
        ("writing blob: write /x: no space left on device", RegistryError),
        ("received unexpected HTTP status: 503 Service Unavailable", RegistryUnavailable),
        ("reading blob sha256:0: unexpected EOF", RegistryUnavailable),
        ("dial tcp 127.0.0.1:5999: connect: connection refused", RegistryUnavailable),
    ],
)
def test_the_error_class_of_a_message(message: str, kind: type):
    error = classify_error(f'time="2026" level=fatal msg="{message}"', "docker.io/a/denied")
    assert type(error) is kind and error.transient == (kind is RegistryUnavailable)


def test_an_image_waits_only_for_shared_layers_in_flight():
    first, second, other = (
        image("first", "base", "1"),
        image("second", "base", "2"),
        image("other", "base of others", "3"),
    )
    assert next_to_start([first, second, other], [], {}) is first
    assert next_to_start([second, other], [first], {}) is other
    assert next_to_start([second], [first, other], {}) is None
    assert next_to_start([second], [first, other], {"base"}) is second, (
        "the base is stored, though its first image is not complete"
    )


def test_bytes_that_the_next_image_needs():
    layers = image("a", "base", "top", size=100)
    assert bytes_needed(layers, {}, "sif") == 200 + 600 + 220
    assert bytes_needed(layers, {"base"}, "sif") == 100 + 600 + 220
    assert bytes_needed(layers, {"base", "top"}, "directory") == 600


@pytest.mark.parametrize(
    "needed, reserved, used, free, budget, message",
    [
        (10, 0, 80, 1000, 90, ""),
        (11, 0, 80, 1000, 90, "--disk-gb"),
        (10, 1, 80, 1000, 90, "--disk-gb"),
        (10, 10, 0, 25, None, ""),
        (10, 11, 0, 25, None, "--keep-free-gb"),
    ],
)
def test_disk_limits(needed: int, reserved: int, used: int, free: int, budget: int | None, message: str):
    error = space_error(needed, reserved, used, free, DiskLimits(budget, keep_free=5))
    assert message in error and bool(error) == bool(message)


def test_layers_of_few_images_are_evicted_first_and_needed_ones_never():
    stored = {"base": 50, "env": 30, "a": 20, "b": 10, "in flight": 40}
    used_by = {"base": 9, "env": 2, "a": 1, "b": 1}
    assert to_evict(stored, used_by, [image("next", "env")], limit=200) == []
    assert to_evict(stored, used_by, [image("next", "env")], limit=130) == ["a"]
    assert to_evict(stored, used_by, [image("next", "env")], limit=0) == ["a", "b", "base"]


class LimitedRegistry:
    """A fake registry with a pull limit of `limit` requests."""

    def __init__(self, limit: int):
        self.limit, self.requests = limit, []

    def resolve(self, name: str) -> Image:
        self.requests.append(name)
        if len(self.requests) > self.limit:
            raise PullLimitReached("the pull limit is reached")
        raise NotInRegistry("not there")


def test_a_reached_pull_limit_ends_all_requests(tmp_path: Path):
    registry, store, names = (
        LimitedRegistry(limit=3),
        ImageStore(tmp_path),
        [f"image-{number}" for number in range(100)],
    )
    report = Report(len(names))
    ImageFetcher(
        store,
        registry,
        ProgramRunner(store.alive),
        report,
        "sif",
        DiskLimits(None, 0),
        jobs=1,
        broken={"image-50": "was not whole"},
    ).run(names)
    assert len(registry.requests) == 4
    assert report.counts() == {"missing": 3, "failed": 96, "broken": 1} and report.exit_code() == 1
    assert report.results["image-50"].reason == "was not whole; not replaced: the pull limit is reached"
