"""Tests groups whose members use different clients, and join, leave, crash and are upgraded. No record may be missed.

Members are processes (`group_member.py`, `GroupMember.java`) that print the partitions they own and the records they
process. A partition may have only one owner at a time, both in the output of the members and in every state of the
group's log.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from penstock.groups.journal import decode_record
from penstock.protocol.codec import decode
from penstock.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from penstock.protocol.persisted.group.consumer_group_current_member_assignment import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
)
from penstock.protocol.persisted.group.group_metadata import GroupMetadataKey, GroupMetadataValue
from penstock.testing import Broker
from tools import kafka

HERE = Path(__file__).parent
TOPIC, GROUP = "work", "workers"
CLASSIC = ("confluent", "kafka-python", "aiokafka")
JAVA = ("java-classic", "java-consumer")


def server(session_ms: int) -> dict[str, str]:
    return {
        "group.min.session.timeout.ms": "1000",
        "group.initial.rebalance.delay.ms": "100",
        "group.consumer.min.heartbeat.interval.ms": "50",
        "group.consumer.heartbeat.interval.ms": "200",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.session.timeout.ms": str(session_ms),
        "group.consumer.assignment.interval.ms": "0",
    }


@dataclass(slots=True, frozen=True)
class Stretch:
    """Holds a period in which a member owned a partition."""

    began: float
    ended: float
    member: str


class Member:
    """Holds a member's process and its output."""

    def __init__(self, kind: str, bootstrap: str, session_ms: int, output: Path) -> None:
        self.kind = kind
        self.name = output.name
        self._output = output
        self._crashed_at = float("inf")
        told = [bootstrap, TOPIC, GROUP, str(session_ms)]
        command = [sys.executable, str(HERE / "group_member.py"), kind, *told]
        if kind in JAVA:
            command = kafka.tool_command(str(HERE / "GroupMember.java"), kind.removeprefix("java-"), *told)
        with output.open("w") as out, output.with_suffix(".err").open("w") as err:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=err)

    def leave(self) -> None:
        """Ends the member's input, so that it leaves the group soon. Does not wait."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def crash(self) -> None:
        self._crashed_at = min(self._crashed_at, time.monotonic())
        self._process.kill()

    def ended(self, timeout: float) -> int:
        try:
            return self._process.wait(timeout)
        finally:
            if self._process.stdin is not None:
                self._process.stdin.close()

    def lines(self) -> list[tuple[float, str, str]]:
        whole = self._output.read_text().rpartition("\n")[0]
        split = (line.split(" ", 2) for line in whole.splitlines())
        return [(float(words[0]), words[1], words[2] if len(words) > 2 else "") for words in split]

    def problem(self) -> str:
        return self._output.with_suffix(".err").read_text()[-2000:]

    def owns(self) -> set[int]:
        said = [(what, text) for _, what, text in self.lines() if what in ("owned", "lost")]
        return _partitions(said[-1][1]) if said else set()

    def values(self) -> set[str]:
        return {text for _, what, text in self.lines() if what == "value"}

    def stretches(self) -> dict[int, list[Stretch]]:
        """Returns periods of ownership by partition. Leaves out periods at whose end the member was removed from the
        group."""
        found: dict[int, list[Stretch]] = defaultdict(list)
        since: dict[int, float] = {}
        for at, what, text in self.lines():
            if what == "lost":
                since.clear()
            elif what == "owned":
                now = _partitions(text)
                for partition in since.keys() - now:
                    found[partition].append(Stretch(since.pop(partition), at, self.name))
                for partition in now - since.keys():
                    since[partition] = at
        for partition, began in since.items():
            found[partition].append(Stretch(began, self._crashed_at, self.name))
        return found


def _partitions(text: str) -> set[int]:
    return {int(word) for word in text.split(",") if word}


class Chaos:
    def __init__(self, broker: Broker, home: Path, session_ms: int, partitions: int) -> None:
        self._broker = broker
        self._home = home
        self._session_ms = session_ms
        self.partitions = partitions
        self.alive: list[Member] = []
        self.gone: list[Member] = []
        self._leaving: list[Member] = []
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "topic.metadata.refresh.interval.ms": 300})
        self._produced: set[str] = set()

    def join(self, kind: str) -> None:
        output = self._home / f"{len(self.alive) + len(self.gone):02}-{kind}"
        self.alive.append(Member(kind, self._broker.bootstrap, self._session_ms, output))

    def leave(self, member: Member) -> None:
        member.leave()
        self._leaving.append(member)
        self._remove(member)

    def crash(self, member: Member) -> None:
        member.crash()
        self._remove(member)

    def upgrade(self, member: Member) -> None:
        self.leave(member)
        self.join("java-consumer" if member.kind == "java-classic" else "consumer")

    def grow(self, by: int) -> None:
        self.partitions += by
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap})
        admin.create_partitions([NewPartitions(TOPIC, self.partitions)])[TOPIC].result(timeout=120)

    def produce(self, count: int) -> None:
        for _ in range(count):
            value = str(len(self._produced))
            self._produced.add(value)
            self._producer.produce(TOPIC, value=value, key=value)
        assert self._producer.flush(30) == 0

    def work_for(self, seconds: float) -> None:
        """Produces records for `seconds`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.produce(10)
            time.sleep(0.05)

    def settle(self, limit_s: float) -> None:
        """Waits until every partition is owned by one running member and all records so far are processed."""
        self._wait(self._spread, limit_s, "the group did not settle")
        self._wait(lambda: not self._unprocessed(), limit_s, "records were never processed")

    def end(self) -> None:
        for member in list(self.alive):
            self.leave(member)
        for member in self._leaving:
            assert member.ended(30) == 0, f"{member.name}: {member.problem()}"

    def kill(self) -> None:
        for member in [*self.alive, *self.gone]:
            member.crash()
            member.ended(30)

    def nobody_shared_by_what_members_say(self) -> None:
        by_partition: dict[int, list[Stretch]] = defaultdict(list)
        for member in [*self.alive, *self.gone]:
            for partition, stretches in member.stretches().items():
                by_partition[partition] += stretches
        assert set(by_partition) == set(range(self.partitions))
        for partition, stretches in by_partition.items():
            stretches.sort(key=lambda each: each.began)
            for one, next_one in pairwise(stretches):
                assert one.ended <= next_one.began, f"partition {partition}: {one} and {next_one}"

    def _remove(self, member: Member) -> None:
        self.alive.remove(member)
        self.gone.append(member)

    def _spread(self) -> bool:
        owned = [partition for member in self.alive for partition in member.owns()]
        return sorted(owned) == list(range(self.partitions))

    def _unprocessed(self) -> set[str]:
        return self._produced.difference(*(member.values() for member in [*self.alive, *self.gone]))

    def _by_the_broker(self) -> list[str]:
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap})
        described = admin.describe_consumer_groups([GROUP], request_timeout=120)[GROUP].result()
        return [str(described.state)] + [
            f"{member.member_id}: {sorted(each.partition for each in member.assignment.topic_partitions)}"
            for member in described.members
        ]

    def _wait(self, done: Callable[[], bool], limit_s: float, sentence: str) -> None:
        deadline = time.monotonic() + limit_s
        while not done():
            if time.monotonic() > deadline:
                owned = {member.name: sorted(member.owns()) for member in self.alive}
                left = f"{len(self._unprocessed())} records unprocessed"
                pytest.fail(f"{sentence}: {owned}, {left}; by the broker: {self._by_the_broker()}")
            time.sleep(0.1)


