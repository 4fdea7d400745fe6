"""Asks the controller for ISR changes: one AlterPartition request at a time, with all waiting proposals.

A partition keeps its proposal until the controller answers, or until the metadata image changes the partition. If no
answer arrives, for example from a controller that has died, the proposal is sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.tasks import RepeatedRequest
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_56_alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    PartitionData,
    TopicData,
)
from penstock.replication.leader import Leading, Proposal, Verdict

if TYPE_CHECKING:
    from penstock.broker.controlplane.controller_channel import ControllerChannel
    from penstock.broker.replicas.partition import Partition
    from penstock.metadata.image import PartitionImage

logger = logging.getLogger(__name__)

RECOVERED = 0
ASK_TIMEOUT_MS = 30_000


class IsrChanges:
    def __init__(self, node_id: int, channel: ControllerChannel, broker_epoch: Callable[[], int]) -> None:
        self._node_id = node_id
        self._channel = channel
        self._broker_epoch = broker_epoch
        self._waiting: dict[Partition, tuple[Leading, Proposal]] = {}
        self._requests = RepeatedRequest("changes of in-sync sets", lambda: bool(self._waiting), self._send)
        self.shrinks = 0
        self.expands = 0
        self.refusals = 0

    def submit(self, partition: Partition) -> None:
        leading = partition.leading
        if leading is None or leading.proposal is None or self._requests.closed:
            return
        self._waiting[partition] = (leading, leading.proposal)
        self._requests.start()

    async def close(self) -> None:
        await self._requests.close()

    async def _send(self) -> bool:
        sent = {each: what for each, what in self._waiting.items() if _stands(each, *what)}
        self._waiting = {}
        return not sent or await self._ask(sent)

    async def _ask(self, sent: dict[Partition, tuple[Leading, Proposal]]) -> bool:
        """Sends one AlterPartition request. Returns False if some proposals have to be sent again."""
        request = self._request(sent)
        try:
            response: AlterPartitionResponse = await self._channel.ask(request, timeout_ms=ASK_TIMEOUT_MS)
        except KafkaError as error:
            logger.warning("%d changes of in-sync sets got no answer, retrying: %s", len(sent), error)
            self._requeue(sent)
            return False
        except Exception:  # without a retry, the proposal would hold back the high watermark for ever
            logger.exception("%d changes of in-sync sets could not be sent, retrying", len(sent))
            self._requeue(sent)
            return False
        if response.error_code:
            code = ErrorCode(response.error_code)
            logger.warning("the controller refused %d changes of in-sync sets, retrying: %s", len(sent), code.name)
            self._requeue(sent)
            return False
        return self._settle(sent, response)

    def _request(self, sent: dict[Partition, tuple[Leading, Proposal]]) -> AlterPartitionRequest:
        topics: dict[bytes, TopicData] = {}
        for partition, (_, proposal) in sent.items():
            topic = topics.setdefault(partition.topic_id, TopicData(topic_id=partition.topic_id))
            topic.partitions.append(
                PartitionData(
                    partition_index=partition.index,
                    leader_epoch=proposal.leader_epoch,
                    new_isr_with_epochs=[BrokerState(broker_id=b, broker_epoch=e) for b, e in proposal.members],
                    leader_recovery_state=RECOVERED,
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._node_id, broker_epoch=self._broker_epoch(), topics=list(topics.values())
        )

    def _requeue(self, sent: dict[Partition, tuple[Leading, Proposal]]) -> None:
        for partition, what in sent.items():
            self._waiting.setdefault(partition, what)

    def _settle(self, sent: dict[Partition, tuple[Leading, Proposal]], response: AlterPartitionResponse) -> bool:
        answers = {
            (topic.topic_id, each.partition_index): each for topic in response.topics for each in topic.partitions
        }
        settled = True
        for partition, (leading, proposal) in sent.items():
            answer = answers.get((partition.topic_id, partition.index))
            if not _stands(partition, leading, proposal):
                continue
            if answer is not None and not answer.error_code:
                if proposal.counts_when_granted(answer.partition_epoch):
                    partition.isr_accepted(answer.isr, answer.leader_epoch, answer.partition_epoch)
                continue
            code = ErrorCode(answer.error_code) if answer is not None else ErrorCode.UNKNOWN_SERVER_ERROR
            self.refusals += 1
            verdict = partition.isr_refused(code)
            logger.info(
                "%s: the controller rejected the ISR %s (error %s): %s",
                partition,
                proposal.isr,
                code.name,
                verdict.value,
            )
            if verdict is Verdict.RETRY:
                self._waiting.setdefault(partition, (leading, proposal))
                settled = False
        return settled

    def count(self, before: PartitionImage, after: PartitionImage) -> None:
        """Counts an ISR shrink or an ISR expansion, from the old and the new ISR in the image.

        AlterPartition responses can't be used for the count: on the active controller's node the image changes before
        the response arrives.
        """
        if before.leader == after.leader == self._node_id and before.isr is not after.isr:
            self.shrinks += not set(before.isr) <= set(after.isr)
            self.expands += not set(after.isr) <= set(before.isr)


def _stands(partition: Partition, leading: Leading, proposal: Proposal) -> bool:
    """Returns True if the proposal is still current: this node leads in the same epoch and still has this proposal."""
    return partition.leading is leading and leading.proposal is proposal
