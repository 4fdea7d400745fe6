"""Ctrl-C for us alone, where whoever started us would end by it as well.

A terminal sends Ctrl-C to a whole group of processes. `make` is in ours, and one that is interrupted fails, whatever
its command says at the end. So a command whose exit code counts after Ctrl-C takes the terminal for a group of its own,
as a shell does for a job, and gives it back.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

#: Stopped by Ctrl-Z, nobody would be there to be told to go on.
_NOT_NOW = [getattr(signal, name) for name in ("SIGTSTP", "SIGTTIN", "SIGTTOU") if hasattr(signal, name)]


@contextmanager
def own_foreground() -> Iterator[None]:
    """Does nothing where there is no terminal, or where it is ours already."""
    terminal = _terminal()
    if terminal is None or os.getpid() == os.getpgrp():
        yield
        return
    group = os.getpgrp()
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _NOT_NOW}
    try:
        os.setpgid(0, 0)
        os.tcsetpgrp(terminal, os.getpgrp())
        yield
    finally:
        with suppress(OSError):  # the terminal may be gone
            os.tcsetpgrp(terminal, group)
            os.setpgid(0, group)
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminal() -> int | None:
    """The terminal that we are in front of."""
    try:
        descriptor = sys.stdin.fileno()
        return descriptor if os.tcgetpgrp(descriptor) == os.getpgrp() else None
    except (OSError, ValueError, AttributeError):
        return None
