"""Keeps Ctrl-C from ending the parent process together with the command.

A terminal sends Ctrl-C to a whole process group. `make` is in the command's group, and an interrupted `make` fails,
whatever exit code its command returns. So a command whose exit code matters after Ctrl-C moves to its own process
group. It takes the terminal's foreground, as a shell does for a job, and gives the foreground back at the end.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

#: Ignored meanwhile: after Ctrl-Z no shell would know of this group and be able to resume it.
_STOP_SIGNALS = [getattr(signal, name) for name in ("SIGTSTP", "SIGTTIN", "SIGTTOU") if hasattr(signal, name)]


@contextmanager
def own_foreground() -> Iterator[None]:
    """Runs the block in a separate process group, in the terminal's foreground.

    Does nothing without a terminal, or if this process leads the foreground group already.
    """
    terminal = _terminal()
    if terminal is None or os.getpid() == os.getpgrp():
        yield
        return
    group = os.getpgrp()
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOP_SIGNALS}
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
    """Returns the terminal's descriptor if this process is in the terminal's foreground group, else None."""
    try:
        descriptor = sys.stdin.fileno()
        return descriptor if os.tcgetpgrp(descriptor) == os.getpgrp() else None
    except (OSError, ValueError, AttributeError):
        return None
