"""How a download shows how far it is: a bar on a terminal, a line every tenth of the file elsewhere.

Invariant: nothing but standard error is written to.
"""

import sys

from huggingface_hub.utils import tqdm


class Progress(tqdm):
    """What huggingface-hub's downloads take as `tqdm_class`. Counts bytes, `initial` of `total` from the start."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._what, self._count, self._of = (
            options.get("desc", ""),
            options.get("initial") or 0,
            options.get("total") or 0,
        )
        self._bar = sys.stderr.isatty()

    def update(self, n: float | None = 1) -> bool | None:
        before, self._count = self._count, self._count + (n or 0)
        if not self._bar and self._of and int(10 * self._count / self._of) > int(10 * before / self._of):
            print(
                f"[setup] {self._what}: {self._count / 1e6:.1f} of {self._of / 1e6:.1f} MB", file=sys.stderr, flush=True
            )
        return super().update(n)


class Silent(tqdm):
    """For what is over in a moment."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **(options | {"disable": True}))
