"""Injects faults at a certain request or election, because faults at random times rarely hit these moments.

    late isr change          a leader's request to add a follower to the ISR is held back, and its retry is accepted;
                             the follower falls behind and leaves the ISR; then the first request arrives
    isr change of the dead   as above, but the follower dies and comes back without its records before the first
                             request arrives
    late marker              a transaction's marker is held back, and its retry is written; the first marker arrives
                             after the producer has begun its next transaction
    elected alone            the controller is killed; at the moment of its election the next controller is cut off, and
                             all other voters lose power or die
    majority forgets         a record is committed while one voter is cut off; then the leader is cut off, the other
                             voters with the record lose power, and the voter without it returns for the election

Each step has a time limit, and a fault whose moment does not come in time is given up. Other faults continue meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.metadata.image import PartitionImage
from penstock.protocol.apis import request_class, request_header_version
from penstock.protocol.codec import decode, decode_prefix
from penstock.protocol.errors import KafkaError
from penstock.protocol.messages.api_27_write_txn_markers import WriteTxnMarkersRequest
from penstock.protocol.messages.api_56_alter_partition import AlterPartitionRequest
from penstock.protocol.messages.headers import RequestHeader
from penstock.sim.engine.connection import RESET, Endpoint
from penstock.sim.engine.machine import Machine, State
from penstock.sim.faults.cluster_faults import Pair, isolated
from penstock.sim.faults.lost_machines import POWER
from penstock.sim.faults.target import FaultTarget
from penstock.sim.plan.plan import FaultPlan

if TYPE_CHECKING:
    from penstock.broker.replicas.partition import Partition

SIZE_BYTES = 4
#: Bounds for a follower to leave the ISR, and to come back.
ISR_BOUND_S = 15.0
CATCH_BOUND_S = 12.0
#: Bound for a follower that is cut off to fall behind.
BEHIND_BOUND_S = 8.0
MARKER_BOUND_S = 8.0
ELECTION_BOUND_S = 10.0
POLL_S = 0.02
#: After this time, a released request has arrived and the watcher has checked the result.
ARRIVED_S = 0.6
#: Time after which killed machines and machines without power come back.
BACK_S = 0.2

TRANSACTIONAL = ("transactional", "copier")

Key = tuple[bytes, int]
Fault = Callable[[FaultPlan, Random], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class CaughtRequest:
    """Holds a request that is held back in flight, with all later data on its connection."""

    sender: Machine
    receiver: Machine
    end: Endpoint
    request: Any

    def lose_connection(self) -> None:
        """Breaks the connection on the sender's side only. The sender then retries over another connection."""
        self.end.receive(RESET)

    def release(self) -> None:
        self.end.out.release()


def request_in(data: bytes, api_key: int) -> Any:
    """Returns the request at the start of `data`; None if it is not a request of the API `api_key`."""
    frame = data[SIZE_BYTES:]
    if len(frame) < SIZE_BYTES or int.from_bytes(frame[:2], "big") != api_key:
        return None
    version = int.from_bytes(frame[2:4], "big")
    _, start = decode_prefix(RequestHeader, request_header_version(api_key, version), frame)
    return decode(request_class(api_key), version, frame, start)


