"""Several images at once: asked for, layers down, built, published; what to start next is plan.py's to say.

Invariant: every image that was asked for ends with an outcome, and a layer stays on disk while an image that needs it is known.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from client.errors import StackError
from setup.images import convert, plan
from setup.images.folder import Folder, size_of
from setup.images.plan import Form, Image, Room
from setup.images.programs import Programs
from setup.images.registry import AccessRefused, NotInRegistry, PullLimitReached, Registry
from setup.images.report import Outcome, Report, State
from setup.images.threads import in_threads

AHEAD = 32  # images known before they start: among them the order is chosen, and a registry that limits pulls is asked for no more in vain
LAYERS_KEPT = 50 * 10**9  # bytes; beyond, layers that no known image needs make place
LOOK_AGAIN_S = 0.5  # a layer of a download that goes on may be whole


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

    def run(self, names: Iterable[str]) -> None:
        """Outcomes go to the report."""
        self._changed = threading.Condition()
        self._unasked, self._asking = deque(names), 0
        self._waiting: list[Image] = []
        self._running: dict[Image, int] = {}  # with the bytes that it may need
        self._downloading: list[Image] = []
        self._again_later: list[Image] = []
        self._used_by: Counter[str] = Counter()
        # Walking through unpacked images takes long, and only a budget asks for it.
        self._used = sum(map(size_of, self.folder.images())) if self.room.budget is not None else 0
        in_threads(min(self.jobs, len(self._unasked)), self._work)
        self._keep_only(self._again_later)

    def _work(self) -> None:
        while step := self._next_step():
            if isinstance(step, str):
                self._ask(step)
            else:
                self._fetch(step)

    def _next_step(self) -> Image | str | None:
        """An image to fetch, as soon as one may start; else a name to ask the registry for; None at the end."""
        with self._changed:
            while self._unasked or self._asking or self._waiting:
                stored = self.folder.stored()
                if image := plan.next_to_start(self._waiting, self._downloading, stored):
                    if not (lacking := self._lacking(image, stored)):
                        return self._started(image, stored)
                    if not self._running:  # nobody is going to free anything
                        self._give_up("no room", lacking)
                        continue
                elif self._unasked and len(self._waiting) + self._asking < AHEAD:
                    self._asking += 1
                    return self._unasked.popleft()
                self._changed.wait(LOOK_AGAIN_S)
            return None

    def _started(self, image: Image, stored: dict[str, int]) -> Image:
        self._waiting.remove(image)
        self._downloading.append(image)
        self._running[image] = plan.bytes_needed(image, stored, self.form)
        return image

    def _lacking(self, image: Image, stored: dict[str, int]) -> str:
        """What stands against starting it; first the layers that nobody is known to need go."""

        def lacking() -> str:
            need = plan.bytes_needed(image, stored, self.form)
            return plan.lacking(
                need, sum(self._running.values()), self._used + sum(stored.values()), self.folder.free(), self.room
            )

        if lacking():
            if self._running:
                self.folder.forget_blobs(plan.to_evict(stored, self._used_by, self._known(), limit=0))
            else:
                self._keep_only(self._known())
            stored = self.folder.stored()
        return lacking()

    def _known(self) -> list[Image]:
        return [*self._waiting, *self._running, *self._again_later]

    def _keep_only(self, images: list[Image]) -> None:
        """Only while nothing runs: small blobs that no list of layers names go too, and what an earlier run has left."""
        self.folder.forget_blobs(self.folder.stored().keys() - {digest for image in images for digest in image.layers})

    def _ask(self, name: str) -> None:
        try:
            image = self.registry.image(name)
        except StackError as fault:
            image = None
            self._failed(name, fault)
        with self._changed:
            self._asking -= 1
            self._waiting += [image] if image else []
            self._changed.notify_all()

    def _fetch(self, image: Image) -> None:
        try:
            self._make(image)
        except (StackError, OSError) as fault:
            with self._changed:
                self._again_later += (
                    [image] if getattr(fault, "transient", False) or isinstance(fault, PullLimitReached) else []
                )
            self._failed(image.name, fault)
        with self._changed:
            self._downloaded(image)
            del self._running[image]
            self._used_by.update(image.layers.keys())
            self.folder.forget_blobs(plan.to_evict(self.folder.stored(), self._used_by, self._known(), LAYERS_KEPT))
            self._changed.notify_all()

    def _make(self, image: Image) -> None:
        started, stored = time.monotonic(), self.folder.stored()
        with self.folder.attempt(image.name) as attempt:
            self.registry.download(image, attempt / "layout")
            with self._changed:
                self._downloaded(image)
            made = convert.build(attempt, self.form, self.programs, self.jobs)
            before = size_of(self.folder.path(image.name))
            path = self.folder.publish(made, image.name, attempt)
        size = size_of(path)
        with self._changed:
            self._used += size - before
        reason = f"was broken: {self.broken[image.name]}" if image.name in self.broken else ""
        downloaded = sum(plan.missing(image, stored).values())
        self.report.add(
            Outcome(image.name, "fetched", str(path), reason, size, downloaded, round(time.monotonic() - started, 1))
        )

    def _downloaded(self, image: Image) -> None:
        """Or given up: whoever waits for its layers may go on."""
        if image in self._downloading:
            self._downloading.remove(image)
            self._changed.notify_all()

    def _failed(self, name: str, fault: Exception) -> None:
        state: State = (
            "missing"
            if isinstance(fault, NotInRegistry)
            else "refused"
            if isinstance(fault, AccessRefused)
            else "failed"
        )
        self._report_unusable(name, state, str(fault))
        if isinstance(fault, PullLimitReached):
            with self._changed:
                self._give_up("failed", str(fault))

    def _give_up(self, state: State, reason: str) -> None:
        """All that has not started."""
        for name in [*(image.name for image in self._waiting), *self._unasked]:
            self._report_unusable(name, state, reason)
        self._again_later += self._waiting
        self._waiting.clear()
        self._unasked.clear()
        self._changed.notify_all()

    def _report_unusable(self, name: str, state: State, reason: str) -> None:
        """One that was there and is broken stays so, whatever kept it from being replaced."""
        if name in self.broken:
            state, reason = "broken", f"{self.broken[name]}; not replaced: {reason}"
        self.report.add(Outcome(name, state, str(self.folder.path(name)), reason))
