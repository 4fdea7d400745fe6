"""Tests the metadata log of a quorum of one node: commits, restarts, crashes and snapshots.

A crash loses unsynced data of the disk.
"""

import asyncio
import itertools
from collections.abc import Callable
from random import Random

import pytest

from penstock.broker.controlplane.metadata_log import MetadataLog, SnapshotPolicy
from penstock.broker.controlplane.metadata_storage import (
    DIRECTORY,
    SnapshotStore,
    StorageError,
    open_metadata_log,
    replay,
)
from penstock.broker.controlplane.quorum import Quorum
from penstock.broker.controlplane.quorum_files import QuorumFiles
from penstock.clock import ManualClock
from penstock.disk.memory import MemoryDisk
from penstock.log.log import AppendOrigin
from penstock.metadata.apply import apply
from penstock.metadata.checkpoint import checkpoint_name, write_checkpoint
from penstock.metadata.controller.broker_states import fence_broker, unfence_broker
from penstock.metadata.controller.brokers import Registration, register_broker
from penstock.metadata.controller.topics import TopicDefaults, create_topics, delete_topics
from penstock.metadata.decision import Decision
from penstock.metadata.image import EMPTY_IMAGE, Endpoint, Fencing, MetadataImage
from penstock.metadata.quorum_state import QUORUM_STATE_FILE, QuorumState
from penstock.metadata.snapshot import records_of
from penstock.metadata.voters import Voter
from penstock.net.network import RealNetwork
from penstock.node.storage import FormatPlan, format_storage, read_meta_properties
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.messages.api_19_create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.protocol.messages.api_20_delete_topics import DeleteTopicState
from penstock.protocol.persisted.metadata.begin_transaction_record import BeginTransactionRecord
from penstock.protocol.persisted.metadata.config_record import ConfigRecord
from penstock.protocol.vocabulary import ResourceType
from penstock.raft.config import RaftConfig
from penstock.raft.voters import VoterSet
from penstock.records.build import build_batch

DIR = "/data"
ENDPOINTS = (("CONTROLLER", "localhost", 9093),)
DEFAULTS = TopicDefaults(1, 1)
LIMIT_S = 120.0


def formatted_disk() -> MemoryDisk:
    disk = MemoryDisk(crashable=True)
    plan = FormatPlan([DIR], node_id=1, cluster_id="c", controller_endpoints=ENDPOINTS)
    format_storage(disk, plan, random=Random(1), now_ms=1)
    return disk


def opened(
    disk: MemoryDisk, policy: SnapshotPolicy | None = None, on_fatal: Callable[[Exception], None] | None = None
) -> MetadataLog:
    clock = ManualClock()
    properties = read_meta_properties(disk, DIR)
    assert properties is not None
    assert properties.directory_id is not None
    me = Voter(1, properties.directory_id, ENDPOINTS)
    log = open_metadata_log(disk, DIR, clock, Random(2))
    files = QuorumFiles(log, disk, clock, SnapshotStore(disk, log.path), VoterSet.of([me]))
    quorum = Quorum(files, RealNetwork(), Random(3), me, cluster_id="c", config=RaftConfig())
    return MetadataLog(log, disk, clock, me, quorum, policy=policy, on_fatal=on_fatal)


async def started(
    disk: MemoryDisk, policy: SnapshotPolicy | None = None, on_fatal: Callable[[Exception], None] | None = None
) -> MetadataLog:
    """Starts the metadata log. Returns it once the node leads the quorum and all records are committed."""
    metadata = opened(disk, policy, on_fatal)
    await metadata.start(bootstrap_path=f"{DIR}/bootstrap.checkpoint")
    elected = asyncio.Event()
    metadata.watch_leadership(lambda leads: elected.set() if leads else None)
    async with asyncio.timeout(LIMIT_S):
        await elected.wait()
    await metadata.submit(lambda image: Decision([], None))
    return metadata


async def with_broker(metadata: MetadataLog) -> None:
    registration = Registration(
        1, bytes(15) + b"\x09", {"PLAINTEXT": Endpoint("localhost", 9092, 0)}, [bytes(14) + b"\x01\x05"]
    )
    epoch = await metadata.submit(lambda image: register_broker(image, registration))
    await metadata.submit(lambda image: unfence_broker(image, 1, epoch))


def creating(*names: str, partitions: int = 1, seed: int = 3) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    )


async def create(metadata: MetadataLog, *names: str, partitions: int = 1) -> CreateTopicsResponse:
    request = creating(*names, partitions=partitions)
    return await metadata.submit(lambda image: create_topics(image, request, DEFAULTS, Random(str(names))))


async def delete(metadata: MetadataLog, name: str) -> None:
    await metadata.submit(lambda image: delete_topics(image, [DeleteTopicState(name=name)]))


