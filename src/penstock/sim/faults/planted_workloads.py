"""Planted bugs that only a workload of their own finds: the actors, topics or settings of other profiles don't meet
them.
"""

from __future__ import annotations

from typing import Any

from penstock.records.compact import Compactor, OffsetMap, TransactionScan


def _tombstones_dropped(old: Any) -> Any:
    def keeps(self: Compactor, header: Any, record: Any) -> bool:
        return bool(old(self, header, record)) and record.has_value

    return keeps


def _aborted_keys_count(old: Any) -> Any:
    def add_batch(self: OffsetMap, header: Any, batch: Any, transactions: TransactionScan) -> bool:
        return bool(old(self, header, batch, TransactionScan()))

    return add_batch


#: name → (about, profile, replacements, number of machines)
WORKLOAD_BUGS: dict[str, tuple[str, str, tuple[tuple[Any, str, Any], ...], int]] = {
    "tombstones-dropped-at-once": (
        "compaction removes tombstones before delete.retention.ms: a reader under way misses the deletion",
        "compaction",
        ((Compactor, "_keeps", _tombstones_dropped),),
        1,
    ),
    "aborted-keys-supersede": (
        "compaction removes committed values, because an aborted transaction wrote their keys",
        "compaction",
        ((OffsetMap, "add_batch", _aborted_keys_count),),
        1,
    ),
}
