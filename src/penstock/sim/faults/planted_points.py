"""Lists planted bugs that do harm only if a fault hits one certain message or one certain step on a disk."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from penstock.broker.coordinators.runtime import Coordinator
from penstock.broker.coordinators.share_persister import LANE, REQUEST_TIMEOUT_MS, SharePersister
from penstock.broker.handlers import api_27_write_txn_markers as write_txn_markers
from penstock.broker.handlers import api_85_write_share_group_state as write_share_group_state
from penstock.broker.replicas.isr_changes import ASK_TIMEOUT_MS, IsrChanges
from penstock.log import loading
from penstock.log.flush import Durability
from penstock.log.manager import LogManager
from penstock.log.swap import SWAP_SUFFIX
from penstock.protocol.errors import ErrorCode, KafkaError
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


def _granted_without_answer(old: Any) -> Any:
    async def ask(self: IsrChanges, sent: Any) -> bool:
        try:
            response = await self._channel._try_once(self._request(sent), "", ASK_TIMEOUT_MS / 1000)
        except KafkaError as error:
            if error.code is not ErrorCode.NETWORK_EXCEPTION:
                return bool(await old(self, sent))
            for partition, (leading, proposal) in sent.items():
                if leading.proposal is proposal:
                    leading._settle(proposal.isr, leading.partition_epoch)
                    partition.recheck()
            return True
        return bool(await old(self, sent)) if response.error_code else self._settle(sent, response)

    return ask


def _answered_before_commit(old: Any) -> Any:
    async def decide_each(broker: Any, group_id: str, topics: Any, decision: Any) -> Any:
        decided = asyncio.ensure_future(old(broker, group_id, topics, decision))
        decided.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0)
        if decided.done():
            return decided.result()
        return [(topic.topic_id, [(each.partition, None) for each in topic.partitions]) for topic in topics]

    return decide_each


def _no_answer_is_success(old: Any) -> Any:
    async def call(self: SharePersister, key: Any, decide: Any, request: Any, *args: Any) -> Any:
        leader = await self._leader(key)
        if callable(request) and leader != self._node_id:  # a write
            try:
                answer = await self._peers.ask(leader, request(), lane=LANE, timeout_ms=REQUEST_TIMEOUT_MS)
            except KafkaError:
                return None
            if not answer.results[0].partitions[0].error_code:
                return None
        return await old(self, key, decide, request, *args)

    return call


class PointBug(NamedTuple):
    about: str
    replacements: tuple[tuple[Any, str, Any], ...]
    nodes: int
    seed: int
    at: str
    """The fault at a point with which the seed finds the bug."""
    profile: str = "points"


POINT_BUGS_SECONDS = 20.0
POINT_BUGS: dict[str, PointBug] = {
    "swap-forgotten": PointBug(
        "a start removes compacted segments whose replacement a crash interrupted",
        ((loading, "finish_swaps", _swaps_removed),),
        *(3, 6, "rename segment swap#3:kill"),
    ),
    "marker-answered-early": PointBug(
        "a leader answers WriteTxnMarkers before the marker is committed",
        ((write_txn_markers, "_when_committed", _not_waited),),
        *(3, 7, "WriteTxnMarkers answer#13:kill-sender"),
    ),
    "markers-before-decision": PointBug(
        "a coordinator sends markers before its decision is committed",
        ((Coordinator, "_take", _effects_first),),
        *(3, 3, "WriteTxnMarkers request#3:kill-sender"),
    ),
    "clean-mark-early": PointBug(
        "the mark of a clean stop is written before the logs are synced",
        ((LogManager, "close", _mark_first),),
        *(3, 5, "sync segment#184:power"),
    ),
    "directory-entry-not-synced": PointBug(
        "the directory entry of a new log is not synced with the log",
        ((Durability, "_sync_directories", _no_parent_sync),),
        *(1, 12, "client Produce answer#31:power-sender"),
    ),
    "isr-change-without-answer": PointBug(
        "a leader that gets no answer to AlterPartition uses the ISR as if the controller had granted it",
        ((IsrChanges, "_ask", _granted_without_answer),),
        *(3, 4, "AlterPartition request#1:drop", "network"),
    ),
    "share-state-answered-early": PointBug(
        "a share coordinator answers WriteShareGroupState before the state is committed",
        ((write_share_group_state, "decide_each", _answered_before_commit),),
        *(3, 1, "WriteShareGroupState answer#1:kill-sender", "share"),
    ),
    "share-state-without-answer": PointBug(
        "the leader of a share partition takes a WriteShareGroupState without an answer for stored",
        ((SharePersister, "_call", _no_answer_is_success),),
        *(3, 1, "WriteShareGroupState request#1:drop", "share"),
    ),
}