def no_partition_was_shared_by_the_log(broker: Broker) -> set[str]:
    """Replays the group's records and checks that no partition ever has two owners. Returns the protocols that the
    group had."""
    owners: dict[str, set[tuple[object, int]]] = {}
    protocols = set()
    for record in broker.records("__consumer_offsets"):
        entry = decode_record(record.key, record.value)
        if entry is None:
            continue
        match entry.key, entry.value:
            case GroupMetadataKey(group=group), GroupMetadataValue() as value if group == GROUP:
                protocols.add("classic")
                shares = [_classic_share(member.assignment) for member in value.members]
                assert _disjoint(shares), f"generation {value.generation}: {shares}"
            case ConsumerGroupCurrentMemberAssignmentKey() as key, None:
                owners.pop(key.member_id, None)
            case (
                ConsumerGroupCurrentMemberAssignmentKey() as key,
                ConsumerGroupCurrentMemberAssignmentValue() as state,
            ):
                protocols.add("consumer")
                held = [*state.assigned_partitions, *state.partitions_pending_revocation]
                owners[key.member_id] = {(each.topic_id, index) for each in held for index in each.partitions}
                assert _disjoint(list(owners.values())), f"epoch {state.member_epoch}: {owners}"
    return protocols


def _classic_share(assignment: bytes) -> set[tuple[object, int]]:
    if not assignment:
        return set()
    decoded = decode(ConsumerProtocolAssignment, int.from_bytes(assignment[:2], "big"), assignment, 2)
    return {(each.topic, index) for each in decoded.assigned_partitions for index in each.partitions}


