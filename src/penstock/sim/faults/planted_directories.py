"""Lists planted bugs that concern log directories which fail, fill up or are missing."""

from __future__ import annotations

from typing import Any

from penstock.broker.controlplane.lifecycle import Lifecycle
from penstock.log.free_space import FreeSpace
from penstock.log.manager import LogManager
from penstock.node import node


def _nothing_offline(old: Any) -> Any:
    def heartbeat(self: Lifecycle) -> Any:
        request = old(self)
        request.offline_log_dirs = []
        return request

    return heartbeat


def _nothing(old: Any) -> Any:
    return lambda *_: None


#: name → (about, replacements, number of machines, (seed that finds it, length of that run in seconds))
DIRECTORY_BUGS: dict[str, tuple[str, tuple[tuple[Any, str, Any], ...], int, tuple[int, float]]] = {
    "failed-directory-not-reported": (
        "heartbeats don't name failed directories: their replicas keep their leaderships",
        ((Lifecycle, "_heartbeat", _nothing_offline),),
        3,
        (4, 20),
    ),
    "failed-directory-goes-on": (
        "after a disk error only the log that met it is offline: other logs of the directory take records",
        ((LogManager, "take_offline", _nothing),),
        1,
        (26, 20),
    ),
    "mount-point-used": (
        "a node starts although a disk is not mounted, and takes its empty mount point for a new disk",
        ((node, "check_formatted", _nothing),),
        1,
        (2, 20),
    ),
    "full-directory-takes-records": (
        "records of clients are taken below the limit of free space",
        ((FreeSpace, "take", _nothing),),
        1,
        (3, 20),
    ),
}
