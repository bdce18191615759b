"""Concurrent fetch of several images: resolve the name, download the layers, build, publish. plan.py chooses the
next image.

Invariant: every requested image ends with a result, and a layer stays on disk while a resolved image needs it.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from client.errors import StackError
from setup.images import convert, plan
from setup.images.plan import DiskLimits, Image, ImageFormat
from setup.images.programs import ProgramRunner
from setup.images.registry import AccessRefused, NotInRegistry, PullLimitReached, Registry
from setup.images.report import ImageResult, Report, State
from setup.images.store import ImageStore, measure_size
from setup.images.threads import in_threads

# Images resolved before they start. The order is chosen among them, and a registry with a pull limit gets few
# needless requests.
LOOKAHEAD = 32
KEPT_LAYER_BYTES = 50 * 10**9  # beyond it, layers that no resolved image needs are removed
POLL_S = 0.5  # a layer may be complete before its download command ends


class ImageFetcher:
    """Fetches images, `jobs` at once. Its threads share the state below under one lock, the condition's."""

    def __init__(
        self,
        store: ImageStore,
        registry: Registry,
        programs: ProgramRunner,
        report: Report,
        form: ImageFormat,
        limits: DiskLimits,
        jobs: int,
        broken: Mapping[str, str],
    ):
        """`broken`: image name -> the fault of the existing image, which is to be replaced."""
        self._store, self._registry, self._programs, self._report = store, registry, programs, report
        self._form, self._limits, self._jobs, self._broken = form, limits, jobs, broken
        self._changed = threading.Condition()
        self._unresolved: deque[str] = deque()
        self._resolving = 0
        self._pending: list[Image] = []  # resolved, not started
        self._running: dict[Image, int] = {}  # image -> bytes that it may need
        self._downloading: list[Image] = []
        self._failed_images: list[Image] = []  # whose layers the next run can use
        self._used_by: Counter[str] = Counter()
        self._used = 0  # bytes of the images; only a budget needs it: walking through unpacked images takes long

    def run(self, names: Iterable[str]) -> None:
        """Fetch the images; the results go to the report. Call it once."""
        self._unresolved.extend(names)
        if self._limits.budget is not None:
            self._used = sum(map(measure_size, self._store.images()))
        in_threads(min(self._jobs, len(self._unresolved)), self._work)
        self._keep_only(self._failed_images)

    def _work(self) -> None:
        while step := self._next_step():
            step()

    def _next_step(self) -> Callable[[], None] | None:
        """Return the fetch of an image if one may start, else the resolution of a name; None at the end."""
        with self._changed:
            while self._unresolved or self._resolving or self._pending:
                stored = self._store.stored()
                if image := plan.next_to_start(self._pending, self._downloading, stored):
                    if not (error := self._make_room(image, stored)):
                        self._start(image, stored)
                        return partial(self._fetch, image)
                    if not self._running:  # no running fetch will free any space
                        self._fail_pending("no room", error)
                        continue
                elif self._unresolved and len(self._pending) + self._resolving < LOOKAHEAD:
                    self._resolving += 1
                    return partial(self._resolve, self._unresolved.popleft())
                self._changed.wait(POLL_S)
            return None

    def _start(self, image: Image, stored: dict[str, int]) -> None:
        self._pending.remove(image)
        self._downloading.append(image)
        self._running[image] = plan.bytes_needed(image, stored, self._form)

    def _make_room(self, image: Image, stored: dict[str, int]) -> str:
        """Remove layers that no image needs if the disk has no room for this one. Returns why it does not fit even so,
        "" if it does."""
        if not self._space_error(image, stored):
            return ""
        if self._running:
            self._store.remove_blobs(plan.to_evict(stored, self._used_by, self._resolved(), limit=0))
        else:
            self._keep_only(self._resolved())
        return self._space_error(image, self._store.stored())

    def _space_error(self, image: Image, stored: dict[str, int]) -> str:
        needed, reserved = plan.bytes_needed(image, stored, self._form), sum(self._running.values())
        used = self._used + sum(stored.values())
        return plan.space_error(needed, reserved, used, self._store.free(), self._limits)

    def _resolved(self) -> list[Image]:
        return [*self._pending, *self._running, *self._failed_images]

    def _keep_only(self, images: list[Image]) -> None:
        """Remove all blobs that are no layers of these images: also configurations, and leftovers of an earlier
        run. Only while no fetch runs."""
        self._store.remove_blobs(self._store.stored().keys() - {digest for image in images for digest in image.layers})

    def _resolve(self, name: str) -> None:
        image = None
        try:
            image = self._registry.resolve(name)
        except StackError as error:
            self._fail(name, error)
        finally:
            with self._changed:
                self._resolving -= 1
                if image:
                    self._pending.append(image)
                self._changed.notify_all()

    def _fetch(self, image: Image) -> None:
        try:
            self._build(image)
        except (StackError, OSError) as error:
            if getattr(error, "transient", False) or isinstance(error, PullLimitReached):
                with self._changed:
                    self._failed_images.append(image)
            self._fail(image.name, error)
        finally:
            with self._changed:
                self._end_download(image)
                del self._running[image]
                self._used_by.update(image.layers.keys())
                evicted = plan.to_evict(self._store.stored(), self._used_by, self._resolved(), KEPT_LAYER_BYTES)
                self._store.remove_blobs(evicted)
                self._changed.notify_all()

    def _build(self, image: Image) -> None:
        started, stored = time.monotonic(), self._store.stored()
        with self._store.build_folder(image.name) as folder:
            self._registry.download(image, folder / "layout")
            with self._changed:
                self._end_download(image)
            built = convert.build(folder, self._form, self._programs, self._jobs)
            older_size = measure_size(self._store.path(image.name))
            path = self._store.publish(built, image.name, folder)
        size = measure_size(path)
        with self._changed:
            self._used += size - older_size
        reason = f"was broken: {self._broken[image.name]}" if image.name in self._broken else ""
        downloaded = sum(plan.missing_layers(image, stored).values())
        seconds = round(time.monotonic() - started, 1)
        self._report.add(ImageResult(image.name, "fetched", str(path), reason, size, downloaded, seconds))

    def _end_download(self, image: Image) -> None:
        """Record that the download has ended, so that images that lack the same layers may start."""
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
        if name in self._broken:
            state, reason = "broken", f"{self._broken[name]}; not replaced: {reason}"
        self._report.add(ImageResult(name, state, str(self._store.path(name)), reason))