def run(coroutine: object) -> None:
    asyncio.run(coroutine)  # type: ignore[arg-type]


def test_new_metadata_log_starts_with_the_features_chosen_at_formatting() -> None:
    async def scenario() -> None:
        metadata = await started(formatted_disk())
        assert metadata.image.features == {
            "metadata.version": 30,
            "kraft.version": 1,
            "eligible.leader.replicas.version": 1,
            "group.version": 1,
            "share.version": 1,
            "streams.version": 1,
            "transaction.version": 2,
        }
        assert metadata.image.config(ResourceType.BROKER, "") == {"min.insync.replicas": "1"}
        view = metadata.quorum()
        assert (view.leader_id, view.leader_epoch) == (1, 1)
        assert view.high_watermark == view.log_end_offset == metadata.image.offset + 1 == 12
        assert view.voters[0].endpoints == ENDPOINTS

    run(scenario())


def test_restart_gives_the_same_metadata_image_and_a_higher_epoch() -> None:
    async def scenario() -> None:
        disk = formatted_disk()
        first = await started(disk)
        await with_broker(first)
        await create(first, "a", "b.c", partitions=3)
        await delete(first, "a")
        await first.close()
        second = await started(disk)
        assert second.leader_epoch == first.leader_epoch + 1
        assert second.image.topics == first.image.topics
        assert second.image.brokers == first.image.brokers
        assert second.image.configs == first.image.configs
        assert second.image.names_by_collision_key == {"b_c": ("b.c",)}
        state = QuorumState.from_bytes(disk.read_bytes(f"{DIR}/{DIRECTORY}/{QUORUM_STATE_FILE}"))
        assert (state.leader_id, state.leader_epoch) == (1, second.leader_epoch)

    run(scenario())


def test_replaying_a_metadata_log_twice_gives_equal_images() -> None:
    async def scenario() -> None:
        disk = formatted_disk()
        metadata = await started(disk)
        await with_broker(metadata)
        for index in range(20):
            await create(metadata, f"t{index}", partitions=2)
        await delete(metadata, "t7")
        await metadata.close()
        images = []
        for _ in range(2):
            log = open_metadata_log(disk, DIR, ManualClock(), Random(2))
            start = SnapshotStore(disk, log.path).latest()
            images.append(replay(log, start, log.log_end_offset).image)
            log.close()
        assert images[0] == images[1] == metadata.image

    run(scenario())


def test_concurrent_metadata_changes_see_each_other_before_they_are_committed() -> None:
    async def scenario() -> None:
        metadata = await started(formatted_disk())
        await with_broker(metadata)
        replies = await asyncio.gather(*(create(metadata, "same") for _ in range(5)))
        codes = sorted(reply.topics[0].error_code for reply in replies)
        assert codes == [ErrorCode.NONE, *[ErrorCode.TOPIC_ALREADY_EXISTS] * 4]

    run(scenario())


def test_metadata_listeners_get_every_change_once_and_before_the_reply() -> None:
    async def scenario() -> None:
        metadata = await started(formatted_disk())
        await with_broker(metadata)
        seen: list[tuple[MetadataImage, MetadataImage]] = []
        metadata.subscribe(lambda old, new: seen.append((old, new)))

        async def create_and_look(name: str) -> None:
            await create(metadata, name)
            assert name in seen[-1][1].topics

        await asyncio.gather(*(create_and_look(f"t{index}") for index in range(10)))
        for (_, before), (after, _) in itertools.pairwise(seen):
            assert before is after
        changed = set().union(*(new.changes.topics for _, new in seen))
        assert changed == {f"t{index}" for index in range(10)}

    run(scenario())


def test_failing_metadata_listener_does_not_affect_other_listeners(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        metadata = await started(formatted_disk())
        seen: list[int] = []

        def broken(old: MetadataImage, new: MetadataImage) -> None:
            raise ValueError("broken")

        metadata.subscribe(broken)
        metadata.subscribe(lambda old, new: seen.append(new.offset))
        before = metadata.image.offset
        await with_broker(metadata)
        assert seen == [before + 1, before + 2]

    run(scenario())


def test_metadata_decision_that_raises_an_error_writes_no_record() -> None:
    async def scenario() -> None:
        metadata = await started(formatted_disk())
        before = metadata.quorum().log_end_offset

        def refuse(image: MetadataImage) -> Decision[None]:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "no")

        with pytest.raises(KafkaError):
            await metadata.submit(refuse)
        assert metadata.quorum().log_end_offset == before

    run(scenario())


