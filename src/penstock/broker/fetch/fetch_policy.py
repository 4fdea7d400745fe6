"""Who may read what of a replica: followers within their leader's throttle, consumers from the closest replica.

A follower is a registered broker that fetches over the inter-broker listener with its current epoch.

A throttle (KIP-73) counts the bytes of the replicas that it names, for all of them together, and stops those that are
out of sync while the rate is above the limit: catching up must not take the network from those who are in sync.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.broker.fetch.long_poll import CONSUMER, NO_REPLICA, PartitionRead, Reader
from penstock.broker.limits.rates import Rate, Window
from penstock.net.limits import LimitedLog
from penstock.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from penstock.broker.replicas.partition import Partition
    from penstock.broker.replicas.partition_host import Hosting
    from penstock.metadata.configs.settings import Settings

logger = logging.getLogger(__name__)

UNLIMITED = 0x7FFFFFFFFFFFFFFF
EVERY_REPLICA = "*"
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
RACK_AWARE = "RackAwareReplicaSelector"
FROM_ANY_REPLICA = Reader(CONSUMER, any_replica=True)


class Throttle:
    """One side's: what this node sends as a leader, or fetches as a follower."""

    __slots__ = ("_hosting", "_limit", "_rate", "_settings")

    def __init__(self, rate: str, hosting: Hosting, settings: Settings) -> None:
        self._limit = rate
        self._hosting = hosting
        self._settings = settings
        self._rate: Rate | None = None

    @property
    def limited(self) -> bool:
        return self._settings.int(self._limit) != UNLIMITED

    def concerns(self, partition: Partition) -> bool:
        """Whether this node's replica is one of those that the topic has throttled."""
        config = partition.log.config
        if self._limit == LEADER_RATE:
            named = config.leader_replication_throttled_replicas
        else:
            named = config.follower_replication_throttled_replicas
        return EVERY_REPLICA in named or f"{partition.index}:{self._hosting.node_id}" in named

    def record(self, size: int) -> None:
        self._current().record(size, _now_ms())

    def excess_ms(self) -> int:
        """For how long nothing more should go."""
        return self._current().excess_ms(_now_ms())

    def _current(self) -> Rate:
        limit = max(1, self._settings.int(self._limit))
        if self._rate is None:
            samples = self._settings.int("replication.quota.window.num")
            seconds = self._settings.int("replication.quota.window.size.seconds")
            self._rate = Rate(limit, Window(samples, seconds * 1000))
        self._rate.limit = limit
        return self._rate


class Readers:
    def __init__(self, hosting: Hosting, settings: Settings) -> None:
        self._hosting = hosting
        self._settings = settings
        self._log = LimitedLog(logger, lambda: asyncio.get_running_loop().time())
        self.throttle = Throttle(LEADER_RATE, hosting, settings)

    def follower(self, replica_id: int, broker_epoch: int, listener: str) -> Reader:
        holds_back = self._holds_back if self.throttle.limited else None
        refusal = self._refusal(replica_id, broker_epoch, listener)
        return Reader(replica_id, broker_epoch, wants_marks=self._rack_aware, holds_back=holds_back, refusal=refusal)

    def _refusal(self, replica_id: int, broker_epoch: int, listener: str) -> KafkaError | None:
        """What such a fetch names counts as replicated: anybody else who could send it would make records look safe.

        Kafka asks its authorizer instead and takes any epoch that is not older than the registered one. Before v15 a
        fetch has no epoch, and none of our brokers sends one so old.
        """
        expected = self._hosting.inter_broker_listener
        if listener != expected:
            message = (
                f"A fetch in the name of broker {replica_id} came over listener {listener}, and brokers follow over "
                f"{expected}: set inter.broker.listener.name to {expected} on every broker."
            )
            self._log.warning("listener", message)
            return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, message)
        broker = self._hosting.brokers.get(replica_id)
        if broker is None or broker.epoch != broker_epoch:
            message = f"Broker {replica_id} fetches with epoch {broker_epoch}, which is not its registered one here."
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        return None

    def _holds_back(self, partition: Partition, replica_id: int) -> bool:
        return replica_id not in partition.isr and self.throttle.concerns(partition) and self.throttle.excess_ms() > 0

    def sent(self, reads: list[PartitionRead], chunks: list[Any]) -> None:
        """To a follower."""
        if not self.throttle.limited:
            return
        for read, records in zip(reads, chunks):
            if records and read.partition is not None and self.throttle.concerns(read.partition):
                self.throttle.record(len(records))

    @property
    def _rack_aware(self) -> bool:
        return (self._settings.optional_str("replica.selector.class") or "").endswith(RACK_AWARE)

    def consumer(self, rack: str) -> Reader:
        if rack and self._rack_aware:
            return Reader(CONSUMER, any_replica=True, prefer=partial(self._preferred, rack))
        return FROM_ANY_REPLICA

    def _preferred(self, rack: str, partition: Partition, offset: int) -> int:
        """The replica in the consumer's rack that is furthest, if the leader isn't in it itself."""
        leading, brokers = partition.leading, self._hosting.brokers
        if leading is None or _rack_of(brokers, leading.node_id) == rack:
            return NO_REPLICA
        fit = [
            follower
            for follower in leading.followers.values()
            if follower.broker_id in leading.isr
            and self._hosting.is_alive(follower.broker_id)
            and _rack_of(brokers, follower.broker_id) == rack
            and follower.log_start <= offset <= follower.log_end
        ]
        if not fit:
            return NO_REPLICA
        return max(fit, key=lambda each: (each.log_end, each.caught_up_ms)).broker_id


def _rack_of(brokers: Any, broker_id: int) -> str | None:
    broker = brokers.get(broker_id)
    rack: str | None = broker.rack if broker is not None else None
    return rack


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
