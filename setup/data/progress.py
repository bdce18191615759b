"""Download progress: a bar on a terminal, otherwise a line for every tenth of the file.

Invariant: writes only to standard error.
"""

import sys
from typing import Any

from huggingface_hub.utils import tqdm


class DownloadProgress(tqdm):
    """The `tqdm_class` of huggingface-hub's downloads. Counts bytes, from `initial` to `total`."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._name, self._total = options.get("desc", ""), options.get("total") or 0
        self._done = options.get("initial") or 0
        self._has_bar = sys.stderr.isatty()

    def update(self, n: float | None = 1) -> bool | None:
        before, self._done = self._done, self._done + (n or 0)
        if not self._has_bar and self._total and int(10 * self._done / self._total) > int(10 * before / self._total):
            log(f"{self._name}: {self._done / 1e6:.1f} of {self._total / 1e6:.1f} MB")
        return super().update(n)


class Silent(tqdm):
    """A `tqdm_class` without output, for short downloads."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **(options | {"disable": True}))


def log(message: str) -> None:
    print(f"[setup] {message}", file=sys.stderr, flush=True)