def test_next_leader_aborts_an_unfinished_metadata_transaction() -> None:
    async def scenario() -> None:
        disk = formatted_disk()
        metadata = await started(disk)
        config = ConfigRecord(resource_type=2, resource_name="t", name="retention.ms", value="1")
        await metadata.submit(lambda image: Decision([BeginTransactionRecord(name="x"), config], None))
        assert metadata.image.open_transaction == (config,)
        assert metadata.image.topic_config("t") == {}
        await metadata.close()
        again = await started(disk)
        assert again.image.open_transaction is None
        assert again.image.topic_config("t") == {}

    run(scenario())


def test_replaying_the_metadata_log_restores_when_each_broker_was_fenced() -> None:
    async def scenario() -> None:
        disk = formatted_disk()
        metadata = await started(disk)
        await with_broker(metadata)
        await create(metadata, "t", partitions=3)
        await metadata.submit(lambda image: fence_broker(image, 1))
        (live,) = metadata.image.changes.fencings
        assert (live.broker_id, live.partitions) == (1, 3)
        await metadata.close()
        again = opened(disk)
        seen: list[Fencing] = []
        again.subscribe(lambda old, new: seen.extend(new.changes.fencings))
        await again.start(bootstrap_path=f"{DIR}/bootstrap.checkpoint")
        async with asyncio.timeout(LIMIT_S):
            while not seen:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert seen == [live]
        await again.close()

    run(scenario())


def test_metadata_change_larger_than_a_batch_is_written_as_one_metadata_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        disk = formatted_disk()
        metadata = await started(disk)
        await with_broker(metadata)
        await create(metadata, "wide", partitions=300)
        assert len(metadata.image.topics["wide"].partitions) == 300
        await metadata.close()
        again = await started(disk)
        assert again.image.topics == metadata.image.topics

    monkeypatch.setattr("penstock.broker.controlplane.metadata_batches.MAX_BATCH_BYTES", 4096)
    run(scenario())


def test_metadata_snapshot_replaces_the_log_before_it_and_restores_the_same_image() -> None:
    async def scenario() -> None:
        disk = formatted_disk()
        metadata = await started(disk)
        await with_broker(metadata)
        for index in range(10):
            await create(metadata, f"t{index}", partitions=2)
        name = await metadata.snapshot()
        await create(metadata, "tail")
        names = disk.listdir(f"{DIR}/{DIRECTORY}")
        assert [found for found in names if found.endswith(".checkpoint")] == [name]
        assert "00000000000000000000.log" not in names
        await metadata.close()
        again = await started(disk)
        assert again.image.topics == metadata.image.topics
        assert again.image.brokers == metadata.image.brokers
        assert again.image.features == metadata.image.features
        assert again.quorum().voters == metadata.quorum().voters

    run(scenario())


def test_metadata_snapshot_is_written_after_enough_bytes_of_records() -> None:
    async def scenario() -> None:
        disk = formatted_disk()
        metadata = await started(disk, SnapshotPolicy(bytes_between=2000))
        await with_broker(metadata)
        for index in range(30):
            await create(metadata, f"t{index}")
            await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        await metadata.close()
        ends = [end for end, _, _ in SnapshotStore(disk, f"{DIR}/{DIRECTORY}").names()]
        assert len(ends) == 1
        assert ends[0] > 30
        again = await started(disk)
        assert again.image.topics == metadata.image.topics

    run(scenario())


def test_previous_snapshot_is_loaded_if_the_last_snapshot_is_torn() -> None:
    async def scenario() -> None:
        disk = formatted_disk()
        metadata = await started(disk)
        await with_broker(metadata)
        await create(metadata, "a")
        await metadata.close()
        path = f"{DIR}/{DIRECTORY}/{metadata.image.offset + 1:020d}-{metadata.image.epoch:010d}.checkpoint"
        disk.write_atomic(path, b"\0" * 100)
        again = await started(disk)
        assert again.image.topics == metadata.image.topics

    run(scenario())


def test_records_of_a_metadata_snapshot_build_the_same_image() -> None:
    async def scenario() -> None:
        metadata = await started(formatted_disk())
        await with_broker(metadata)
        await create(metadata, "a.b", "c", partitions=4)
        image = metadata.image
        rebuilt = apply(EMPTY_IMAGE, records_of(image), offset=image.offset, epoch=image.epoch)
        assert rebuilt.topics == image.topics
        assert rebuilt.topics_by_id == image.topics_by_id
        assert rebuilt.brokers == image.brokers
        assert rebuilt.partition_count == image.partition_count == 8

    run(scenario())