class AimedFaults:
    def __init__(self, target: FaultTarget) -> None:
        self._target = target
        #: Faults that kill or isolate machines run one at a time: two at once would spoil each other's moment.
        self._aiming = asyncio.Lock()
        self.by_kind: dict[str, Fault] = {
            "late isr change": self._one_at_a_time(self._late_isr_change),
            "isr change of the dead": self._one_at_a_time(self._isr_change_of_the_dead),
            "late marker": self._late_marker,
            "elected alone": self._one_at_a_time(self._elected_alone),
            "majority forgets": self._one_at_a_time(self._majority_forgets),
        }

    def _one_at_a_time(self, fault_at: Fault) -> Fault:
        async def in_turn(fault: FaultPlan, random: Random) -> None:
            async with self._aiming:
                await fault_at(fault, random)

        return in_turn

    # Waiting.

    async def _until(self, holds: Callable[[], bool], within_s: float) -> bool:
        deadline = self._target.timeline.now + within_s
        while not holds():
            if self._target.timeline.now >= deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def _catch(
        self, api_key: int, wanted: Callable[[Machine, Machine, Any], bool], within_s: float
    ) -> CaughtRequest | None:
        """Holds back the next request of this API between two machines. Skips requests for which `wanted` returns
        False.

        Returns None if no machine sends such a request within `within_s` seconds.
        """
        target = self._target
        machines = {machine.name: machine for machine in target.machines}
        found: asyncio.Future[CaughtRequest] = asyncio.get_running_loop().create_future()

        def tap(end: Endpoint, data: bytes) -> None:
            sender = machines.get(end.host.name)
            receiver = machines.get(end.get_extra_info("peername")[0])
            if found.done() or not end.outgoing or sender is None or receiver is None:
                return
            request = request_in(data, api_key)
            if request is not None and wanted(sender, receiver, request):
                end.out.hold()
                found.set_result(CaughtRequest(sender, receiver, end, request))

        target.fabric.taps = [*target.fabric.taps, tap]
        try:
            await self._until(found.done, within_s)
        except asyncio.CancelledError:
            if found.done():
                found.result().release()  # the caller doesn't get it
            raise
        finally:
            target.fabric.taps = [each for each in target.fabric.taps if each is not tap]
        return found.result() if found.done() else None

    # In-sync sets.

    def _partition(self, key: Key) -> PartitionImage | None:
        image = self._target.environment.newest_image
        topic = image.topics_by_id.get(key[0]) if image is not None else None
        return topic.partitions.get(key[1]) if topic is not None else None

    def _in_any_isr(self, machine: Machine) -> bool:
        image = self._target.environment.newest_image
        return image is not None and any(
            machine.node_id in part.isr for topic in image.topics.values() for part in topic.partitions.values()
        )

    def _usable(self, machine: Machine, after_epoch: int = -1) -> bool:
        image = self._target.environment.newest_image
        broker = image.brokers.get(machine.node_id) if image is not None else None
        return broker is not None and not broker.fenced and broker.epoch > after_epoch

    def _replica(self, machine: Machine, key: Key) -> Partition | None:
        broker = machine.broker
        if broker is None or machine.state is not State.SERVING:
            return None
        try:
            partition = broker.partitions.get_by_id(*key)
        except KafkaError:
            return None
        return partition if partition.is_open else None

    def _behind(self, machine: Machine, key: Key) -> bool:
        """Returns True if the machine's replica is not in the ISR and lacks committed records."""
        image = self._partition(key)
        if image is None or machine.node_id in image.isr:
            return False
        leader = next((each for each in self._target.machines if each.node_id == image.leader), None)
        led = self._replica(leader, key) if leader is not None else None
        own = self._replica(machine, key)
        return led is not None and own is not None and own.log.log_end_offset < led.log.high_watermark

    async def _rejoining(self, fault: FaultPlan, machine: Machine) -> CaughtRequest | None:
        """Kills a machine, which restarts later, and waits until it has left all ISRs.

        Then holds back the request that would add the machine to an ISR again. Returns this request; None if there is
        no such request.
        """
        machine.kill()
        self._target.restart(machine, BACK_S)
        out = await self._until(lambda: not self._in_any_isr(machine), ISR_BOUND_S)

        def wanted(sender: Machine, receiver: Machine, request: AlterPartitionRequest) -> bool:
            return machine not in (sender, receiver) and any(True for _ in self._rejoined(machine, request))

        caught = await self._catch(AlterPartitionRequest.API_KEY, wanted, CATCH_BOUND_S) if out else None
        if caught is None:
            self._target.note(fault, f"finds no request to add {machine.name} to an ISR")
        else:
            self._target.note(fault, f"holds back {caught.sender.name}'s request to add {machine.name} to an ISR")
        return caught

    def _rejoined(self, machine: Machine, request: AlterPartitionRequest) -> Iterator[Key]:
        for topic in request.topics:
            for part in topic.partitions:
                image = self._partition((topic.topic_id, part.partition_index))
                named = any(member.broker_id == machine.node_id for member in part.new_isr_with_epochs)
                if named and image is not None and machine.node_id not in image.isr:
                    yield topic.topic_id, part.partition_index

    def _follower(self, random: Random) -> Machine:
        target = self._target
        others = [
            each for each in target.machines if each.holds_partitions and each.node_id != target.watcher.quorum_leader
        ]
        return random.choice(others)

    async def _late_isr_change(self, fault: FaultPlan, random: Random) -> None:
        machine = self._follower(random)
        caught = await self._rejoining(fault, machine)
        if caught is None:
            return
        keys = list(self._rejoined(machine, caught.request))

        def joined() -> bool:
            parts = (self._partition(key) for key in keys)
            return any(part is not None and machine.node_id in part.isr for part in parts)

        try:
            caught.lose_connection()
            if await self._until(joined, CATCH_BOUND_S):
                with self._apart(machine, caught.sender):
                    await self._release_behind(fault, caught, machine, keys)
        finally:
            caught.release()

    async def _release_behind(
        self, fault: FaultPlan, caught: CaughtRequest, machine: Machine, keys: Sequence[Key]
    ) -> None:
        """Releases the held request once the machine that it would add to the ISR is out of sync."""
        await self._until(lambda: any(self._behind(machine, key) for key in keys), BEHIND_BOUND_S)
        self._target.note(fault, "releases the request")
        caught.release()
        await asyncio.sleep(ARRIVED_S)

    def _apart(self, one: Machine, other: Machine) -> AbstractContextManager[None]:
        """Cuts the links between two machines. Both machines still reach all other machines."""
        return self._cut([(one.name, other.name), (other.name, one.name)])

    def _isolated(self, machine: Machine) -> AbstractContextManager[None]:
        """Cuts a machine off from all other machines."""
        return self._cut(isolated(machine.name, [each.name for each in self._target.machines]))

    @contextmanager
    def _cut(self, pairs: Sequence[Pair]) -> Iterator[None]:
        links = [link for link in (self._target.fabric.link(*pair) for pair in pairs) if not link.cut]
        for link in links:
            link.cut = True
        try:
            yield
        finally:
            for link in links:
                if link.cut:
                    link.mend()

    async def _isr_change_of_the_dead(self, fault: FaultPlan, random: Random) -> None:
        target = self._target
        machine = self._follower(random)
        caught = await self._rejoining(fault, machine)
        if caught is None:
            return
        keys = list(self._rejoined(machine, caught.request))
        image = target.environment.newest_image
        broker = image.brokers.get(machine.node_id) if image is not None else None
        epoch = broker.epoch if broker is not None else -1
        try:
            with self._apart(machine, caught.sender):
                self._switch_off(fault, machine)
                await self._until(lambda: self._usable(machine, epoch), ISR_BOUND_S)
                await self._release_behind(fault, caught, machine, keys)
        finally:
            caught.release()

    def _switch_off(self, fault: FaultPlan, machine: Machine) -> None:
        """Switches a machine off. If a power loss could erase acknowledged records, kills its process instead."""
        target = self._target
        if target.losses.covered(machine, POWER):
            target.lose_power(machine, fault.params["severity"], BACK_S)
        else:
            machine.kill()
            target.restart(machine, BACK_S)

    # Transactions.

    async def _late_marker(self, fault: FaultPlan, random: Random) -> None:
        transactions = any(actor.plan.kind in TRANSACTIONAL for actor in self._target.actors)
        within_s = MARKER_BOUND_S if transactions else 0.0
        caught = await self._catch(WriteTxnMarkersRequest.API_KEY, lambda *_: True, within_s)
        if caught is None:
            self._target.note(fault, "finds no markers in flight")
            return
        ends = [
            (marker.producer_id, topic.name, index)
            for marker in caught.request.markers
            for topic in marker.topics
            for index in topic.partition_indexes
        ]
        self._target.note(fault, f"holds back markers from {caught.sender.name} to {caught.receiver.name}")
        try:
            caught.lose_connection()
            await self._until(
                lambda: not any(self._has_open_transaction(caught.receiver, *end) for end in ends), MARKER_BOUND_S
            )
            await self._until(
                lambda: any(self._has_open_transaction(caught.receiver, *end) for end in ends), MARKER_BOUND_S
            )
            self._target.note(fault, "releases the markers")
        finally:
            caught.release()

    def _has_open_transaction(self, machine: Machine, producer_id: int, topic: str, index: int) -> bool:
        """Returns True if the producer has an open transaction in the partition."""
        broker = machine.broker
        if broker is None or machine.state is not State.SERVING:
            return False
        try:
            entry = broker.partitions.get(topic, index).log.producers.get(producer_id)
        except KafkaError:
            return False
        return entry is not None and entry.txn_first_offset is not None

    # Elections.

    async def _elected_alone(self, fault: FaultPlan, random: Random) -> None:
        target = self._target
        voters = [machine for machine in target.machines if machine.votes]
        first = next((each for each in voters if each.node_id == target.watcher.quorum_leader), voters[0])
        elections: list[Machine] = []
        with ExitStack() as until_over:

            def elected(name: str, epoch: int) -> None:
                machine = next(each for each in voters if each.name == name)
                elections.append(machine)
                if len(elections) > 1:
                    return
                until_over.enter_context(self._isolated(machine))
                self._target.note(
                    fault, f"cuts {name} off as it is elected in epoch {epoch}; the others lose power or die"
                )
                for other in voters:
                    if other is first:
                        target.restart(other, BACK_S)
                    elif other is not machine:
                        self._switch_off(fault, other)

            until_over.enter_context(self._notified_of_elections(elected))
            first.kill()
            target.restart(first, ELECTION_BOUND_S)
            until_over.callback(target.restart, first, BACK_S)
            await self._until(lambda: len(elections) > 1, 2 * ELECTION_BOUND_S)
            await asyncio.sleep(ARRIVED_S)

    @contextmanager
    def _notified_of_elections(self, elected: Callable[[str, int], None]) -> Iterator[None]:
        listeners = self._target.watcher.on_elected
        listeners.append(elected)
        try:
            yield
        finally:
            listeners.remove(elected)

    async def _majority_forgets(self, fault: FaultPlan, random: Random) -> None:
        target = self._target
        leader = target.controller
        others = [machine for machine in target.machines if machine.votes and machine is not leader]
        if leader is None or len(others) < 2:
            return
        late = random.choice(others)
        elections: list[str] = []
        with ExitStack() as until_over:
            with self._isolated(late):
                target.quorum_logs.look()
                before = target.quorum_logs.committed
                await self._until(lambda: target.quorum_logs.committed > before, ISR_BOUND_S)
                self._target.note(
                    fault, f"cuts {leader.name} off; voters with the record that {late.name} lacks lose power or die"
                )
                until_over.enter_context(self._isolated(leader))
                for other in others:
                    if other is not late:
                        self._switch_off(fault, other)
            until_over.enter_context(self._notified_of_elections(lambda name, epoch: elections.append(name)))
            await self._until(lambda: bool(elections), 2 * ELECTION_BOUND_S)
            await asyncio.sleep(ARRIVED_S)
