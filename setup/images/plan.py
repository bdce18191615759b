"""What to fetch next, what may be thrown away, whether there is room. Pure functions: no disk, no clock, no network.

Invariant: of two images that both lack a layer, the second starts when the first has it, so no layer is downloaded twice.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

# Bytes per byte of compressed layers, for reserving disk. A Debian root with Python and git: 2.8 unpacked; zstd packs about as gzip does.
UNPACKED, PACKED = 3.0, 1.1
Form = Literal["sif", "directory"]


@dataclass(frozen=True)
class Image:
    """`name` as the rows have it, `source` where it is pulled from (`HOST/PATH@DIGEST`), `layers` digest -> compressed bytes."""

    name: str
    source: str
    layers: dict[str, int]

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class Room:
    """Bytes. `budget`: the most that images and temporary files may take, None for any; `keep_free` stays free on the file system."""

    budget: int | None
    keep_free: int


def missing(image: Image, stored: Collection[str]) -> dict[str, int]:
    return {digest: size for digest, size in image.layers.items() if digest not in stored}


def next_to_start(waiting: Iterable[Image], downloading: Iterable[Image], stored: Collection[str]) -> Image | None:
    """The first that waits for no layer of those that are being downloaded."""
    on_their_way = {digest for image in downloading for digest in missing(image, stored)}
    return next((image for image in waiting if not on_their_way & missing(image, stored).keys()), None)


def to_evict(stored: Mapping[str, int], used_by: Mapping[str, int], needing: Iterable[Image], limit: int) -> list[str]:
    """Layers to throw away so that at most `limit` bytes of what is `stored` (digest -> bytes) stay. `used_by`: by how many finished
    images; only those layers may go, none that an image in `needing` has, and those of many images last: more of them may follow."""
    needed = {digest for image in needing for digest in image.layers}
    evicted, total = [], sum(stored.values())
    for digest in sorted(
        stored.keys() & used_by.keys() - needed, key=lambda digest: (used_by[digest], -stored[digest])
    ):
        if total <= limit:
            break
        evicted.append(digest)
        total -= stored[digest]
    return evicted


def bytes_needed(image: Image, stored: Collection[str], form: Form) -> int:
    """At the worst moment of fetching: its layers that are not here, unpacked, and packed again unless it stays unpacked."""
    packed = PACKED if form == "sif" else 0.0
    return sum(missing(image, stored).values()) + round((UNPACKED + packed) * sum(image.layers.values()))


def lacking(need: int, reserved: int, used: int, free: int, room: Room) -> str:
    """Why `need` more bytes do not fit beside what running fetches have `reserved`, and the remedy; "" when they do."""
    if room.budget is not None and (over := used + reserved + need - room.budget) > 0:
        limit, remedy = f"--disk-gb is {gb(room.budget)}, {gb(used)} are used", "raise it, or remove images (--prune)"
    elif (over := reserved + need + room.keep_free - free) > 0:
        limit, remedy = f"{gb(free)} are free, {gb(room.keep_free)} must stay free (--keep-free-gb)", "free some space"
    else:
        return ""
    return f"{limit}, and the next image needs up to {gb(need)}: {gb(over)} more than there is; {remedy}"


def gb(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
