"""Tests the active controller's periodic work, its probes of suspected brokers, and when it stops."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from test_controller import PARTITION, Stage, play

from penstock.broker.controlplane.controller import PROBES_AFTER_S, _Probe
from penstock.broker.controlplane.failovers import Detection, Failovers
from penstock.broker.controlplane.producer_ids import ProducerIds
from penstock.broker.controlplane.suspicions import KEEP_S, MAX_SUSPICIONS, PER_HEARTBEAT, RESEND_S, Suspicions
from penstock.broker.events import NodeEvent
from penstock.broker.events.kinds import BrokerFenced, LeaderElected, NetworkPartitionSuspected
from penstock.metadata.image import EMPTY_IMAGE, Fencing, ImageChanges, TokenImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_63_broker_heartbeat import Suspicion
from penstock.protocol.persisted.metadata.config_record import ConfigRecord

TOPIC, BROKER, GROUP = 2, 4, 32
LEADERLESS = replace(PARTITION, isr=(), elr=(1,), leader=-1, last_known_elr=(1,))
UNCLEAN = "unclean.leader.election.enable"


def count_decisions(stage: Stage) -> list[float]:
    """Returns a list that gets the time of each decision from now on."""
    times: list[float] = []
    submit = stage.log.submit

    async def counted(decide: Any) -> Any:
        times.append(asyncio.get_running_loop().time())
        return await submit(decide)

    stage.log.submit = counted  # type: ignore[method-assign]
    return times


# --- periodic work -----------------------------------------------------------------------------------------------


def test_expired_delegation_tokens_are_removed_in_every_interval() -> None:
    settings = {"delegation.token.secret.key": "s", "delegation.token.expiry.check.interval.ms": "10000"}

    async def script(stage: Stage) -> None:
        tokens = {str(end): TokenImage("User:a", "User:a", (), 0, 100_000, end) for end in (5_000, 15_000, 90_000)}
        stage.log.image = replace(stage.log.image, delegation_tokens=tokens)
        await asyncio.sleep(9)
        left = [sorted(stage.log.image.delegation_tokens)]
        for _ in range(2):
            await asyncio.sleep(10)
            left.append(sorted(stage.log.image.delegation_tokens))
        assert left == [["15000", "5000", "90000"], ["15000", "90000"], ["90000"]]

    play(script, settings)


def test_unclean_leaders_are_elected_in_every_interval_if_the_settings_allow_it() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(2, 3)
        for _ in range(2):
            stage.topic(LEADERLESS, LEADERLESS)
            await stage.keep_beating(2, 3, seconds=21)
        leaders = [one.leader for one in stage.log.image.topics["t"].partitions.values()]
        assert leaders == [2 if stage.controller.rules.unclean_leader_election else -1] * 2

    settings = {"unclean.leader.election.interval.ms": "20000"}
    assert play(script, {**settings, UNCLEAN: "true"}).controller.unclean_elections == 4
    assert play(script, settings).controller.unclean_elections == 0


def test_preferred_leaders_are_elected_in_every_interval_and_do_not_count_as_unclean() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2, 3)
        for _ in range(2):
            stage.topic(replace(PARTITION, leader=2))
            await stage.keep_beating(1, 2, 3, seconds=21)
            assert stage.partition.leader == 1

    stage = play(script, {"leader.imbalance.check.interval.seconds": "20"})
    assert stage.controller.unclean_elections == 0


@pytest.mark.parametrize("how", ["deposed", "closed"])
def test_controller_that_is_deposed_or_closed_decides_nothing_more(how: str) -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        stage.network.ports = {1: "silent"}
        stage.connections[1].close()  # a probe is running
        await asyncio.sleep(0.5)
        times = count_decisions(stage)
        if how == "closed":
            await stage.controller.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert not stage.controller.active
            await asyncio.sleep(100)
            assert times == []
            stage.log.lead(False)
            stage.log.lead(True)
        else:
            stage.log.leading = False
            stage.controller._leadership_changed(False)
        assert not stage.controller.active
        stage.network.ports = {1: "refuses", 2: "refuses"}
        stage.connections[2].close()
        await asyncio.sleep(1000)
        assert times == []
        assert stage.fenced() == []

    intervals = {
        "delegation.token.secret.key": "s",
        "delegation.token.expiry.check.interval.ms": "10000",
        "unclean.leader.election.interval.ms": "20000",
        "leader.imbalance.check.interval.seconds": "20",
    }
    play(script, intervals)


def test_config_change_starts_elections_only_for_topics_or_brokers_and_leaderless_partitions() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(2, 3)
        for kind, name, partition, is_started in (
            (TOPIC, "t", LEADERLESS, True),
            (BROKER, "", LEADERLESS, True),
            (GROUP, "g", LEADERLESS, False),
            (TOPIC, "t", PARTITION, False),
        ):
            stage.topic(partition)
            times = count_decisions(stage)
            stage.log.write([ConfigRecord(resource_type=kind, resource_name=name, name="x", value="1")])
            await asyncio.sleep(0.01)
            assert bool(times) == is_started, (kind, partition.leader)
        stage.topic(LEADERLESS)
        stage.log.lead(False)
        times, events = count_decisions(stage), len(stage.events)
        stage.log.write([ConfigRecord(resource_type=TOPIC, resource_name="t", name="y", value="1")])
        await asyncio.sleep(0.01)
        assert (times, len(stage.events)) == ([], events)  # only the active controller elects and emits events

    play(script)


# --- suspected brokers -------------------------------------------------------------------------------------------


def test_new_controller_probes_all_unfenced_brokers_but_not_itself() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2, 3, 9)
        await stage.register(4)  # stays fenced
        stage.log.lead(False)
        stage.network.ports = dict.fromkeys((1, 3, 4, 9), "refuses")
        stage.log.lead(True)
        await asyncio.sleep(0.01)
        assert stage.fenced() == [1, 3, 4]
        assert set(stage.network.tried) == {1, 2, 3}

    play(script)


def test_suspected_broker_that_accepts_connections_is_probed_a_few_times() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        stage.connections[1].close()
        await asyncio.sleep(5)
        assert stage.network.tried == [1] * len(PROBES_AFTER_S)

    play(script)


def test_probes_end_when_the_broker_is_fenced_or_registers_again() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        stage.connections.pop(1).close()
        await asyncio.sleep(0.05)
        await stage.register_alive(1, life=2)
        await stage.beat(1)
        before = len(stage.network.tried)
        stage.network.ports[1] = "refuses"
        await asyncio.sleep(3)
        assert (stage.fenced(), len(stage.network.tried)) == ([], before)
        await stage.controller.unregister(1)
        assert 1 not in stage.controller.beats.sessions
        stage.connections.pop(1).close()
        await asyncio.sleep(3)
        assert len(stage.network.tried) == before

    play(script)


@pytest.mark.parametrize("change", [-1, 1, None])
def test_broker_that_registers_again_or_leaves_before_the_fencing_is_decided_is_not_fenced(change: int | None) -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        stage.network.ports[1] = "refuses"
        submit = stage.log.submit

        async def after_change(decide: Any) -> Any:
            brokers = dict(stage.log.image.brokers)
            known = brokers.pop(1)
            if change is not None:
                brokers[1] = replace(known, epoch=known.epoch + change)
            stage.log.image = replace(stage.log.image, brokers=brokers)
            stage.log.submit = submit  # type: ignore[method-assign]
            return await submit(decide)

        stage.log.submit = after_change  # type: ignore[method-assign]
        stage.connections[1].close()
        await asyncio.sleep(0.5)
        assert stage.fenced() == []
        assert (1 in stage.log.image.brokers) == (change is not None)

    stage = play(script)
    assert (stage.controller.failovers.count, stage.controller.failovers.failed) == (0, 0)


def test_connection_is_watched_once_for_each_registration() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        for _ in range(3):
            await stage.beat(1)
        connection = stage.connections[1]
        assert len(connection._callbacks) == 1
        stage.log.image = replace(
            stage.log.image, brokers={**stage.log.image.brokers, 1: replace(stage.log.image.brokers[1], epoch=99)}
        )
        await stage.beat(1)
        assert len(connection._callbacks) == 2
        stage.network.ports[1] = "refuses"
        connection.close()
        await asyncio.sleep(0.01)
        assert stage.fenced() == [1]

    play(script)


def test_heartbeat_with_a_wrong_epoch_does_not_change_the_session_of_the_registered_broker() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1)
        session = stage.controller.beats.sessions[1]
        before = replace(session)
        for wrong in (session.epoch - 1, session.epoch + 1):
            await asyncio.sleep(1)
            with pytest.raises(KafkaError):
                await stage.beat(1, broker_epoch=wrong)
            assert stage.controller.beats.sessions[1] is session
            assert session == before

    play(script)


def test_suspicions_are_ignored_without_a_guard() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1)
        assert not (await stage.beat(1, suspicions=[Suspicion(node_id=2)])).is_fenced

    play(script)


def test_all_silent_brokers_are_fenced_and_only_heard_brokers_have_a_last_heartbeat() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2, 3)
        stage.log.lead(False)
        stage.log.lead(True)
        await asyncio.sleep(2)
        heard_ms = int(asyncio.get_running_loop().time() * 1000)
        await stage.beat(2)
        await stage.keep_beating(3, seconds=14)
        assert stage.fenced() == [1, 2]
        events = [one for one in stage.events if isinstance(one, BrokerFenced)]
        assert [(one.broker_id, one.last_heard_ms) for one in events] == [(1, None), (2, heard_ms)]

    play(script)


def test_fencing_that_is_not_committed_is_counted_as_failed_and_tried_again() -> None:
    async def script(stage: Stage) -> None:
        await stage.join(1, 2)
        submit, failures = stage.log.submit, [2]

        async def failing(decide: Any) -> Any:
            if failures[0] and decide(stage.log.image).records:
                failures[0] -= 1
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "not committed")
            return await submit(decide)

        stage.log.submit = failing  # type: ignore[method-assign]
        await stage.keep_beating(2, seconds=14)
        assert stage.fenced() == [1]
        assert (stage.controller.failovers.failed, stage.controller.failovers.count) == (2, 1)

    play(script)


def test_probe_closes_its_connection() -> None:
    class Transport(asyncio.Transport):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    transport = Transport()
    _Probe().connection_made(transport)
    assert transport.closed == 1


# --- tables ------------------------------------------------------------------------------------------------------


def test_failovers_count_decided_fencings_and_list_all_fencings() -> None:
    events: list[NodeEvent] = []
    now_ms = [1000]
    failovers = Failovers(lambda: now_ms[0], events.append)
    assert list(failovers) == []
    failovers.decided(1, 5, Detection("was silent", 900, 800, silent=True))
    failovers.decided(2, 6, Detection("refused", 1100, None, silent=False))  # the clock went back
    failovers.decided(4, 7, Detection("refused", 900, None, silent=False))
    fencings = (Fencing(1, 5, 1, 10), Fencing(2, 6, 2, 20), Fencing(3, 9, 3, 30), Fencing(4, 8, 4, 40))
    failovers.apply(replace(EMPTY_IMAGE, changes=ImageChanges(fencings=fencings)))
    listed = [(one.broker_id, one.elected_ms, one.partitions, one.how, one.detected_ms) for one in failovers]
    assert listed == [
        (1, 1000, 10, "was silent", 900),
        (2, 1000, 20, "refused", 1100),
        (3, 3, 30, None, None),
        (4, 4, 40, None, None),  # another epoch than the one that this controller decided to fence
    ]
    assert failovers.last is list(failovers)[-1]
    assert (failovers.count, failovers.failed) == (2, 0)
    assert failovers.until_elected.total == 100
    fenced = [(one.broker_id, one.last_heard_ms) for one in events if isinstance(one, BrokerFenced)]
    assert fenced == [(1, 800), (2, None)]
    assert [one.nodes for one in events if isinstance(one, NetworkPartitionSuspected)] == [(1,)]
    for broker_id, epoch, failed in ((1, 5, 0), (4, 8, 0), (4, 7, 1), (4, 7, 1)):
        failovers.ended(broker_id, epoch)
        assert failovers.failed == failed
    for old, new, count in ((1, 0, 3), (2, 5, 4), (3, -1, 5), (8, 1, 7), (8, -1, 7)):
        failovers.note(LeaderElected((), count, old, new, unclean=False))
    assert failovers.partitions == {"elected": 7, "leaderless": 5}


def test_oldest_suspicion_is_dropped_beyond_the_limit() -> None:
    now_s = [0.0]
    suspicions = Suspicions(lambda: now_s[0])
    for offset in range(MAX_SUSPICIONS + 2):
        assert suspicions.add(1, bytes(16), 0, offset)
    assert not suspicions.add(1, bytes(16), 0, 2)  # renewed, but not moved behind the others
    sent: list[int] = []
    while due := suspicions.due():
        assert len(due) <= PER_HEARTBEAT
        sent += [one.offset for one in due]
    assert sent == list(range(2, MAX_SUSPICIONS + 2))


def test_suspicions_are_sent_again_until_they_are_old() -> None:
    now_s = [0.0]
    suspicions = Suspicions(lambda: now_s[0])
    count = PER_HEARTBEAT + 2
    for partition in range(count):
        assert suspicions.add(1, bytes(16), partition, 5)
    assert not suspicions.add(1, bytes(16), 0, 5)

    def due() -> list[int]:
        return [one.partition for one in suspicions.due()]

    assert due() == list(range(PER_HEARTBEAT))
    assert due() == [PER_HEARTBEAT, PER_HEARTBEAT + 1]
    now_s[0] = RESEND_S - 0.1
    assert due() == []
    now_s[0] = RESEND_S
    assert due() == list(range(PER_HEARTBEAT))
    now_s[0] = KEEP_S - 1
    assert not suspicions.add(1, bytes(16), 0, 5)  # renewed
    assert due() == list(range(PER_HEARTBEAT))
    now_s[0] = KEEP_S
    assert suspicions.due() == []
    now_s[0] = 2 * KEEP_S - 2
    assert due() == [0]
    now_s[0] = 2 * KEEP_S - 1
    assert suspicions.due() == []
    assert suspicions.add(1, bytes(16), 0, 5)


def test_producer_ids_come_from_blocks_without_gaps_or_repetitions() -> None:
    blocks = [(10, 2), (50, 1), (70, 3)]

    async def allocate() -> tuple[int, int]:
        await asyncio.sleep(0)
        return blocks.pop(0)

    async def script() -> None:
        ids = ProducerIds(allocate)
        assert ids.take() is None
        await ids.ready()
        assert [ids.take(), ids.take(), ids.take(), ids.take()] == [10, 11, None, None]
        assert await asyncio.gather(*(ids.next() for _ in range(3))) == [50, 70, 71]
        assert [ids.take(), ids.take()] == [72, None]

    asyncio.run(script())
