"""Decides whether a Fetch comes from a follower or from a consumer, and throttles followers.

A follower must fetch with the current broker epoch of a registered broker. If the node has an authorizer, the
follower's principal also needs CLUSTER_ACTION; otherwise the follower must use the inter-broker listener. A consumer
can be told to read from a replica in its own rack.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.broker.fetch.long_poll import ANY_CONSUMER, PartitionRead, Reader
from penstock.broker.replicas.throttle import LEADER_RATE, Throttle
from penstock.net.limits import LimitedLog
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.vocabulary import CONSUMER_REPLICA, NO_REPLICA
from penstock.replication.preferred_replica import preferred_replica
from penstock.security.vocabulary import CLUSTER_NAME, AclResource, Operation

if TYPE_CHECKING:
    from penstock.broker.replicas.partition import Partition
    from penstock.broker.replicas.partition_host import PartitionHost
    from penstock.broker.requests.access_control import AccessControl
    from penstock.broker.requests.context import RequestContext
    from penstock.metadata.configs.settings import Settings

logger = logging.getLogger(__name__)

#: How the client ids of brokers begin.
BROKER_CLIENT = "broker-"
RACK_AWARE = "RackAwareReplicaSelector"
FROM_ANY_REPLICA = Reader(CONSUMER_REPLICA, any_replica=True)


class FetchPolicy:
    """Decides whether a Fetch comes from a follower or from a consumer, and describes its sender in a `Reader`."""

    def __init__(
        self,
        host: PartitionHost[Partition],
        settings: Settings,
        inter_broker_listener: str,
        access: AccessControl | None = None,
    ) -> None:
        """Creates the policy. `access` is the node's authorizer; None if the node has no authorizer.

        With an authorizer, a follower's principal needs CLUSTER_ACTION. Without an authorizer, a follower must fetch
        over the listener `inter_broker_listener`.
        """
        self._access = access
        self._host = host
        self._settings = settings
        self._inter_broker_listener = inter_broker_listener
        self._log = LimitedLog(logger, lambda: asyncio.get_running_loop().time())
        self.throttle = Throttle(LEADER_RATE, host.node_id, settings)
        #: Maximum bytes of records in one answer to a consumer.
        self.max_bytes = settings.int("fetch.max.bytes")

    def settings_changed(self) -> None:
        """Reads `fetch.max.bytes` again. The value is cached because every Fetch needs it."""
        self.max_bytes = self._settings.int("fetch.max.bytes")

    def follower(self, replica_id: int, broker_epoch: int, ctx: RequestContext) -> Reader:
        holds_back = self._holds_back if self.throttle.limited else None
        refusal = self._refusal(replica_id, broker_epoch, ctx.listener_name)
        if self._access is not None and not self._access.allows_cluster(ctx, Operation.CLUSTER_ACTION):
            message = f"{ctx.principal} may not fetch as broker {replica_id}: allow CLUSTER_ACTION to the brokers."
            refusal = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, message)
        return Reader(replica_id, broker_epoch, wants_marks=self._rack_aware, holds_back=holds_back, refusal=refusal)

    def is_broker(self, ctx: RequestContext) -> bool:
        """Returns True if the request counts as a request of a broker.

        With an authorizer, its principal needs CLUSTER_ACTION. Without an authorizer, the request must arrive on the
        inter-broker listener and have a broker's client id.
        """
        if self._access is not None:
            return self._access.allows_cluster(ctx, Operation.CLUSTER_ACTION)
        return ctx.listener_name == self._inter_broker_listener and (ctx.client_id or "").startswith(BROKER_CLIENT)

    def is_node(self, ctx: RequestContext) -> bool:
        """Returns True if the sender is a node of the cluster. Without an authorizer, always returns False.

        A node has a broker's client id and CLUSTER_ACTION. The client id is needed because administrators may also have
        CLUSTER_ACTION. A node may read every topic without quotas, even if it fetches like a consumer, as the guard
        does.
        """
        if self._access is None or not (ctx.client_id or "").startswith(BROKER_CLIENT):
            return False
        return self._access.sees(ctx, Operation.CLUSTER_ACTION, AclResource.CLUSTER, CLUSTER_NAME)

    def _refusal(self, replica_id: int, broker_epoch: int, listener: str) -> KafkaError | None:
        """Returns the error for a Fetch that has a broker's id but the wrong listener or broker epoch; otherwise None.

        The leader counts records below a follower's fetch offset as replicated, so no other process may fetch with a
        broker's id. With an authorizer, any listener is allowed, because the caller checks CLUSTER_ACTION. The broker
        epoch must be the registered epoch; Kafka also accepts a newer epoch. So a Fetch before v15, which has no broker
        epoch, is refused.
        """
        expected = self._inter_broker_listener
        if listener != expected and self._access is None:
            message = (
                f"A fetch as broker {replica_id} came over listener {listener}, but the inter-broker listener is "
                f"{expected}: set inter.broker.listener.name to {expected} on every broker."
            )
            self._log.warning("listener", message)
            return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, message)
        broker = self._host.brokers.get(replica_id)
        if broker is None or broker.epoch != broker_epoch:
            message = (
                f"Broker {replica_id} fetches with broker epoch {broker_epoch}, which is not its registered epoch on "
                "this node: retry when both nodes have the latest metadata."
            )
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        return None

    def _holds_back(self, partition: Partition, replica_id: int) -> bool:
        return replica_id not in partition.isr and self.throttle.concerns(partition) and self.throttle.excess_ms() > 0

    def sent(self, reads: list[PartitionRead], chunks: list[Any]) -> None:
        """Counts the bytes of a response to a follower against the leader's replication throttle."""
        if not self.throttle.limited:
            return
        for read, records in zip(reads, chunks):
            if records and read.partition is not None and self.throttle.concerns(read.partition):
                self.throttle.record(len(records))

    @property
    def _rack_aware(self) -> bool:
        return (self._settings.optional_str("replica.selector.class") or "").endswith(RACK_AWARE)

    def consumer(self, rack: str, ctx: RequestContext) -> Reader:
        """Returns the `Reader` of a consumer's Fetch, or of a Fetch from another node's guard.

        `rack` is empty if the consumer has no rack.
        """
        prefer = partial(self._preferred, rack) if rack and self._rack_aware else None
        if prefer is None and self._access is None:
            return FROM_ANY_REPLICA
        return Reader(CONSUMER_REPLICA, any_replica=True, prefer=prefer, denies=self._denies(ctx))

    def leader_consumer(self, ctx: RequestContext) -> Reader:
        """Returns the `Reader` of a request that only the leader may serve: a ShareFetch, or a Fetch before v11."""
        return ANY_CONSUMER if self._access is None else Reader(denies=self._denies(ctx))

    def _denies(self, ctx: RequestContext) -> Callable[[str], bool] | None:
        access = self._access
        if access is None or self.is_node(ctx):
            return None
        return lambda topic: not access.allows(ctx, Operation.READ, AclResource.TOPIC, topic)

    def _preferred(self, rack: str, partition: Partition, offset: int) -> int:
        leading = partition.leading
        return NO_REPLICA if leading is None else preferred_replica(leading, self._host.brokers, rack, offset)
