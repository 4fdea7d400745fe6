"""Lists planted bugs that do harm only if a fault hits one certain message or one certain step on a disk."""

from __future__ import annotations

from typing import Any

from penstock.broker.coordinators.runtime import Coordinator
from penstock.broker.handlers import api_27_write_txn_markers as write_txn_markers
from penstock.log import loading
from penstock.log.flush import Durability
from penstock.log.manager import LogManager
from penstock.log.swap import SWAP_SUFFIX
from penstock.transactions.shard import TransactionShard


def _swaps_removed(old: Any) -> Any:
    def finish_swaps(disk: Any, path: str, names: set[str]) -> set[str]:
        for name in sorted(names):
            if name.endswith(SWAP_SUFFIX):
                disk.remove(f"{path}/{name}")
        return set(old(disk, path, set(disk.listdir(path))))

    return finish_swaps


def _not_waited(old: Any) -> Any:
    async def when_committed(uncommitted: Any, limit_s: float) -> None:
        """Planted bug: returns before the markers are committed."""

    return when_committed


def _effects_first(old: Any) -> Any:
    def take(self: Coordinator[Any], turn: Any, result: Any, future: Any) -> None:
        old(self, turn, result, future)
        if isinstance(self.machine, TransactionShard) and turn.effects and turn.records:
            self._flush()
            self.perform(turn)
            turn.effects = []

    return take


def _mark_first(old: Any) -> Any:
    async def close(self: LogManager, *, broker_epoch: int = -1) -> None:
        for directory in self.dirs.all:
            directory.leave_clean_mark(broker_epoch)
        await old(self, broker_epoch=broker_epoch)

    return close


def _no_parent_sync(old: Any) -> Any:
    def sync_directories(self: Durability) -> None:
        self._log.environment.disk.sync_dir(self._log.path)

    return sync_directories


#: name → (about, replacements, number of machines)
POINT_BUGS: dict[str, tuple[str, tuple[tuple[Any, str, Any], ...], int]] = {
    "swap-forgotten": (
        "a start removes compacted segments whose replacement a crash interrupted",
        ((loading, "finish_swaps", _swaps_removed),),
        3,
    ),
    "marker-answered-early": (
        "a leader answers WriteTxnMarkers before the marker is committed",
        ((write_txn_markers, "_when_committed", _not_waited),),
        3,
    ),
    "markers-before-decision": (
        "a coordinator sends markers before its decision is committed",
        ((Coordinator, "_take", _effects_first),),
        3,
    ),
    "clean-mark-early": (
        "the mark of a clean stop is written before the logs are synced",
        ((LogManager, "close", _mark_first),),
        3,
    ),
    "directory-entry-not-synced": (
        "the directory entry of a new log is not synced with the log",
        ((Durability, "_sync_directories", _no_parent_sync),),
        1,
    ),
}

POINT_BUGS_SECONDS = 20.0
#: Bug → a seed of the profile `points`, and the fault at a point with which the seed finds the bug.
POINT_BUGS_FOUND_BY: dict[str, tuple[int, str]] = {
    "swap-forgotten": (6, "rename segment swap#3:kill"),
    "marker-answered-early": (7, "WriteTxnMarkers answer#13:kill-sender"),
    "markers-before-decision": (3, "WriteTxnMarkers request#3:kill-sender"),
    "clean-mark-early": (5, "sync segment#184:power"),
    "directory-entry-not-synced": (12, "client Produce answer#31:power-sender"),
}
