"""Divides the process's limit of open files among a node's logs, its connections and other uses."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from penstock.disk.reserve import RESERVED_DESCRIPTORS
from penstock.net.network import UNLIMITED

#: More open log files than this bring no gain.
MAX_LOG_FILES = 512
#: Standard streams, event loop, listeners, locks, HTTP's 64 connections, connections to other nodes, connections from
#: loopback beyond the limits, and connections that wait in a listener's queue to be refused.
OTHERS = 192
#: The soft limit is raised to this if the hard limit is higher.
WANTED = 1_048_576


@dataclass(frozen=True, slots=True)
class Descriptors:
    log_files: int = MAX_LOG_FILES
    connections: int = UNLIMITED


def shared(limit: int, nodes: int = 1) -> Descriptors:
    """Returns how many log files and connections each node may open, if `nodes` nodes share a limit of `limit` open
    files."""
    mine = limit // nodes
    log_files = max(16, min(MAX_LOG_FILES, mine // 4))
    others = min(OTHERS, mine // 4) + RESERVED_DESCRIPTORS
    return Descriptors(log_files, max(1, mine - log_files - others))


def available(nodes: int = 1) -> Descriptors:
    """Returns how many log files and connections each node may open, if `nodes` nodes run in this process.

    The nodes share the process's limit of open files.
    """
    limit = _soft_limit()
    return Descriptors() if limit is None else shared(limit, nodes)


def raise_limit() -> None:
    """Raises the process's soft limit of open files to WANTED, or as far as the system allows.

    Call this only in a process that does nothing but run a node.
    """
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= WANTED:
        return
    target = WANTED if hard == unlimited else min(hard, WANTED)
    while target > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
        except (ValueError, OSError):  # a kernel may allow less than the hard limit, as macOS does
            target //= 2
        else:
            return


def _soft_limit() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
