"""Spark's daemon of Python workers, without a traceback for what is no error of theirs.

Where one task of a stage fails, or a limit has enough, Spark hangs up on the others in the middle of a sentence. A
worker tells that with a traceback, on the terminal of whoever has asked for one sentence.
"""

from __future__ import annotations

import sys
import traceback

from pyspark import daemon


class Quiet:
    """What the daemon uses of `traceback`."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
            traceback.print_exc()


if __name__ == "__main__":
    daemon.traceback = Quiet
    daemon.manager()
