"""Compares each heartbeat of a streams group with plain rules: epochs, statuses, tasks, endpoints and kept fields."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from group_driver import WALL_START_MS
from streams_driver import EAGER, StreamsDriver, listed, statuses, topology

from penstock.groups.consumer.subscribe import metadata_hash
from penstock.groups.reconciliation import MemberState
from penstock.groups.streams.group import Role, StreamsMember
from penstock.groups.streams.topics import Status, configure, partitions_in
from penstock.groups.streams.topology import from_request
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_88_streams_group_heartbeat import (
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TopicInfo,
    Topology,
)
from penstock.protocol.vocabulary import ResourceType

MEMBERS = "abc"
INTERVAL_MS, DELAY_MS = 2_000, 1_000
COMPLETE = {"t": 3, "u": 2, "log": 3}


def application(epoch: int = 3) -> Topology:
    """Returns a topology with a subtopology that has state and reads two topics, and one that reads the second."""
    first = Subtopology(subtopology_id="0", source_topics=["t", "u"], state_changelog_topics=[TopicInfo(name="log")])
    return topology(first, Subtopology(subtopology_id="1", source_topics=["u"]), epoch=epoch)


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        config = replace(
            EAGER,
            streams_assignment_interval_ms=self.random.choice((0, INTERVAL_MS)),
            streams_initial_rebalance_delay_ms=self.random.choice((0, DELAY_MS)),
            streams_max_size=3,
        )
        self.driver = StreamsDriver(config, COMPLETE)
        self.shutdown_by: str | None = None
        self.delay_ends_ms: int | None = None
        self.standbys = 0
        self.seen: set[object] = set()

    # --- requests

    def fields(self) -> dict[str, Any]:
        """Returns some fields of a member, each of which may be left out."""
        random = self.random
        found: dict[str, Any] = {
            "rack_id": random.choice("rs"),
            "process_id": random.choice("pq"),
            "client_tags": [KeyValue(key="zone", value=random.choice("xy"))],
            "user_endpoint": Endpoint(host=random.choice("hi"), port=random.randint(1, 2)),
            "rebalance_timeout_ms": random.choice((60_000, 70_000)),
        }
        kept = {name: value for name, value in found.items() if random.random() < 0.1}
        kept["shutdown_application"] = random.random() < 0.03
        kept["endpoint_information_epoch"] = random.choice((-1, 0, 1, 2, 3, 5))
        return kept

    def beat(self, member_id: str, *, joins: bool) -> None:
        driver = self.driver
        group = driver.shard.groups.get("g")
        before = driver.group.members.get(member_id) if group is not None else None
        fields = self.fields()
        given = application(self.random.choice((3, 3, 2))) if joins else None
        if group is None:
            given = application()
        known = self.before()
        image = driver.shard.image
        if joins or before is None:
            fields = {"process_id": "p", "rebalance_timeout_ms": 60_000, **fields}
            response = driver.come(member_id, given or application(), **fields)
        else:
            response = driver.stay(member_id, **fields)
        assert ErrorCode(response.error_code) is ErrorCode.NONE
        assert driver.shard.image is image
        self.check(member_id, joins or before is None, given, before, known, fields, response)

    def before(self) -> dict[str, Any]:
        if "g" not in self.driver.shard.groups:
            return {
                "epoch": 1, "assignment_epoch": 1, "metadata_hash": 0, "validated_epoch": -1, "assignment_ms": 0,
                "assignment_configs": {}, "members": {}, "endpoint_epoch": None,
            }  # fmt: skip
        group = self.driver.group
        names = ("epoch", "assignment_epoch", "metadata_hash", "validated_epoch", "assignment_ms", "endpoint_epoch")
        found = {name: getattr(group, name) for name in names}
        return {**found, "assignment_configs": dict(group.assignment_configs), "members": dict(group.members)}

    # --- rules

    def check(
        self,
        member_id: str,
        joins: bool,
        given: Topology | None,
        before: StreamsMember | None,
        known: dict[str, Any],
        fields: dict[str, Any],
        response: StreamsGroupHeartbeatResponse,
    ) -> None:
        driver, group = self.driver, self.driver.group
        member = group.members[member_id]
        self.check_fields(member, before or StreamsMember(member_id), given, fields)
        configured = configure(from_request(application()), partitions_in(driver.shard.image))
        digest = metadata_hash(driver.shard.image, ["t", "u", "log"])
        validated = 3 if configured.is_ready else -1
        configs = {"num.standby.replicas": str(self.standbys)}

        def without_epochs(one: StreamsMember) -> StreamsMember:
            return replace(one, epoch=0, previous_epoch=0, state=MemberState.STABLE, assigned={}, pending_revocation={})

        is_changed = before is None or without_epochs(member) != without_epochs(before)
        reasons = (
            is_changed,
            digest != known["metadata_hash"],
            validated != known["validated_epoch"],
            configs != known["assignment_configs"],
        )
        epoch = known["epoch"] + any(reasons)
        assert group.epoch == epoch
        assert (group.metadata_hash, group.validated_epoch) == (digest, validated)
        assert group.assignment_configs == configs
        delayed = self.check_target(known, epoch, configured.is_ready)
        wanted = [Status.STALE_TOPOLOGY] if member.topology_epoch < 3 else []
        wanted += [Status.ASSIGNMENT_DELAYED] if delayed else []
        wanted += [configured.problem.status] if configured.problem is not None else []
        if fields["shutdown_application"] and self.shutdown_by is None:
            self.shutdown_by = member_id
        wanted += [Status.SHUTDOWN_APPLICATION] if self.shutdown_by is not None else []
        assert statuses(response) == wanted
        if self.shutdown_by is not None:
            assert response.status is not None
            assert f"member {self.shutdown_by} " in response.status[-1].status_detail
        assert driver.answers[member_id].missing == configured.missing
        self.check_tasks(member, before, joins, fields, known, response)
        self.seen |= {*wanted, ("reasons", reasons.count(True)), ("ready", configured.is_ready)}

    def check_fields(
        self, member: StreamsMember, before: StreamsMember, given: Topology | None, fields: dict[str, Any]
    ) -> None:
        """A field that the heartbeat leaves out keeps its value."""
        assert member.rack_id == fields.get("rack_id", before.rack_id)
        assert member.process_id == fields.get("process_id", before.process_id)
        assert member.rebalance_timeout_ms == fields.get("rebalance_timeout_ms", before.rebalance_timeout_ms)
        tags = {each.key: each.value for each in fields["client_tags"]} if "client_tags" in fields else before.tags
        assert member.tags == tags
        sent = fields.get("user_endpoint")
        assert member.endpoint == ((sent.host, sent.port) if sent is not None else before.endpoint)
        assert member.topology_epoch == (given.epoch if given is not None else before.topology_epoch)
        assert (member.client_id, member.client_host) == ("client", "/127.0.0.1")

    def check_target(self, known: dict[str, Any], epoch: int, is_ready: bool) -> bool:
        """Returns True if the assignment of the group epoch has to wait."""
        driver, group = self.driver, self.driver.group
        config = driver.config
        if not known["members"] and config.streams_initial_rebalance_delay_ms and self.delay_ends_ms is None:
            self.delay_ends_ms = driver.now_ms + DELAY_MS
        wall_ms = WALL_START_MS + driver.now_ms
        waited = wall_ms - known["assignment_ms"] >= config.streams_assignment_interval_ms
        assigns = self.delay_ends_ms is None and epoch > known["assignment_epoch"] and waited
        assert group.assignment_epoch == (epoch if assigns else known["assignment_epoch"])
        assert group.assignment_ms == (wall_ms if assigns else known["assignment_ms"])
        if assigns:
            held = [tasks for tasks in group.target.values() if tasks]
            assert set(group.target) == set(group.members)
            assert bool(held) == is_ready
        return self.delay_ends_ms is not None or epoch > group.assignment_epoch

    def check_tasks(
        self,
        member: StreamsMember,
        before: StreamsMember | None,
        joins: bool,
        fields: dict[str, Any],
        known: dict[str, Any],
        response: StreamsGroupHeartbeatResponse,
    ) -> None:
        group = self.driver.group
        shows = joins or before is None or member.assigned != before.assigned
        roles = (response.active_tasks, response.standby_tasks, response.warmup_tasks)
        for role, tasks in zip(Role, roles):
            held = {key.subtopology: sorted(some) for key, some in member.assigned.items() if key.role is role}
            assert listed(tasks) == (held if shows else None)
        at = known["endpoint_epoch"]
        expected = 0 if at is None else at + (shows and member.endpoint is not None)
        assert group.endpoint_epoch == response.endpoint_information_epoch == expected
        now = (0 if at is None else at) + (shows and member.endpoint is not None)
        asked = response.partitions_by_user_endpoint
        assert (asked is not None) == (now != fields["endpoint_information_epoch"])
        if asked is not None:
            self.check_endpoints(response)

    def check_endpoints(self, response: StreamsGroupHeartbeatResponse) -> None:
        """Each member with an endpoint is listed with the existing partitions of its tasks."""
        topics = self.driver.shard.image.topics
        sizes = {name: len(topic.partitions) for name, topic in topics.items()}
        reads = {"0": ("t", "u"), "1": ("u",)}

        def served(member: StreamsMember, role: Role) -> list[tuple[str, list[int]]]:
            return sorted(
                (topic, [index for index in sorted(indexes) if index < sizes.get(topic, 0)])
                for key, indexes in member.assigned.items()
                if key.role is role
                for topic in reads[key.subtopology]
            )

        if not (self.driver.group.configured is not None and self.driver.group.configured.is_ready):
            return
        expected = sorted(
            (*each.endpoint, served(each, Role.ACTIVE), served(each, Role.STANDBY))
            for each in self.driver.group.members.values()
            if each.endpoint is not None
        )
        found = sorted(
            (
                each.user_endpoint.host,
                each.user_endpoint.port,
                sorted((one.topic, one.partitions) for one in each.active_partitions),
                sorted((one.topic, one.partitions) for one in each.standby_partitions),
            )
            for each in response.partitions_by_user_endpoint or ()
        )
        assert found == expected

    # --- other events

    def step(self) -> None:
        random, driver = self.random, self.driver
        members = dict(driver.group.members) if "g" in driver.shard.groups else {}
        match random.randrange(14):
            case 0 | 1 | 2:
                self.beat(random.choice(MEMBERS), joins=True)
            case 3 | 4 | 5 | 6 | 7 | 8 if members:
                self.beat(random.choice(sorted(members)), joins=False)
            case 9 if members:
                driver.stream_beat(random.choice(sorted(members)), -1)
            case 10:
                driver.see({name: count for name, count in COMPLETE.items() if random.random() < 0.85})
                self.configure_group()
            case 11 | 12:
                self.wait(random.choice((1, DELAY_MS - 1, DELAY_MS, INTERVAL_MS)))
            case 13:
                self.standbys = random.choice((0, 1))
                self.configure_group()
        if members and not driver.group.members:
            self.shutdown_by = None

    def wait(self, milliseconds: int) -> None:
        self.driver.advance(milliseconds)
        if self.delay_ends_ms is not None and self.delay_ends_ms <= self.driver.now_ms:
            self.delay_ends_ms = None

    def configure_group(self) -> None:
        own = {"streams.num.standby.replicas": str(self.standbys)}
        image = self.driver.shard.image
        self.driver.shard.see(replace(image, configs={(ResourceType.GROUP, "g"): own}, version=image.version + 1))


def test_each_heartbeat_of_a_streams_member_is_answered_by_the_rules() -> None:
    seen: set[object] = set()
    for seed in range(20):
        walk = Walk(seed)
        for _ in range(50):
            walk.step()
        assert walk.driver.reload().shard.remembered() == walk.driver.shard.remembered()
        seen |= walk.seen
    assert seen >= {("ready", True), ("ready", False), *(("reasons", count) for count in range(4))}
    assert seen >= set(Status) - {Status.INCORRECTLY_PARTITIONED_TOPICS}
