"""Runs Spark's daemon of Python workers without tracebacks about closed connections.

When a task of a stage fails, or a LIMIT has enough rows, Spark closes the connections of the other tasks. Without this
module their workers print a traceback to the user's terminal, although there is no error.
"""

from __future__ import annotations

import sys
import traceback

from pyspark import daemon


class Quiet:
    """Replaces module `traceback` in the daemon. Prints no traceback about a connection that was closed."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
            traceback.print_exc()


if __name__ == "__main__":
    daemon.traceback = Quiet
    daemon.manager()
