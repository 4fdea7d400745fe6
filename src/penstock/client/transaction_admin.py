"""Lists and describes transactions, and aborts transactions, even if no coordinator will end them.

A transaction hangs if it is open in a partition and no coordinator knows it: the last stable offset does not advance,
so every read_committed consumer waits. Any Kafka broker serves the requests used here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from penstock.client.client import AsyncClient
from penstock.client.errors import code_of
from penstock.client.transactions import Transactions
from penstock.net.yielding import yield_between_slices
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages import api_27_write_txn_markers as markers
from penstock.protocol.messages import api_61_describe_producers as producers
from penstock.protocol.messages import api_65_describe_transactions as describing
from penstock.protocol.messages import api_66_list_transactions as listing
from penstock.protocol.messages.api_60_describe_cluster import DescribeClusterRequest
from penstock.protocol.vocabulary import NO_TRANSACTION_TIMEOUT_MS, TRANSACTION_COORDINATOR, TopicPartition

NO_COORDINATOR_EPOCH = 0  # the coordinator epoch for a producer's first transaction: no marker has named one yet
TERMINATE_TIMEOUT_MS = 60_000  # timeout of the id's next transaction, which `terminate` never begins
ONGOING = "Ongoing"
PARTITIONS_AT_ONCE = 1000  # partitions in one DescribeProducers request


class Open(NamedTuple):
    """Describes a transaction that is open in a partition's log."""

    topic: str
    partition: int
    leader: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp: int

    def row(self, now_ms: int) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "start_offset": self.start_offset,
            "producer_id": self.producer_id,
            "producer_epoch": self.producer_epoch,
            "coordinator_epoch": self.coordinator_epoch,
            "last_timestamp": self.last_timestamp,
            "age_ms": now_ms - self.last_timestamp,
        }


class TransactionAdmin:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list_ids(
        self, states: Sequence[str] = (), producer_ids: Sequence[int] = (), longer_than_ms: int = -1
    ) -> list[dict[str, Any]]:
        """Returns a row for each transactional id, in the order of the ids. Empty filters match every id.

        Raises KafkaError(INVALID_REQUEST) if a given state does not exist.
        """
        request = listing.ListTransactionsRequest(
            state_filters=[*states], producer_id_filters=[*producer_ids], duration_filter=longer_than_ms
        )
        found = []
        for node in await self._nodes():
            answer: listing.ListTransactionsResponse = await self._client.request(request, node=node)
            _raise_for(f"node {node}", answer.error_code)
            if answer.unknown_state_filters:
                unknown = ", ".join(answer.unknown_state_filters)
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"there is no transaction state {unknown}")
            found += [
                {
                    "transactional_id": each.transactional_id,
                    "state": each.transaction_state,
                    "producer_id": each.producer_id,
                    "coordinator": node,
                }
                for each in answer.transaction_states
            ]
        return sorted(found, key=lambda row: str(row["transactional_id"]))

    async def describe(self, transactional_id: str) -> tuple[describing.TransactionState, int]:
        """Returns the state of a transactional id, and the node id of its coordinator. Raises KafkaError."""
        request = describing.DescribeTransactionsRequest(transactional_ids=[transactional_id])
        answer = await self._client.ask_coordinator(transactional_id, request, kind=TRANSACTION_COORDINATOR)
        [state] = answer.transaction_states
        if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, f"there is no transactional id {transactional_id!r}")
        _raise_for(transactional_id, state.error_code)
        return state, await self._client.coordinator(transactional_id, TRANSACTION_COORDINATOR)

    async def terminate(self, transactional_id: str) -> str:
        """Aborts the open transaction of an id and fences its producer. Returns the state of the id before the abort.

        InitProducerId with this id makes the coordinator abort the transaction.
        """
        state, _ = await self.describe(transactional_id)
        await Transactions(self._client, transactional_id, TERMINATE_TIMEOUT_MS).start()
        return str(state.transaction_state)

    # Hanging transactions.

    async def hanging(
        self, topics: Iterable[str], older_than_ms: int, now_ms: int
    ) -> tuple[list[Open], dict[TopicPartition, str]]:
        """Returns the hanging transactions: open transactions that no coordinator will end.

        Looks at all topics if none is given, and only at transactions whose last record is older than `older_than_ms`.
        The second result has the partitions that could not be read, with the reason.
        """
        wanted = (await self._client.metadata([*topics] or None)).topics
        for topic in wanted:
            _raise_for(topic.name or "?", topic.error_code)
        led: dict[int, dict[str, list[int]]] = {}
        for topic in wanted:
            for number, part in enumerate(topic.partitions):
                await yield_between_slices(number)
                if part.leader_id >= 0:
                    led.setdefault(part.leader_id, {}).setdefault(topic.name or "", []).append(part.partition_index)
        found, unread = await self._open(led)
        old = [each for each in found if now_ms - each.last_timestamp > older_than_ms]
        return await self._unknown_to_coordinators(old), unread

    async def abort(self, partition: TopicPartition, start_offset: int) -> Open:
        """Writes the marker that ends a hanging transaction on one partition. Returns the transaction.

        Raises KafkaError(RESOURCE_NOT_FOUND) if no open transaction starts at this offset.
        """
        topic, index = partition
        for found_topic in (await self._client.metadata([topic])).topics:
            _raise_for(topic, found_topic.error_code)  # `leader` would wait for a missing topic until its timeout
        leader = await self._client.leader(topic, index)
        found, unread = await self._open({leader: {topic: [index]}})
        for reason in unread.values():
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{topic}-{index}: {reason}")
        hanging = next((each for each in found if each.start_offset == start_offset), None)
        if hanging is None:
            raise KafkaError(
                ErrorCode.RESOURCE_NOT_FOUND,
                f"{topic}-{index} has no open transaction that starts at offset {start_offset}",
            )
        marker = markers.WritableTxnMarker(
            producer_id=hanging.producer_id,
            producer_epoch=hanging.producer_epoch,
            transaction_result=False,
            topics=[markers.WritableTxnMarkerTopic(name=topic, partition_indexes=[index])],
            coordinator_epoch=max(hanging.coordinator_epoch, NO_COORDINATOR_EPOCH),
        )
        answer = await self._client.request(markers.WriteTxnMarkersRequest(markers=[marker]), node=leader)
        _raise_for(f"{topic}-{index}", answer.markers[0].topics[0].partitions[0].error_code)
        return hanging

    async def _open(self, led: dict[int, dict[str, list[int]]]) -> tuple[list[Open], dict[TopicPartition, str]]:
        """Returns the open transactions of the given partitions. `led` has the partitions by leader and topic.

        The second result has the partitions that could not be read, with the reason.
        """
        found: list[Open] = []
        unread: dict[TopicPartition, str] = {}
        for node, topics in led.items():
            for request in _requests(topics):
                for answered in (await self._client.request(request, node=node)).topics:
                    for part in answered.partitions:
                        if part.error_code:
                            unread[answered.name, part.partition_index] = part.error_message or "no answer"
                        found += [
                            _open_of(answered.name, part.partition_index, node, producer)
                            for producer in part.active_producers
                            if producer.current_txn_start_offset >= 0
                        ]
        return found, unread

    async def _unknown_to_coordinators(self, candidates: Collection[Open]) -> list[Open]:
        """Returns the transactions that no coordinator will end.

        Such a transaction has a producer that no coordinator knows, or a partition that the coordinator did not add to
        it.
        """
        if not candidates:
            return []
        known = set()
        for row in await self.list_ids(producer_ids=sorted({each.producer_id for each in candidates})):
            try:
                state, _ = await self.describe(row["transactional_id"])
            except KafkaError as error:
                if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                    continue  # the id expired after it was listed
                raise
            known |= {(state.producer_id, topic.topic, index) for topic in state.topics for index in topic.partitions}
        return [each for each in candidates if (each.producer_id, each.topic, each.partition) not in known]

    async def _nodes(self) -> list[int]:
        return sorted(each.broker_id for each in (await self._client.request(DescribeClusterRequest())).brokers)