@pytest.mark.parametrize("seed", range(30))
def test_acknowledged_metadata_changes_survive_a_crash_at_any_moment(seed: int) -> None:
    async def scenario() -> None:
        random = Random(seed)
        disk = formatted_disk()
        acknowledged: set[str] = set()
        attempted: set[str] = set()
        policy = SnapshotPolicy(bytes_between=random.choice([1500, 10**9]))
        for life in range(4):
            metadata = await started(disk, policy)
            assert not acknowledged - metadata.image.topics.keys()
            assert metadata.image.topics.keys() <= attempted
            if not metadata.image.brokers:
                await with_broker(metadata)
            names = [f"t{life}-{index}" for index in range(random.randint(1, 12))]
            attempted |= set(names)
            tasks = [asyncio.ensure_future(create(metadata, name)) for name in names]
            for _ in range(random.randint(0, 12)):
                await asyncio.sleep(0)
            disk = disk.crash(random)
            acknowledged |= {name for name, task in zip(names, tasks, strict=True) if task.done()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    run(scenario())


def test_disk_error_stops_the_metadata_log_and_is_reported_once() -> None:
    async def scenario() -> None:
        disk = formatted_disk()
        fatal: list[Exception] = []
        metadata = await started(disk, on_fatal=fatal.append)
        await with_broker(metadata)

        def full(operation: str, path: str) -> None:
            raise OSError(28, "No space left on device")

        disk.on_write = full
        for _ in range(2):
            with pytest.raises(KafkaError) as refusal:
                await create(metadata, "a")
            assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert len(fatal) == 1
        assert metadata.image.topics == {}

    run(scenario())


async def start_fails(disk: MemoryDisk, message: str) -> None:
    kept = (".log", ".checkpoint", QUORUM_STATE_FILE)
    names = [f"{DIR}/{DIRECTORY}/{name}" for name in disk.listdir(f"{DIR}/{DIRECTORY}") if name.endswith(kept)]
    before = {name: disk.read_bytes(name) for name in names}
    metadata = opened(disk)
    with pytest.raises(StorageError, match=message):
        await metadata.start(bootstrap_path=f"{DIR}/bootstrap.checkpoint")
    assert not metadata.leading
    for name, content in before.items():
        assert disk.read_bytes(name) == content


def test_single_running_node_of_a_three_voter_quorum_does_not_lead_and_refuses_changes() -> None:
    async def scenario() -> None:
        disk = formatted_disk()
        voters = [Voter(node_id, bytes([node_id] * 16)) for node_id in (1, 2, 3)]
        content = b"".join(write_checkpoint((), epoch=0, timestamp_ms=1, kraft_version=1, voters=voters))
        disk.write_atomic(f"{DIR}/{DIRECTORY}/{checkpoint_name(0, 0)}", content)
        metadata = opened(disk)
        await metadata.start(bootstrap_path=f"{DIR}/bootstrap.checkpoint")
        assert [voter.node_id for voter in metadata.quorum().voters] == [1, 2, 3]
        assert not metadata.leading
        with pytest.raises(KafkaError) as refusal:
            await create(metadata, "a")
        assert refusal.value.code is ErrorCode.NOT_CONTROLLER
        assert metadata.quorum().log_end_offset == 0
        await metadata.abandon()

    run(scenario())


def test_metadata_log_that_starts_after_offset_zero_without_a_snapshot_is_refused() -> None:
    async def scenario() -> None:
        disk = formatted_disk()
        metadata = await started(disk)
        await with_broker(metadata)
        name = await metadata.snapshot()
        await create(metadata, "a")
        await metadata.close()
        disk.remove(f"{DIR}/{DIRECTORY}/{name}")
        await start_fails(disk, "no snapshot has the records before it")

    run(scenario())


def test_unknown_metadata_record_type_of_a_newer_release_stops_the_node_and_is_named_in_the_error() -> None:
    async def scenario() -> None:
        disk = formatted_disk()
        await (await started(disk)).close()
        log = open_metadata_log(disk, DIR, ManualClock(), Random(2))
        batch = build_batch([(1, None, b"\x01\x63\x00\x00", ())])
        log.append_as_leader(batch, leader_epoch=1, now_ms=1, origin=AppendOrigin.RAFT_LEADER)
        log.flush_now()
        log.close()
        fatal: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        metadata = opened(disk, on_fatal=fatal.set_result)
        await metadata.start()
        async with asyncio.timeout(LIMIT_S):
            error = await fatal
        assert "metadata record type 99" in str(error)
        assert not metadata.leading
        with pytest.raises(KafkaError, match="metadata record type 99"):
            await create(metadata, "a")

    run(scenario())


def test_node_with_a_damaged_bootstrap_file_does_not_start() -> None:
    async def scenario() -> None:
        disk = formatted_disk()
        disk.write_atomic(f"{DIR}/bootstrap.checkpoint", b"torn")
        await start_fails(disk, "format the directory again")

    run(scenario())
