"""Collects facts about the whole cluster, from this node's metadata image and logs and from the other nodes.

Leaders, in-sync replicas and fenced brokers are in the metadata that every node has. Only log sizes and end offsets are
requested from the other nodes, over Kafka's protocol, and only while the cluster has at most ASK_MAX_PARTITIONS
partitions. In a larger cluster these requests would cost too much, because the page refreshes itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.client.client import AsyncClient
from penstock.client.cluster_admin import ClusterAdmin
from penstock.client.cluster_facts import Facts, NodeFacts, PartitionFacts
from penstock.client.connection import ConnectionSettings
from penstock.http.view import View
from penstock.metadata.quarantine import quarantine_reason
from penstock.net.yielding import yield_between_slices
from penstock.protocol.errors import KafkaError

if TYPE_CHECKING:
    from penstock.broker.controlplane.metadata_log import QuorumView
    from penstock.metadata.image import BrokerImage, MetadataImage

ASK_MAX_PARTITIONS = 5000
ASK_S = 2.0
#: Timeout of a request of the REST API, such as a change that waits for the controller's commit.
REQUEST_S = 10.0


class ClusterFacts:
    def __init__(self, view: View) -> None:
        self._view = view
        self._client: AsyncClient | None = None
        self._silent = False

    async def __call__(self) -> Facts:
        broker = self._view.broker
        image, quorum = broker.metadata.image, broker.metadata.quorum()
        facts = Facts(
            broker.cluster_id,
            quorum.leader_id,
            quorum.leader_epoch,
            [
                NodeFacts(
                    each.broker_id, _address(each), each.rack, each.fenced, quarantine_reason(image, each.broker_id)
                )
                for _, each in sorted(image.brokers.items())
            ],
            await self._partitions(image),
            [voter.node_id for voter in quorum.voters],
            metadata_lags(quorum),
        )
        facts.moving = {
            (topic.name, index): partition.adding_replicas
            for topic in image.topics.values()
            for index, partition in topic.partitions.items()
            if partition.adding_replicas or partition.removing_replicas
        }
        await self._own(facts)
        others = [each.node_id for each in facts.nodes if not each.fenced and each.node_id != broker.node_id]
        if len(facts.partitions) > ASK_MAX_PARTITIONS:
            facts.not_asked.update(others)
        elif others or (facts.nodes and not facts.metadata_lag):
            await self._ask(facts, image, others)
        return facts

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _partitions(self, image: MetadataImage) -> dict[tuple[str, int], PartitionFacts]:
        found: dict[tuple[str, int], PartitionFacts] = {}
        settings = self._view.broker.settings
        for topic in image.topics.values():
            need = settings.log_config(image, topic.name).min_insync_replicas
            for index, each in topic.partitions.items():
                await yield_between_slices(len(found))
                found[topic.name, index] = PartitionFacts(each.leader, each.leader_epoch, each.replicas, each.isr, need)
        return found

    async def _own(self, facts: Facts) -> None:
        broker = self._view.broker
        if broker.node_id not in {each.node_id for each in facts.nodes}:
            return  # a controller holds no logs
        sizes = facts.sizes.setdefault(broker.node_id, {})
        ends = facts.ends.setdefault(broker.node_id, {})
        for number, partition in enumerate(list(broker.partitions)):
            await yield_between_slices(number)
            if partition.is_open:
                key = (partition.topic, partition.index)
                sizes[key], ends[key] = partition.log.size, partition.log.log_end_offset
                if partition.leading is not None:
                    followers = partition.leading.followers.values()
                    facts.heard[key] = {each.broker_id: each.log_end for each in followers if each.log_end >= 0}
        working = [each.path for each in broker.logs.dirs if not each.offline]
        if working and broker.logs.dirs.cordoned.issuperset(working):
            facts.cordoned.add(broker.node_id)

    # --- other nodes

    def client(self, image: MetadataImage | None = None) -> AsyncClient:
        """Returns a client of the whole cluster. It uses the inter-broker listener and this node's credentials."""
        if self._client is None:
            view = self._view
            brokers = (image or view.broker.metadata.image).brokers.values()
            addresses = [_address(each, view.listener) for each in brokers if not each.fenced]
            credentials = view.credentials
            settings = ConnectionSettings(
                "console",
                connect_timeout_s=ASK_S,
                request_timeout_s=REQUEST_S,
                tls=credentials.tls,
                login=credentials.login,
                decode_in_thread=True,
            )
            self._client = AsyncClient(addresses, settings=settings, network=view.network)
        return self._client

    async def fresh_client(self, image: MetadataImage | None = None) -> AsyncClient:
        """Returns the client. Refreshes its metadata if a node was silent: the node may have another address now."""
        silent, self._silent = self._silent and self._client is not None, False
        client = self.client(image)
        if silent:
            with suppress(TimeoutError):
                async with asyncio.timeout(ASK_S):
                    await client.refresh_quietly([])
        return client

    def note_silence(self) -> None:
        """Notes that a node did not answer a request of the client."""
        self._silent = True

    async def _ask(self, facts: Facts, image: MetadataImage, others: Iterable[int]) -> None:
        """Adds the other nodes' log sizes and end offsets to `facts`.

        Leaves out nodes that don't respond within ASK_S seconds.
        """
        admin = ClusterAdmin(await self.fresh_client(image))
        asked = [self._ask_one(facts, admin, node) for node in others]
        if not facts.metadata_lag:
            asked.append(self._ask_quorum(facts, admin))
        await asyncio.gather(*asked)

    async def _ask_one(self, facts: Facts, admin: ClusterAdmin, node: int) -> None:
        try:
            async with asyncio.timeout(ASK_S):
                holdings = await admin.holdings(node)
                ends = await admin.end_offsets(node, holdings.replicas)
        except (KafkaError, TimeoutError):
            self.note_silence()
            return  # shown as silent
        if holdings.cordoned:
            facts.cordoned.add(node)
        facts.sizes[node] = {each: replica.size for each, replica in holdings.replicas.items()}
        facts.ends[node] = ends

    async def _ask_quorum(self, facts: Facts, admin: ClusterAdmin) -> None:
        try:
            async with asyncio.timeout(ASK_S):
                quorum = (await admin.describe_quorum()).topics[0].partitions[0]
        except (KafkaError, TimeoutError):
            return
        told = {each.replica_id: each.log_end_offset for each in (*quorum.current_voters, *quorum.observers)}
        facts.metadata_lag = behind(told)


def metadata_lags(quorum: QuorumView) -> dict[int, int]:
    """Returns each replica's lag in the metadata log; an empty dict if this node does not lead the quorum."""
    return behind({each.key.node_id: each.log_end_offset for each in (*quorum.replicas, *quorum.observers)})


def behind(ends: dict[int, int]) -> dict[int, int]:
    last = max(ends.values(), default=0)
    return {node: last - end for node, end in ends.items() if end >= 0}


def _address(broker: BrokerImage, listener: str = "") -> str:
    """Returns `host:port` of the broker's listener with the given name, or of its first listener if no listener has
    that name."""
    endpoint = broker.endpoints.get(listener) or next(iter(broker.endpoints.values()))
    return f"[{endpoint.host}]:{endpoint.port}" if ":" in endpoint.host else f"{endpoint.host}:{endpoint.port}"
