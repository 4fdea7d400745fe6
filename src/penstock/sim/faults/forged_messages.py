"""Forges messages that only nodes send: requests with stale epochs, from made-up nodes, or in the name of a real node.

A forged message is stale or knowing. A stale message has an epoch that is not the current epoch, or names a node that
does not exist: every cluster must refuse it. A knowing message has the right ids and epochs, so it is sent only to
clusters whose listeners demand a login: other clusters can't tell it from a message of a real node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from penstock.log.log import Log
from penstock.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from penstock.protocol.apis import request_header_version
from penstock.protocol.codec import encode
from penstock.protocol.messages import api_01_fetch as fetch
from penstock.protocol.messages import api_27_write_txn_markers as markers
from penstock.protocol.messages import api_56_alter_partition as isr
from penstock.protocol.messages.api_20_delete_topics import DeleteTopicsRequest, DeleteTopicState
from penstock.protocol.messages.api_58_envelope import EnvelopeRequest
from penstock.protocol.messages.api_63_broker_heartbeat import BrokerHeartbeatRequest
from penstock.protocol.messages.api_67_allocate_producer_ids import AllocateProducerIdsRequest
from penstock.protocol.messages.default_principal_data import DefaultPrincipalData
from penstock.protocol.messages.headers import RequestHeader
from penstock.protocol.schema import Message
from penstock.raft.messages import BeginEpoch, EndEpoch, Fetch, Request, Vote
from penstock.raft.voters import ReplicaKey, Voter
from penstock.raft.wire_requests import request_to_wire
from penstock.sim.engine.cluster_layout import CONTROLLER_PORT
from penstock.sim.engine.machine import CLUSTER_ID, PORT, Machine
from penstock.sim.faults.target import FaultTarget

#: A node that no cluster of the simulator has.
NOBODY = 99
#: Later than any record of a run.
FAR_OFFSET = 1 << 40
#: More epochs than a run has.
MANY = 100_000
EPOCH_PER_TRANSACTION = 2
LOOPBACK = bytes((127, 0, 0, 1))


class Forged(NamedTuple):
    what: str
    receiver: Machine
    request: Message
    port: int = CONTROLLER_PORT
    knowing: bool = False
    """True if all ids and epochs are right."""
    judged: bool = True
    """False if an answer without an error does not show that the receiver believed the message."""


class Asked(NamedTuple):
    """Holds the receiver of a forged message to the quorum: a voter, its key and epoch. `other` is another voter's
    key."""

    voter: Machine
    key: ReplicaKey
    epoch: int
    leader_id: int
    other: ReplicaKey


class Led(NamedTuple):
    """Describes a partition as its leader knows it."""

    machine: Machine
    image: MetadataImage
    topic: TopicImage
    number: int
    part: PartitionImage
    log: Log


class Forger:
    """Forges messages with values from the current state of the receiver, such as its epoch."""

    def __init__(self, target: FaultTarget) -> None:
        self._target = target
        self.by_kind: dict[str, Callable[[Random], Iterator[Forged]]] = {
            "forged vote": self._vote,
            "forged begin of an epoch": self._begin_epoch,
            "forged end of an epoch": self._end_epoch,
            "fake voter": self._voter_fetch,
            "fake follower": self._follower_fetch,
            "forged isr change": self._isr_change,
            "forged heartbeat": self._heartbeat,
            "forged producer ids": self._producer_ids,
            "forged marker": self._marker,
            "forged envelope": self._envelope,
        }

    # The quorum.

    def _asked(self, random: Random) -> Asked | None:
        """Returns a running voter as the receiver of a forged message; None if there is no such voter or no other
        voter."""
        serving = [each for each in self._target.machines if each.votes and each.serving]
        if not serving:
            return None
        voter = random.choice(serving)
        others = [each for each in self._target.machines if each.votes and each is not voter]
        if voter.broker is None or not others:
            return None
        quorum = voter.broker.metadata._quorum
        return Asked(voter, quorum.me.key, quorum.epoch, quorum.leader_id, self._key(random.choice(others)))

    def _key(self, machine: Machine) -> ReplicaKey:
        """Returns the key of a voter: the running node's own key, or else the key that it was formatted with."""
        if machine.broker is not None:
            return machine.broker.metadata._quorum.me.key
        return next(each.key for each in self._target.plan.layout.voters() if each.node_id == machine.node_id)

    def _quorum_message(self, what: str, voter: Machine, request: Request, *, knowing: bool = False) -> Forged:
        nobody = Voter(NOBODY, bytes(16), (("CONTROLLER", "stranger", CONTROLLER_PORT),))
        return Forged(what, voter, request_to_wire(request, CLUSTER_ID, nobody), knowing=knowing)

    def _vote(self, random: Random) -> Iterator[Forged]:
        asked = self._asked(random)
        if asked is None:
            return
        pre_vote = random.random() < 0.5

        def vote(what: str, candidate: ReplicaKey, epoch: int, *, knowing: bool = False) -> Forged:
            request = Vote(asked.key, candidate, epoch, epoch, FAR_OFFSET, pre_vote)
            name = f"node {candidate.node_id} is a candidate in the {what} epoch {epoch}"
            return self._quorum_message(name, asked.voter, request, knowing=knowing)

        yield vote("past", asked.other, asked.epoch - 1)
        if not self._target.plan.layout.dynamic:  # a voter may not know a new voter yet (KIP-853)
            yield vote("next", ReplicaKey(NOBODY, bytes(16)), asked.epoch + 1)
        yield vote("next", asked.other, asked.epoch + 1, knowing=True)

    def _begin_epoch(self, random: Random) -> Iterator[Forged]:
        asked = self._asked(random)
        if asked is None:
            return
        leader = asked.other.node_id
        for what, epoch in (("past", asked.epoch - 1), ("next", asked.epoch + 1)):
            request = BeginEpoch(asked.key, leader, epoch)
            name = f"node {leader} leads the quorum in the {what} epoch {epoch}"
            yield self._quorum_message(name, asked.voter, request, knowing=what == "next")

    def _end_epoch(self, random: Random) -> Iterator[Forged]:
        asked = self._asked(random)
        if asked is None or asked.leader_id < 0:
            return
        for what, epoch in (("past", asked.epoch - 1), ("current", asked.epoch)):
            request = EndEpoch(asked.leader_id, epoch, (asked.key,))
            name = f"the {what} epoch {epoch} of the quorum ends"
            yield self._quorum_message(name, asked.voter, request, knowing=what == "current")

    def _voter_fetch(self, random: Random) -> Iterator[Forged]:
        asked = self._asked(random)
        if asked is None or asked.voter.broker is None:
            return
        log = asked.voter.broker.metadata.log
        end = log.log_end_offset
        for what, epoch in (("past", asked.epoch - 1), ("future", asked.epoch + MANY), ("current", asked.epoch)):
            request = Fetch(asked.other, epoch, end, asked.epoch, log.high_watermark, 0)
            name = f"node {asked.other.node_id} has the metadata log up to {end}, in the {what} epoch {epoch}"
            yield self._quorum_message(name, asked.voter, request, knowing=what == "current")

    # Partitions.

    def _led(self, *, with_transaction: bool = False) -> list[Led]:
        """Returns the partitions that a running machine leads according to its own metadata.

        If `with_transaction` is set, returns only partitions with an open transaction.
        """
        found: list[Led] = []
        for machine in self._target.machines:
            image, broker = machine.image, machine.broker
            if image is None or broker is None:
                continue
            for topic in image.topics.values():
                for index, part in topic.partitions.items():
                    partition = broker.partitions.find(topic.name, index) if part.leader == machine.node_id else None
                    if partition is None or not partition.is_open or partition.leader_epoch != part.leader_epoch:
                        continue
                    if not with_transaction or partition.log.producers.first_undecided_offset is not None:
                        found.append(Led(machine, image, topic, index, part, partition.log))
        return found

    def _follower_fetch(self, random: Random) -> Iterator[Forged]:
        led = self._led()
        if not led:
            return
        leader, image, topic, index, part, log = random.choice(led)
        followers = [image.brokers[each] for each in part.replicas if each != part.leader and each in image.brokers]
        if not followers:
            return
        broker, end = random.choice(followers), log.log_end_offset
        name = f"broker {broker.broker_id} has {topic.name}-{index} up to {end}"

        def fetching(
            what: str, replica_id: int, broker_epoch: int, leader_epoch: int, *, knowing: bool = False
        ) -> Forged:
            asked = fetch.FetchPartition(
                partition=index,
                current_leader_epoch=leader_epoch,
                fetch_offset=end,
                last_fetched_epoch=leader_epoch,
                log_start_offset=0,
                partition_max_bytes=1,
            )
            request = fetch.FetchRequest(
                replica_state=fetch.ReplicaState(replica_id=replica_id, replica_epoch=broker_epoch),
                max_wait_ms=0,
                topics=[fetch.FetchTopic(topic=topic.name, topic_id=topic.topic_id, partitions=[asked])],
            )
            return Forged(f"{name}, {what}", leader, request, PORT, knowing)

        epoch = part.leader_epoch
        yield fetching("with a past broker epoch", broker.broker_id, broker.epoch - 1, epoch)
        yield fetching("without a broker epoch", broker.broker_id, -1, epoch)
        yield fetching(f"as the unknown broker {NOBODY}", NOBODY, broker.epoch, epoch)
        if epoch > 0:  # an epoch of -1 is not compared
            yield fetching("in a past leader epoch", broker.broker_id, broker.epoch, epoch - 1)
        yield fetching("in a future leader epoch", broker.broker_id, broker.epoch, epoch + MANY)
        yield fetching("with its epochs", broker.broker_id, broker.epoch, epoch, knowing=True)

    def _isr_change(self, random: Random) -> Iterator[Forged]:
        controller = self._target.controller
        image = controller.image if controller is not None else None
        if controller is None or image is None or not image.topics:
            return
        topic = random.choice(list(image.topics.values()))
        index = random.choice(list(topic.partitions))
        part = topic.partitions[index]
        leader = image.brokers.get(part.leader)
        if leader is None:
            return
        name = f"the ISR of {topic.name}-{index} is its leader n{leader.broker_id} alone"

        def change(
            what: str, broker_epoch: int, leader_epoch: int, partition_epoch: int, *, knowing: bool = False
        ) -> Forged:
            asked = isr.PartitionData(
                partition_index=index,
                leader_epoch=leader_epoch,
                new_isr_with_epochs=[isr.BrokerState(broker_id=leader.broker_id, broker_epoch=broker_epoch)],
                partition_epoch=partition_epoch,
            )
            request = isr.AlterPartitionRequest(
                broker_id=leader.broker_id,
                broker_epoch=broker_epoch,
                topics=[isr.TopicData(topic_id=topic.topic_id, partitions=[asked])],
            )
            return Forged(f"{name}, {what}", controller, request, knowing=knowing)

        epoch, version = part.leader_epoch, part.partition_epoch
        yield change("with a past broker epoch", leader.epoch - 1, epoch, version)
        yield change("with a past leader epoch", leader.epoch, epoch - 1, version)
        yield change("with a past partition epoch", leader.epoch, epoch, version - 1)
        yield change("with its epochs", leader.epoch, epoch, version, knowing=True)

    # Brokers.

    def _broker(self, random: Random) -> tuple[Machine, MetadataImage, BrokerImage] | None:
        """Returns the controller, its metadata image, and a broker that is registered in this image."""
        controller = self._target.controller
        image = controller.image if controller is not None else None
        if controller is None or image is None or not image.brokers:
            return None
        return controller, image, random.choice(list(image.brokers.values()))

    def _heartbeat(self, random: Random) -> Iterator[Forged]:
        found = self._broker(random)
        if found is None:
            return
        controller, _, broker = found
        shut_down = random.random() < 0.5
        wish = "wants to shut down" if shut_down else "wants to be fenced"
        for what, epoch in (("past", broker.epoch - 1), ("future", broker.epoch + MANY), ("current", broker.epoch)):
            request = BrokerHeartbeatRequest(
                broker_id=broker.broker_id,
                broker_epoch=epoch,
                current_metadata_offset=FAR_OFFSET,
                want_shut_down=shut_down,
                want_fence=not shut_down,
            )
            name = f"broker {broker.broker_id} {wish}, in its {what} epoch"
            yield Forged(name, controller, request, knowing=epoch == broker.epoch)

    def _producer_ids(self, random: Random) -> Iterator[Forged]:
        found = self._broker(random)
        if found is None:
            return
        controller, _, broker = found
        for what, epoch in (("past", broker.epoch - 1), ("current", broker.epoch)):
            request = AllocateProducerIdsRequest(broker_id=broker.broker_id, broker_epoch=epoch)
            name = f"broker {broker.broker_id} asks for producer ids in its {what} epoch"
            yield Forged(name, controller, request, knowing=epoch == broker.epoch)

    # Clients' work.

    def _marker(self, random: Random) -> Iterator[Forged]:
        led = self._led(with_transaction=True)
        if not led:
            return
        leader, _, topic, index, _, log = random.choice(led)
        entry = next(each for each in log.producers if each.txn_first_offset is not None)
        name = f"the transaction of producer {entry.producer_id} in {topic.name}-{index} is aborted"

        def aborting(what: str, epoch: int, coordinator_epoch: int, version: int, *, knowing: bool = False) -> Forged:
            marker = markers.WritableTxnMarker(
                producer_id=entry.producer_id,
                producer_epoch=epoch,
                topics=[markers.WritableTxnMarkerTopic(name=topic.name, partition_indexes=[index])],
                coordinator_epoch=coordinator_epoch,
                transaction_version=version,
            )
            request = markers.WriteTxnMarkersRequest(markers=[marker])
            return Forged(f"{name}, with {what}", leader, request, PORT, knowing)

        epoch, coordinator_epoch = entry.producer_epoch, entry.coordinator_epoch
        # While records are not committed, a leader takes the marker of a past epoch for a repeated one: it writes
        # nothing and answers, without an error, once all records are committed. Rules of transactions judge the log.
        if epoch > 0:
            yield aborting("a past epoch", epoch - 1, MANY, EPOCH_PER_TRANSACTION)._replace(judged=False)
        if coordinator_epoch > 0:
            late = aborting("a past coordinator epoch", epoch, coordinator_epoch - 1, EPOCH_PER_TRANSACTION - 1)
            yield late._replace(judged=False)  # the transaction may have ended meanwhile, and its epoch with it
        yield aborting("its next epoch", epoch + 1, MANY, EPOCH_PER_TRANSACTION, knowing=True)

    def _envelope(self, random: Random) -> Iterator[Forged]:
        """Forges two forwarded requests: a request that may not be forwarded, and the deletion of a topic in the name
        of a super user."""
        found = self._broker(random)
        if found is None:
            return
        controller, image, broker = found
        heartbeat = BrokerHeartbeatRequest(broker_id=broker.broker_id, broker_epoch=broker.epoch, want_fence=True)
        what = f"a forwarded heartbeat fences broker {broker.broker_id}"
        yield Forged(what, controller, _enveloped(heartbeat, 0, "node"))
        if not image.topics:
            return
        topic = random.choice(list(image.topics))
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=1000)
        what = f"a super user deletes {topic} in a forwarded request"
        yield Forged(what, controller, _enveloped(deletion, 6, "node"), knowing=True)


def _enveloped(message: Message, version: int, user: str) -> EnvelopeRequest:
    header = RequestHeader(
        request_api_key=message.API_KEY, request_api_version=version, correlation_id=1, client_id="stranger"
    )
    head = encode(header, request_header_version(message.API_KEY, version))
    principal = encode(DefaultPrincipalData(type="User", name=user), 0)
    return EnvelopeRequest(
        request_data=head + encode(message, version),
        request_principal=bytes(2) + principal,
        client_host_address=LOOPBACK,
    )
