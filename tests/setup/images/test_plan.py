"""setup/images/: the decisions, without a registry: names, faults, order, room, and who gives up when."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from client.errors import ConfigError
from setup.images.fetch import Fetch
from setup.images.folder import Folder
from setup.images.plan import Image, Room, bytes_needed, lacking, next_to_start, to_evict
from setup.images.programs import Programs
from setup.images.registry import (
    AccessRefused,
    NotInRegistry,
    PullLimitReached,
    RegistryFault,
    RegistryTrouble,
    fault_of,
    reference,
)
from setup.images.report import Report
from setup.images.rows import images_of, read_rows


def image(name: str, *layers: str, size: int = 10) -> Image:
    return Image(name, f"registry/{name}", dict.fromkeys(layers, size))


def test_every_image_once_and_from_the_first_filled_column():
    rows = [
        {"image_name": "c", "image": "", "docker_image": None},
        {"image": "b", "image_name": "c"},
        {"docker_image": "a", "image": "b"},
        {"image_name": "c"},
    ]
    assert images_of(rows) == ["c", "b", "a"]


def test_a_row_without_an_image_gets_the_derived_one_or_is_named():
    rows = [{"instance_id": "django__django-1"}, {"instance_id": "x", "image": "given"}]
    assert images_of(rows, lambda row: f"swe/{row['instance_id']}:latest") == ["swe/django__django-1:latest", "given"]
    with pytest.raises(
        ConfigError, match="row django__django-1 names no image: none of docker_image, image, image_name"
    ):
        images_of(rows)


def test_rows_come_from_a_file_or_from_both_modes_of_a_folder(tmp_path: Path):
    parquet.write_table(
        pa.table({"instance_id": ["1"], "docker_image": ["a"], "patch": ["long"]}), tmp_path / "train.parquet"
    )
    (tmp_path / "eval.jsonl").write_text('{"instance_id": "2", "image": "b"}\n\n')
    (tmp_path / "warmup.jsonl").write_text('{"instance_id": "3", "image": "not of the agent server"}\n')
    assert images_of(read_rows(tmp_path)) == ["a", "b"]
    assert read_rows(tmp_path / "train.parquet") == [{"instance_id": "1", "docker_image": "a"}]
    with pytest.raises(ConfigError, match="is no file and holds no train or eval rows"):
        read_rows(tmp_path / "nowhere")
    (tmp_path / "train.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(ConfigError, match="train.parquet cannot be read as parquet"):
        read_rows(tmp_path)


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
def test_where_a_name_is_pulled_from(name: str, mirror: str, expected: str):
    assert reference(name, mirror) == expected


@pytest.mark.parametrize(
    "said, kind",
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
        ('Get "https://h/v2/": http: server gave HTTP response to HTTPS client', RegistryFault),
        ("writing blob: write /x: no space left on device", RegistryFault),
        ("received unexpected HTTP status: 503 Service Unavailable", RegistryTrouble),
        ("reading blob sha256:0: unexpected EOF", RegistryTrouble),
        ("dial tcp 127.0.0.1:5999: connect: connection refused", RegistryTrouble),
    ],
)
def test_what_a_message_means(said: str, kind: type):
    fault = fault_of(f'time="2026" level=fatal msg="{said}"', "docker.io/a/denied")
    assert type(fault) is kind and fault.transient == (kind is RegistryTrouble)


def test_who_shares_a_layer_that_is_on_its_way_waits_for_it_alone():
    first, second, other = (
        image("first", "base", "1"),
        image("second", "base", "2"),
        image("other", "base of others", "3"),
    )
    assert next_to_start([first, second, other], [], {}) is first
    assert next_to_start([second, other], [first], {}) is other
    assert next_to_start([second], [first, other], {}) is None
    assert next_to_start([second], [first, other], {"base"}) is second, (
        "the base is here, though its first image is not whole yet"
    )


def test_what_the_next_image_needs():
    layers = image("a", "base", "top", size=100)
    assert bytes_needed(layers, {}, "sif") == 200 + 600 + 220
    assert bytes_needed(layers, {"base"}, "sif") == 100 + 600 + 220
    assert bytes_needed(layers, {"base", "top"}, "directory") == 600


@pytest.mark.parametrize(
    "need, reserved, used, free, budget, said",
    [
        (10, 0, 80, 1000, 90, ""),
        (11, 0, 80, 1000, 90, "--disk-gb"),
        (10, 1, 80, 1000, 90, "--disk-gb"),
        (10, 10, 0, 25, None, ""),
        (10, 11, 0, 25, None, "--keep-free-gb"),
    ],
)
def test_room(need: int, reserved: int, used: int, free: int, budget: int | None, said: str):
    reason = lacking(need, reserved, used, free, Room(budget, keep_free=5))
    assert said in reason and bool(reason) == bool(said)


def test_layers_of_few_images_go_first_and_needed_ones_never():
    stored = {"base": 50, "env": 30, "a": 20, "b": 10, "being loaded": 40}
    used_by = {"base": 9, "env": 2, "a": 1, "b": 1}
    assert to_evict(stored, used_by, [image("next", "env")], limit=200) == []
    assert to_evict(stored, used_by, [image("next", "env")], limit=130) == ["a"]
    assert to_evict(stored, used_by, [image("next", "env")], limit=0) == ["a", "b", "base"]


class Limited:
    """Stands in for a registry that gives `left` answers."""

    def __init__(self, left: int):
        self.left, self.asked = left, []

    def image(self, name: str) -> Image:
        self.asked.append(name)
        if len(self.asked) > self.left:
            raise PullLimitReached("the limit of pulls is reached")
        raise NotInRegistry("not there")


def test_a_registry_that_limits_pulls_is_left_alone(tmp_path: Path):
    limited, folder, names = Limited(left=3), Folder(tmp_path), [f"image-{number}" for number in range(100)]
    report = Report(len(names))
    Fetch(
        folder,
        limited,
        Programs(folder.alive),
        report,
        "sif",
        Room(None, 0),
        jobs=1,
        broken={"image-50": "was not whole"},
    ).run(names)
    assert len(limited.asked) == 4
    assert report.counts() == {"missing": 3, "failed": 96, "broken": 1} and report.exit_code() == 1
    assert report.outcomes["image-50"].reason == "was not whole; not replaced: the limit of pulls is reached"
