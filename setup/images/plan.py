"""Decisions of a fetch: the next image to start, layers to evict, disk space. Pure functions without disk, clock or
network.

Invariant: of two images that lack the same layer, the second starts when the first has it, so no layer is
downloaded twice.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

# Bytes per byte of compressed layers, to reserve disk space. A Debian root with Python and git unpacks to 2.8; zstd
# packs about as well as gzip.
UNPACKED, PACKED = 3.0, 1.1
ImageFormat = Literal["sif", "directory"]


@dataclass(frozen=True)
class Image:
    """`name` as in the rows, `source` to pull from (`HOST/PATH@DIGEST`), `layers` digest -> compressed bytes."""

    name: str
    source: str
    layers: dict[str, int]

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class DiskLimits:
    """Bytes. `budget`: maximum of images and temporary files, None for no limit. `keep_free` stays free on the file
    system."""

    budget: int | None
    keep_free: int


def missing_layers(image: Image, stored: Collection[str]) -> dict[str, int]:
    """Return the layers of the image that are not stored, digest -> bytes."""
    return {digest: size for digest, size in image.layers.items() if digest not in stored}


def next_to_start(pending: Iterable[Image], downloading: Iterable[Image], stored: Collection[str]) -> Image | None:
    """Return the first pending image that lacks no layer of an image being downloaded."""
    in_flight = {digest for image in downloading for digest in missing_layers(image, stored)}
    return next((image for image in pending if not in_flight & missing_layers(image, stored).keys()), None)


def to_evict(stored: Mapping[str, int], used_by: Mapping[str, int], needing: Iterable[Image], limit: int) -> list[str]:
    """Choose layers to remove so that at most `limit` bytes of `stored` (digest -> bytes) remain. `used_by` counts
    the finished images of a layer; only those layers are candidates. Layers of the images in `needing` stay. Layers
    of many images go last, because more such images may follow."""
    needed = {digest for image in needing for digest in image.layers}
    candidates = stored.keys() & used_by.keys() - needed
    evicted, total = [], sum(stored.values())
    for digest in sorted(candidates, key=lambda digest: (used_by[digest], -stored[digest])):
        if total <= limit:
            break
        evicted.append(digest)
        total -= stored[digest]
    return evicted


def bytes_needed(image: Image, stored: Collection[str], form: ImageFormat) -> int:
    """Return the peak disk use of a fetch: missing layers, the unpacked image, and its packed form unless it stays
    unpacked."""
    packed = PACKED if form == "sif" else 0.0
    return sum(missing_layers(image, stored).values()) + round((UNPACKED + packed) * sum(image.layers.values()))


def space_error(needed: int, reserved: int, used: int, free: int, limits: DiskLimits) -> str:
    """Return why `needed` more bytes do not fit beside those `reserved` by running fetches, with the remedy; "" if
    they fit."""
    if limits.budget is not None and (over := used + reserved + needed - limits.budget) > 0:
        rule, remedy = f"--disk-gb is {gb(limits.budget)}, {gb(used)} are used", "raise it, or remove images (--prune)"
    elif (over := reserved + needed + limits.keep_free - free) > 0:
        rule, remedy = f"{gb(free)} are free, {gb(limits.keep_free)} must stay free (--keep-free-gb)", "free some space"
    else:
        return ""
    return f"{rule}, and the next image needs up to {gb(needed)}: {gb(over)} too much; {remedy}"


def gb(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