def _disjoint(shares: list[set[tuple[object, int]]]) -> bool:
    return sum(map(len, shares)) == len(set().union(*shares))


def test_group_of_different_clients_reads_all_records_despite_a_crash_and_an_upgrade(tmp_path: Path) -> None:
    with Broker(config=server(2000), topics={TOPIC: 4}) as broker:
        chaos = Chaos(broker, tmp_path, session_ms=2000, partitions=4)
        try:
            for kind in CLASSIC:
                chaos.join(kind)
            chaos.produce(50)
            chaos.settle(20)
            chaos.grow(3)
            chaos.crash(chaos.alive[0])
            chaos.join("consumer")
            chaos.work_for(0.5)
            chaos.settle(20)
            chaos.upgrade(chaos.alive[0])
            chaos.work_for(0.3)
            chaos.settle(20)
            chaos.end()
        finally:
            chaos.kill()
        chaos.nobody_shared_by_what_members_say()
        assert no_partition_was_shared_by_the_log(broker) == {"classic", "consumer"}


def storm(chaos: Chaos, source: random.Random, kinds: tuple[str, ...], members: int, steps: int) -> None:
    """Applies random events to the group: mostly joins until the group is full; also upgrades in the second half."""
    for step in range(steps):
        choices: list[Callable[[], None]] = []
        if len(chaos.alive) < members:
            choices += [lambda: chaos.join(source.choice(kinds))] * 4
        if len(chaos.alive) > 1:
            choices += [
                lambda: chaos.leave(source.choice(chaos.alive)),
                lambda: chaos.crash(source.choice(chaos.alive)),
            ]
        old = [member for member in chaos.alive if member.kind in (*CLASSIC, "java-classic")]
        if step > steps // 2 and old:
            choices += [lambda old=old: chaos.upgrade(source.choice(old))] * 4  # type: ignore[misc]
        if chaos.partitions < 2 * members:
            choices.append(lambda: chaos.grow(source.randint(1, 4)))
        source.choice(choices)()
        chaos.work_for(source.uniform(0.0, 1.0))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
def test_thirty_members_of_different_clients_read_all_records_despite_joins_and_leaves_and_crashes(
    tmp_path: Path, seed: int
) -> None:
    with Broker(config=server(6000), topics={TOPIC: 10}) as broker:
        chaos = Chaos(broker, tmp_path, session_ms=6000, partitions=10)
        try:
            chaos.join("confluent")
            chaos.produce(100)
            chaos.settle(30)
            for at in range(19):
                chaos.join(CLASSIC[at % 3])
                chaos.work_for(0.2)
            storm(chaos, random.Random(seed), CLASSIC, 30, 40)
            while len(chaos.alive) < 30:
                chaos.join("consumer")
                chaos.work_for(0.1)
            chaos.settle(90)
            for member in [member for member in chaos.alive if member.kind != "consumer"]:
                chaos.upgrade(member)
                chaos.work_for(0.1)
            chaos.settle(90)
            chaos.end()
        finally:
            chaos.kill()
        chaos.nobody_shared_by_what_members_say()
        assert no_partition_was_shared_by_the_log(broker) == {"classic", "consumer"}


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(180)
def test_java_members_of_both_protocols_read_all_records_despite_joins_and_leaves_and_crashes(
    tmp_path: Path, kafka_jars: None
) -> None:
    with Broker(config=server(6000), topics={TOPIC: 5}) as broker:
        chaos = Chaos(broker, tmp_path, session_ms=6000, partitions=5)
        try:
            for kind in ("java-classic", "java-classic", "confluent", "aiokafka"):
                chaos.join(kind)
            chaos.produce(100)
            chaos.settle(60)
            chaos.grow(3)
            chaos.work_for(1.0)
            chaos.crash(chaos.alive[0])
            chaos.join("java-consumer")
            chaos.work_for(1.0)
            chaos.settle(60)
            for member in [member for member in chaos.alive if member.kind in ("java-classic", *CLASSIC)]:
                chaos.upgrade(member)
                chaos.work_for(0.5)
            chaos.settle(60)
            chaos.end()
        finally:
            chaos.kill()
        chaos.nobody_shared_by_what_members_say()
        assert no_partition_was_shared_by_the_log(broker) == {"classic", "consumer"}