def _requests(topics: Mapping[str, Sequence[int]]) -> Iterator[producers.DescribeProducersRequest]:
    """Yields requests for all these partitions, each for at most PARTITIONS_AT_ONCE of them."""
    keys = [(name, index) for name, indexes in topics.items() for index in indexes]
    for start in range(0, len(keys), PARTITIONS_AT_ONCE):
        some: dict[str, list[int]] = {}
        for name, index in keys[start : start + PARTITIONS_AT_ONCE]:
            some.setdefault(name, []).append(index)
        yield producers.DescribeProducersRequest(
            topics=[producers.TopicRequest(name=name, partition_indexes=indexes) for name, indexes in some.items()]
        )


def state_row(state: describing.TransactionState, coordinator: int, now_ms: int) -> dict[str, Any]:
    return {
        "transactional_id": state.transactional_id,
        "state": state.transaction_state,
        "producer_id": state.producer_id,
        "producer_epoch": state.producer_epoch,
        "timeout_ms": state.transaction_timeout_ms,
        "two_phase": state.transaction_timeout_ms == NO_TRANSACTION_TIMEOUT_MS,
        "age_ms": now_ms - state.transaction_start_time_ms if state.transaction_state == ONGOING else None,
        "coordinator": coordinator,
        "partitions": [f"{topic.topic}-{index}" for topic in state.topics for index in topic.partitions],
    }


def _open_of(topic: str, partition: int, leader: int, producer: producers.ProducerState) -> Open:
    return Open(
        topic,
        partition,
        leader,
        producer.producer_id,
        producer.producer_epoch,
        producer.coordinator_epoch,
        producer.current_txn_start_offset,
        producer.last_timestamp,
    )


def _raise_for(what: str, code: int) -> None:
    if code:
        raise KafkaError(code_of(code), f"{what}: {code_of(code).name}")
