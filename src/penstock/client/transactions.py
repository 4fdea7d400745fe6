"""Implements a producer's transactions: their states, and the requests to the transaction coordinator.

    fresh ──start──▶ ready ──begin──▶ open ──commit/abort──▶ ready
                                       │ a record failed
                                       ▼
                                     failed ──abort──▶ ready          another producer took the id: stays fenced

    open ──prepare──▶ prepared ──commit/abort/complete──▶ ready       two-phase commit (KIP-939): `start` may also find
                                                                      a transaction that an earlier producer prepared

With transaction.version 2 (Kafka 4) the broker adds a partition to the transaction when its first batch arrives, and
the producer gets a new epoch at the end of each transaction. With older versions the client adds the partitions, and
the epoch stays the same.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum
from typing import Any, TypeVar

from penstock.client.client import AsyncClient
from penstock.client.errors import code_of
from penstock.client.prepared import NOTHING_PREPARED, PreparedTxnState
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.protocol.messages.api_24_add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from penstock.protocol.messages.api_25_add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from penstock.protocol.messages.api_26_end_txn import EndTxnRequest, EndTxnResponse
from penstock.protocol.messages.api_28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from penstock.protocol.schema import Message
from penstock.protocol.vocabulary import GROUP_COORDINATOR, TRANSACTION_COORDINATOR, TopicPartition

T = TypeVar("T")

FEATURE = "transaction.version"
# The last versions of transaction.version 1; a broker without the feature refuses newer ones.
_OLD_END_TXN = 4
_OLD_TXN_OFFSET_COMMIT = 4
_CLIENT_ADD_PARTITIONS = 3
OLD_PRODUCE = 11
_TWO_PHASE_INIT = 6

_FENCED = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
)
_COORDINATOR_MOVED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)


class State(Enum):
    FRESH = "not started"
    READY = "without an open transaction"
    OPEN = "in a transaction"
    PREPARED = "in a prepared transaction that can only be ended"
    FAILED = "in a transaction that failed and can only be aborted"
    FENCED = "fenced: another producer uses its transactional id"


class Transactions:
    def __init__(self, client: AsyncClient, transactional_id: str, timeout_ms: int, *, two_phase: bool = False) -> None:
        self._client = client
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self._two_phase = two_phase
        self.prepared = NOTHING_PREPARED
        self.state = State.FRESH
        self.producer_id = -1
        self.producer_epoch = -1
        self.implicit = False
        """True if the broker enlists partitions by itself (transaction.version 2)."""
        self.failure: KafkaError | None = None
        self._enlisted: set[TopicPartition] = set()
        self._used = False
        self._asking = asyncio.Lock()

    async def start(self, *, keep_prepared: bool = False) -> None:
        """Gets the producer id and aborts the open transaction. With `keep_prepared`, keeps a prepared transaction."""
        self.prepared = await self._init_producer_id(keep_prepared=keep_prepared)
        await self._learn_generation()
        self.state = State.READY if self.prepared == NOTHING_PREPARED else State.PREPARED
        self._used = self.state is State.PREPARED

    async def resume(self, prepared: PreparedTxnState) -> None:
        """Continues a prepared transaction with its producer id and epoch. Does not contact the coordinator."""
        self._expect(State.FRESH)
        await self._learn_generation()
        self.producer_id, self.producer_epoch = self.prepared = prepared
        self.state, self._used = State.PREPARED, True

    async def _learn_generation(self) -> None:
        self.implicit = (await self._client.connection()).features.get(FEATURE, 0) >= 2

    def prepare(self) -> PreparedTxnState:
        """Marks the transaction as prepared, and returns its identity: no more records may be sent.

        All records of the transaction must be delivered.
        """
        if not self._two_phase:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                "The producer can't prepare transactions: set two_phase_commit in its settings.",
            )
        self._raise_failure("prepared")
        self._expect(State.OPEN)
        self.state = State.PREPARED
        self.prepared = PreparedTxnState(self.producer_id, self.producer_epoch)
        return self.prepared

    async def complete(self, decided: PreparedTxnState) -> bool:
        """Commits the prepared transaction if it equals `decided`; otherwise aborts it.

        Returns True if the producer got a new epoch.
        """
        if self.state is State.READY:
            return False  # it has ended already
        self._expect(State.PREPARED)
        return await self.end(commit=self.prepared == decided)

    def begin(self) -> None:
        self._expect(State.READY)
        self.state = State.OPEN
        self.failure = None
        self._enlisted.clear()
        self._used = False

    def check_open(self) -> None:
        """Raises KafkaError if no transaction is open.

        A transactional producer sends records only inside a transaction.
        """
        if self.state is not State.OPEN:
            self._expect(State.OPEN)

    async def enlist(self, partitions: Iterable[TopicPartition]) -> None:
        """Adds partitions to the transaction (AddPartitionsToTxn), before their first batch is sent."""
        async with self._asking:
            new = [partition for partition in partitions if partition not in self._enlisted]
            if new and not self.implicit:
                await self._ask(lambda: self._add_partitions(new))
            self._enlisted.update(new)
            self._used = self._used or bool(new)

    def failed(self, error: KafkaError) -> None:
        """Marks the transaction as failed, because a batch was not delivered. From now on it can only be aborted."""
        if error.code in _FENCED:
            self.state = State.FENCED
        elif self.state is State.OPEN:
            self.state = State.FAILED
        self.failure = self.failure or error

    async def send_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Adds a group's offsets to the transaction: they are committed only if the transaction is committed."""
        self._expect(State.OPEN)
        if not self.implicit:
            await self._ask(lambda: self._add_offsets(group_id))
        self._used = True
        await self._ask(lambda: self._commit_offsets(group_id, offsets))

    async def end(self, *, commit: bool) -> bool:
        """Ends the transaction. All its records must be delivered.

        Returns True if the producer got a new epoch; its sequence numbers then start at 0.
        """
        if commit:
            self._raise_failure("committed")
            self._expect(State.OPEN, State.PREPARED)
        else:
            self._expect(State.OPEN, State.FAILED, State.PREPARED)
        if not self._used:
            self.state = State.READY
            return False
        bumped = await self._ask(lambda: self._end(commit))
        if not commit and not bumped:
            # Lost batches leave a gap in the sequence numbers: a new epoch restarts them.
            await self._init_producer_id()
            bumped = True
        self.state = State.READY
        return bumped

    def _raise_failure(self, how: str) -> None:
        if self.state is State.FAILED and self.failure is not None:
            code, why = self.failure.code, self.failure.message
            raise KafkaError(code, f"The transaction can't be {how}, only aborted: {why}")

    def _expect(self, *states: State) -> None:
        if self.state not in states:
            code = ErrorCode.PRODUCER_FENCED if self.state is State.FENCED else ErrorCode.INVALID_TXN_STATE
            wanted = " or ".join(each.value for each in states)
            message = (
                f"The producer {self.transactional_id!r} is {self.state.value}. For this call it must be {wanted}."
            )
            raise KafkaError(code, message)

    # Requests

    async def _ask(self, attempt: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self._client.retrying(attempt)
        except KafkaError as error:
            if error.code in _FENCED:
                self.state = State.FENCED
            raise

    async def _coordinated(self, message: Message, version_at_most: int | None = None, *, at_least: int = 0) -> Any:
        node = await self._client.coordinator(self.transactional_id, TRANSACTION_COORDINATOR)
        try:
            connection = await self._client.connection(node)
            version = max(connection.version_of(message.API_KEY, version_at_most), at_least)
            if version > connection.versions[message.API_KEY][1]:
                raise KafkaError(
                    ErrorCode.UNSUPPORTED_VERSION,
                    "The broker does not allow two-phase commit: set its transaction.two.phase.commit.enable.",
                )
            return await connection.request(message, version=version)
        except KafkaError as error:
            self._noticed(error.code)
            if error.code is ErrorCode.BROKER_NOT_AVAILABLE:
                raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from None
            raise

    def _noticed(self, code: ErrorCode) -> None:
        if code in _COORDINATOR_MOVED:
            self._client.forget_coordinator(self.transactional_id, TRANSACTION_COORDINATOR)

    def _raise(self, error_code: int, what: str) -> None:
        if error_code:
            code = code_of(error_code)
            self._noticed(code)
            raise KafkaError(code, f"{what} of {self.transactional_id!r} was refused: {code.name}.")

    async def _init_producer_id(self, *, keep_prepared: bool = False) -> PreparedTxnState:
        two_phase = self._two_phase or keep_prepared

        async def ask() -> InitProducerIdResponse:
            request = InitProducerIdRequest(
                transactional_id=self.transactional_id,
                transaction_timeout_ms=self._timeout_ms,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                enable_2pc=self._two_phase,
                keep_prepared_txn=keep_prepared,
            )
            answer: InitProducerIdResponse = await self._coordinated(request, at_least=_TWO_PHASE_INIT * two_phase)
            self._raise(answer.error_code, "The start")
            return answer

        answer = await self._ask(ask)
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
        return PreparedTxnState(answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch)

    async def _add_partitions(self, partitions: list[TopicPartition]) -> None:
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()
            ],
        )
        answer: AddPartitionsToTxnResponse = await self._coordinated(request, _CLIENT_ADD_PARTITIONS)
        for added in answer.results_by_topic_v3_and_below:
            for result in added.results_by_partition:
                self._raise(result.partition_error_code, f"{added.name}-{result.partition_index} in a transaction")

    async def _add_offsets(self, group_id: str) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            group_id=group_id,
        )
        answer: AddOffsetsToTxnResponse = await self._coordinated(request)
        self._raise(answer.error_code, f"Group {group_id!r} in a transaction")

    async def _commit_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        topics: dict[str, TxnOffsetCommitRequestTopic] = {}
        for (name, index), offset in offsets.items():
            topic = topics.setdefault(name, TxnOffsetCommitRequestTopic(name=name, partitions=[]))
            topic.partitions.append(
                TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
            )
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            topics=list(topics.values()),
        )
        node = await self._client.coordinator(group_id, GROUP_COORDINATOR)
        try:
            connection = await self._client.connection(node)
            version = connection.version_of(request.API_KEY, None if self.implicit else _OLD_TXN_OFFSET_COMMIT)
            answer: TxnOffsetCommitResponse = await connection.request(request, version=version)
        except KafkaError as error:
            if error.code not in _COORDINATOR_MOVED:
                raise
            self._client.forget_coordinator(group_id, GROUP_COORDINATOR)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message) from None
        for answered in answer.topics:
            for result in answered.partitions:
                if result.error_code:
                    code = code_of(result.error_code)
                    if code in _COORDINATOR_MOVED:
                        self._client.forget_coordinator(group_id, GROUP_COORDINATOR)
                    raise KafkaError(code, f"Group {group_id!r} refused an offset of {answered.name}.")

    async def _end(self, commit: bool) -> bool:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=commit,
        )
        answer: EndTxnResponse = await self._coordinated(request, None if self.implicit else _OLD_END_TXN)
        self._raise(answer.error_code, "The commit" if commit else "The abort")
        if answer.producer_id < 0:
            return False
        bumped = (answer.producer_id, answer.producer_epoch) != (self.producer_id, self.producer_epoch)
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
        return bumped
