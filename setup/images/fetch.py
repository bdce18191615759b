"""Several images at once: layers down, image built, published; what to start next is plan.py's to say.

Invariant: every image that was asked for ends with an outcome, and a layer stays on disk until no image that still needs it is left.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from client.errors import StackError
from setup.images import convert, plan
from setup.images.folder import Folder, size_of
from setup.images.plan import Form, Image, Room
from setup.images.programs import Programs
from setup.images.registry import AccessRefused, NotInRegistry, Registry
from setup.images.report import Outcome, Report, State

LOOK_AGAIN_S = 0.5  # a layer of a download that goes on may be whole


def in_threads(count: int, work: Callable[[], None]) -> None:
    """`count` threads call `work`, to the end of all; raises what one of them raised. They die with the main thread, and their programs with them."""
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # raised again below
            raised.append(error)

    threads = [threading.Thread(target=guarded, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def state_of(fault: Exception) -> State:
    return "missing" if isinstance(fault, NotInRegistry) else "refused" if isinstance(fault, AccessRefused) else "failed"


@dataclass
class Fetch:
    """`broken`: image name -> what is wrong with the one that is there."""

    folder: Folder
    registry: Registry
    programs: Programs
    report: Report
    form: Form
    room: Room
    jobs: int
    broken: dict[str, str] = field(default_factory=dict)

    def run(self, images: Iterable[Image]) -> None:
        """Outcomes go to the report."""
        self._changed = threading.Condition()
        self._waiting, self._downloading, self._running, self._again_later = list(images), [], {}, []
        self._clean_blobs()
        # Walking through unpacked images takes long, and only a budget asks for it.
        self._used = sum(map(size_of, self.folder.images())) if self.room.budget is not None else 0
        in_threads(min(self.jobs, len(self._waiting)), self._work)
        self._clean_blobs()

    def _work(self) -> None:
        while image := self._take():
            self.report.add(self._outcome(image))
            with self._changed:
                del self._running[image]
                self.folder.forget_blobs(plan.no_longer_needed(image, self._needing_layers()))
                self._changed.notify_all()

    def _take(self) -> Image | None:
        """The next image, as soon as it may start; None when there is none or no room for it."""
        with self._changed:
            while self._waiting:
                stored = self.folder.stored()
                if image := plan.next_to_start(self._waiting, self._downloading, stored):
                    need = plan.bytes_needed(image, stored, self.form)
                    if not (lacking := self._lacking(need, stored)):
                        self._waiting.remove(image)
                        self._downloading.append(image)
                        self._running[image] = need
                        return image
                    if not self._running:  # nobody is going to free anything
                        self._give_up(lacking)
                        return None
                self._changed.wait(LOOK_AGAIN_S)
            return None

    def _lacking(self, need: int, stored: dict[str, int]) -> str:
        return plan.lacking(need, sum(self._running.values()), self._used + sum(stored.values()), self.folder.free(), self.room)

    def _give_up(self, lacking: str) -> None:
        for image in self._waiting:
            self.report.add(Outcome(image.name, "no room", str(self.folder.path(image.name)), lacking))
        self._again_later += self._waiting
        self._waiting.clear()
        self._changed.notify_all()

    def _outcome(self, image: Image) -> Outcome:
        started, stored = time.monotonic(), self.folder.stored()
        was_broken = f"was broken: {self.broken[image.name]}" if image.name in self.broken else ""
        try:
            with self.folder.attempt(image.name) as attempt:
                self.registry.download(image, attempt / "layout")
                self._downloaded(image)
                made = convert.build(attempt, self.form, self.programs, self.jobs)
                before = size_of(self.folder.path(image.name))
                path = self.folder.publish(made, image.name, attempt)
        except (StackError, OSError) as fault:
            with self._changed:
                self._again_later += [image] if getattr(fault, "transient", False) else []
            reasons = "; ".join(filter(None, [str(fault), was_broken]))
            return Outcome(image.name, "broken" if was_broken else state_of(fault), str(self.folder.path(image.name)), reasons)
        finally:
            self._downloaded(image)
        size = size_of(path)
        with self._changed:
            self._used += size - before
        downloaded = sum(plan.missing(image, stored).values())
        return Outcome(image.name, "fetched", str(path), was_broken, size, downloaded, round(time.monotonic() - started, 1))

    def _downloaded(self, image: Image) -> None:
        """Or given up: whoever waits for its layers may go on."""
        with self._changed:
            if image in self._downloading:
                self._downloading.remove(image)
            self._changed.notify_all()

    def _needing_layers(self) -> list[Image]:
        return [*self._waiting, *self._running, *self._again_later]

    def _clean_blobs(self) -> None:
        """While nothing runs: also the small blobs that no list of layers names, and what an earlier run has left."""
        self.folder.forget_blobs(self.folder.stored().keys() - {digest for image in self._needing_layers() for digest in image.layers})
