"""Concurrent fetch of several images: resolve the name, download the layers, build, publish. plan.py chooses the
next image.

Invariant: every requested image ends with a result, and a layer stays on disk while a resolved image needs it.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from client.errors import StackError
from setup.images import convert, plan
from setup.images.folder import ImageStore, measure_size
from setup.images.plan import DiskLimits, Image, ImageFormat
from setup.images.programs import ProgramRunner
from setup.images.registry import AccessRefused, NotInRegistry, PullLimitReached, Registry
from setup.images.report import ImageResult, Report, State
from setup.images.threads import in_threads

# Images resolved before they start. The order is chosen among them, and a registry with a pull limit gets few
# needless requests.
LOOKAHEAD = 32
KEPT_LAYER_BYTES = 50 * 10**9  # beyond it, layers that no resolved image needs are removed
POLL_S = 0.5  # a layer may be complete before its download command ends


@dataclass
class ImageFetcher:
    """`broken`: image name -> the fault of the existing image, which is to be replaced."""

    folder: ImageStore
    registry: Registry
    programs: ProgramRunner
    report: Report
    form: ImageFormat
    limits: DiskLimits
    jobs: int
    broken: dict[str, str] = field(default_factory=dict)

    def run(self, names: Iterable[str]) -> None:
        """Fetch the images; the results go to the report."""
        self._changed = threading.Condition()
        self._unresolved, self._resolving = deque(names), 0
        self._pending: list[Image] = []
        self._running: dict[Image, int] = {}  # image -> bytes that it may need
        self._downloading: list[Image] = []
        self._failed_images: list[Image] = []  # whose layers the next run can use
        self._used_by: Counter[str] = Counter()
        # Only a budget needs it: walking through unpacked images takes long.
        self._used = sum(map(measure_size, self.folder.images())) if self.limits.budget is not None else 0
        in_threads(min(self.jobs, len(self._unresolved)), self._work)
        self._keep_only(self._failed_images)

    def _work(self) -> None:
        while step := self._next_step():
            if isinstance(step, str):
                self._resolve(step)
            else:
                self._fetch(step)

    def _next_step(self) -> Image | str | None:
        """Return an image to fetch if one may start, else a name to resolve; None at the end."""
        with self._changed:
            while self._unresolved or self._resolving or self._pending:
                stored = self.folder.stored()
                if image := plan.next_to_start(self._pending, self._downloading, stored):
                    if not (error := self._space_error(image, stored)):
                        return self._started(image, stored)
                    if not self._running:  # no running fetch will free any space
                        self._fail_pending("no room", error)
                        continue
                elif self._unresolved and len(self._pending) + self._resolving < LOOKAHEAD:
                    self._resolving += 1
                    return self._unresolved.popleft()
                self._changed.wait(POLL_S)
            return None

    def _started(self, image: Image, stored: dict[str, int]) -> Image:
        self._pending.remove(image)
        self._downloading.append(image)
        self._running[image] = plan.bytes_needed(image, stored, self.form)
        return image

    def _space_error(self, image: Image, stored: dict[str, int]) -> str:
        """Return why the image does not fit on the disk, "" if it does. Removes layers that no image needs first."""

        def error() -> str:
            needed, reserved = plan.bytes_needed(image, stored, self.form), sum(self._running.values())
            used = self._used + sum(stored.values())
            return plan.space_error(needed, reserved, used, self.folder.free(), self.limits)

        if error():
            if self._running:
                self.folder.remove_blobs(plan.to_evict(stored, self._used_by, self._resolved(), limit=0))
            else:
                self._keep_only(self._resolved())
            stored = self.folder.stored()
        return error()

    def _resolved(self) -> list[Image]:
        return [*self._pending, *self._running, *self._failed_images]

    def _keep_only(self, images: list[Image]) -> None:
        """Remove all blobs that are no layers of these images: also configurations, and leftovers of an earlier
        run. Only while no fetch runs."""
        self.folder.remove_blobs(self.folder.stored().keys() - {digest for image in images for digest in image.layers})

    def _resolve(self, name: str) -> None:
        try:
            image = self.registry.resolve(name)
        except StackError as error:
            image = None
            self._fail(name, error)
        with self._changed:
            self._resolving -= 1
            self._pending += [image] if image else []
            self._changed.notify_all()

    def _fetch(self, image: Image) -> None:
        try:
            self._build(image)
        except (StackError, OSError) as error:
            if getattr(error, "transient", False) or isinstance(error, PullLimitReached):
                with self._changed:
                    self._failed_images.append(image)
            self._fail(image.name, error)
        with self._changed:
            self._end_download(image)
            del self._running[image]
            self._used_by.update(image.layers.keys())
            self.folder.remove_blobs(
                plan.to_evict(self.folder.stored(), self._used_by, self._resolved(), KEPT_LAYER_BYTES)
            )
            self._changed.notify_all()

    def _build(self, image: Image) -> None:
        started, stored = time.monotonic(), self.folder.stored()
        with self.folder.attempt(image.name) as attempt:
            self.registry.download(image, attempt / "layout")
            with self._changed:
                self._end_download(image)
            built = convert.build(attempt, self.form, self.programs, self.jobs)
            older_size = measure_size(self.folder.path(image.name))
            path = self.folder.publish(built, image.name, attempt)
        size = measure_size(path)
        with self._changed:
            self._used += size - older_size
        reason = f"was broken: {self.broken[image.name]}" if image.name in self.broken else ""
        downloaded = sum(plan.missing_layers(image, stored).values())
        seconds = round(time.monotonic() - started, 1)
        self.report.add(ImageResult(image.name, "fetched", str(path), reason, size, downloaded, seconds))

    def _end_download(self, image: Image) -> None:
        """Let the images that wait for its layers start: they are stored, or the download has failed."""
        if image in self._downloading:
            self._downloading.remove(image)
            self._changed.notify_all()

    def _fail(self, name: str, error: Exception) -> None:
        state: State = "failed"
        if isinstance(error, NotInRegistry):
            state = "missing"
        elif isinstance(error, AccessRefused):
            state = "refused"
        self._report_failure(name, state, str(error))
        if isinstance(error, PullLimitReached):
            with self._changed:
                self._fail_pending("failed", str(error))

    def _fail_pending(self, state: State, reason: str) -> None:
        """Fail every image that has not started."""
        for name in [*(image.name for image in self._pending), *self._unresolved]:
            self._report_failure(name, state, reason)
        self._failed_images += self._pending
        self._pending.clear()
        self._unresolved.clear()
        self._changed.notify_all()

    def _report_failure(self, name: str, state: State, reason: str) -> None:
        """Report an unusable image. An existing broken one remains broken, whatever prevented its replacement."""
        if name in self.broken:
            state, reason = "broken", f"{self.broken[name]}; not replaced: {reason}"
        self.report.add(ImageResult(name, state, str(self.folder.path(name)), reason))
