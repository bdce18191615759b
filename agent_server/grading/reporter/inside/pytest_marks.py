"""Remembers which files made each of pytest's marks.

Invariant: a mark is as pytest made it; it has one more attribute.
"""

import sys

FILES = "reporter_files"  # attribute of a Mark: the files of the frames that made it, the innermost first


def patch(module, recorder, tools):
    """Let each new Mark remember its makers."""
    original = module.Mark.__init__

    def __init__(self, *arguments, **named):
        original(self, *arguments, **named)
        with recorder:
            if self.name in ("skip", "skipif", "xfail"):
                object.__setattr__(self, FILES, tools.files_of_callers(sys._getframe(1)))

    module.Mark.__init__ = __init__
