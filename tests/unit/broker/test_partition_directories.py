"""Tests in which directory a broker opens the log of a replica, and what happens to logs that it finds elsewhere."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from itertools import product

import pytest
from disk_node import NODE_ID, A, B, C, DiskNode, soon, topic_id, with_topics
from replica_cluster import run

from penstock.disk.memory import MemoryDisk
from penstock.log.checkpoints import PARTITION_METADATA_FILE, render_partition_metadata
from penstock.metadata.configs.topic import LogConfig
from penstock.metadata.image import (
    EMPTY_IMAGE,
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    ImageChanges,
    MetadataImage,
)
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.uuid import ZERO_UUID
from penstock.protocol.vocabulary import ResourceType

UNKNOWN = b"another directory"[:16]
OTHER_ID = topic_id("an earlier t")
BROKEN = OSError(errno.EIO, "broken")
THROTTLED = {"replica.alter.log.dirs.io.max.bytes.per.second": "1"}


async def formatted() -> tuple[MemoryDisk, dict[str, bytes]]:
    """Returns a disk with three formatted log directories, and the ids of these directories."""
    node = await DiskNode().start()
    ids = {each.path: each.directory_id for each in node.logs.dirs}
    await node.stop()
    return node.disk, ids


def opened(node: DiskNode) -> str | ErrorCode:
    """Opens the log of t-0. Returns its directory, or the error."""
    try:
        return node.log().log_dir
    except KafkaError as error:
        return error.code


def expected(wanted: str, offline: str | None, asked: str | None, *, new: bool) -> tuple[str | ErrorCode, list[str]]:
    """Returns the directory in which a broker without the replica's log creates it, and the directory that it reports.

    No log is created while it may exist in an offline directory.
    """
    if wanted in (A, B, C):
        return (ErrorCode.KAFKA_STORAGE_ERROR, []) if wanted == offline else (wanted, [wanted])
    if offline is not None and not (wanted == "unassigned" and new):
        return ErrorCode.KAFKA_STORAGE_ERROR, ["lost"] if wanted == "unassigned" else []
    place = asked if asked is not None and asked != offline else min({A, B, C} - {offline, None})
    return place, [place]


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("asked", [None, C])
@pytest.mark.parametrize("offline", [None, B, C])
def test_new_log_is_created_in_the_assigned_or_requested_directory_unless_an_offline_directory_may_have_the_log(
    offline: str | None, asked: str | None, new: bool
) -> None:
    async def scenario() -> None:
        disk, ids = await formatted()
        names = {
            **ids,
            "unassigned": UNASSIGNED_DIRECTORY,
            "migrating": MIGRATING_DIRECTORY,
            "lost": LOST_DIRECTORY,
            "unknown": UNKNOWN,
        }
        by_id = {each: name for name, each in names.items()}
        for wanted in names:
            node = DiskNode(disk)
            await node.logs.open(node_id=NODE_ID, cluster_id="c")
            if offline is not None:
                node.logs.take_offline(node.directory(offline), BROKEN)
            if new:
                node.apply(EMPTY_IMAGE)
            if asked is not None:
                node.moves.request("t", 0, node.directory(asked), None)
            node.apply(with_topics(EMPTY_IMAGE, ("t",), directory=names[wanted]))
            found = opened(node), [by_id[each] for _, _, each in node.placed]
            assert found == expected(wanted, offline, asked, new=new), wanted
            await node.stop()
            for path in (A, B, C):
                if disk.exists(f"{path}/t-0"):
                    disk.remove_tree(f"{path}/t-0")

    run(scenario())


def test_existing_log_gets_the_topics_config_and_stays_in_its_directory_which_the_broker_reports() -> None:
    async def scenario() -> None:
        disk, ids = await formatted()
        image = with_topics(EMPTY_IMAGE, ("t",), directory=ids[B])
        node = await DiskNode(disk).start(image)
        assert opened(node) == B
        await node.stop()
        for wanted in (ids[B], ids[A], UNASSIGNED_DIRECTORY, UNKNOWN):
            changed = with_topics(EMPTY_IMAGE, ("t",), directory=wanted, configs={"retention.ms": "4000"})
            again = await DiskNode(disk).start(changed)
            assert (opened(again), again.placed) == (B, [("t", 0, ids[B])])
            assert (again.log().config.retention_ms, again.log().topic_id) == (4000, topic_id("t"))
            await again.stop()

    run(scenario())


def test_log_without_a_topic_id_gets_the_id_of_its_topic() -> None:
    async def scenario() -> None:
        disk, ids = await formatted()
        image = with_topics(EMPTY_IMAGE, ("t",), directory=ids[B])
        node = await DiskNode(disk).start(image)
        node.write(1)
        await node.stop()
        disk.remove(f"{B}/t-0/{PARTITION_METADATA_FILE}")
        again = await DiskNode(disk).start(image)
        assert (again.log().topic_id, again.log().log_end_offset) == (topic_id("t"), 1)
        await again.stop()
        assert disk.read_bytes(f"{B}/t-0/{PARTITION_METADATA_FILE}") == render_partition_metadata(topic_id("t"))

    run(scenario())


# Future logs that an earlier process left.


def copy_tree(disk: MemoryDisk, source: str, target: str, owner: bytes) -> None:
    """Copies the directory of a log, and makes it a log of the topic with the id `owner`."""
    disk.mkdir(target)
    for name in disk.listdir(source):
        disk.write_new(f"{target}/{name}", disk.read_bytes(f"{source}/{name}"))
    disk.write_atomic(f"{target}/{PARTITION_METADATA_FILE}", render_partition_metadata(owner))


async def with_copies(*names: str, owner: bytes | None = None, keep_current: bool = False) -> MemoryDisk:
    """Returns a disk with future logs of the partitions 0 in the directories B and C, and without their current logs.

    The future logs belong to the topic id `owner`, by default to their topic.
    """
    node = await DiskNode(settings=THROTTLED).start()
    for name in names:
        node.move(A, name)
    node.create(*names)
    for name in names:
        node.write(20, topic=name)
        node.move(B, name)
    await soon(lambda: any(each.copied_bytes for each in node.moves.figures()))
    await node.stop()
    disk = node.disk
    for name in names:
        [copy] = [each for each in disk.listdir(B) if each.startswith(f"{name}-0.")]
        if not keep_current:
            disk.remove_tree(f"{A}/{name}-0")
        mine = owner or topic_id(name)
        copy_tree(disk, f"{B}/{copy}", f"{C}/{copy}", mine)
        if owner is not None:
            disk.write_atomic(f"{B}/{copy}/{PARTITION_METADATA_FILE}", render_partition_metadata(owner))
    return disk


def kinds(node: DiskNode) -> dict[str, list[str]]:
    """Returns, for each directory, whether it has the log, a future log or a deleted log of t-0."""
    return {path: [name.rpartition("-")[2] for name in node.names(path) if name.startswith("t-0")] for path in (B, C)}


@pytest.mark.parametrize(("offline", "owner"), list(product([False, True], [None, OTHER_ID, ZERO_UUID])))
@pytest.mark.parametrize("named", [B, C, None])
def test_future_log_replaces_a_lost_log_only_in_the_assigned_directory_and_for_the_same_topic(
    named: str | None, offline: bool, owner: bytes | None
) -> None:
    """Other future logs are removed. They are kept only if they may be the last copy: while a directory is offline."""

    async def scenario() -> None:
        disk, current = await with_copies("t", owner=owner), owner is None
        node = DiskNode(disk)
        await node.logs.open(node_id=NODE_ID, cluster_id="c")
        if offline:
            node.logs.take_offline(node.directory(A), BROKEN)
        wanted = UNASSIGNED_DIRECTORY if named is None else node.directory(named).directory_id
        node.apply(with_topics(EMPTY_IMAGE, ("t",), directory=wanted))
        found = opened(node)
        adopted = named is not None and current
        rest = ["future"] if offline and owner != OTHER_ID and not adopted else ["delete"]
        places = {B: rest, C: rest}
        if named is None:
            assert found == (ErrorCode.KAFKA_STORAGE_ERROR if offline else A)
        else:
            assert found == named
            places[named] = ["0"] if current else ["0", *rest]
        assert kinds(node) == places
        assert (found in (B, C) and node.log().log_end_offset > 0) == adopted
        await node.stop()

    run(scenario())


def test_all_future_logs_of_an_earlier_topic_are_removed_when_the_log_of_the_current_topic_is_opened() -> None:
    async def scenario() -> None:
        disk = await with_copies("t", owner=OTHER_ID, keep_current=True)
        node = await DiskNode(disk).start(with_topics(EMPTY_IMAGE, ("t",)))
        assert (opened(node), node.log().log_end_offset) == (A, 20)
        assert kinds(node) == {B: ["delete"], C: ["delete"]}
        assert node.moves.figures() == []
        await node.stop()

    run(scenario())


def test_logs_and_future_logs_without_a_partition_are_put_aside_and_all_others_stay() -> None:
    async def scenario() -> None:
        disk = await with_copies("t", "u", "v")
        node = DiskNode(disk)
        await node.start()
        node.create("x", "y", "z")
        for name in ("x", "y", "z"):
            node.write(1, topic=name)
        assert node.image is not None
        image = node.image
        await node.stop()
        kept = with_topics(EMPTY_IMAGE, ("v", "z"))
        again = DiskNode(disk)
        await again.logs.open(node_id=NODE_ID, cluster_id="c")
        again.logs.take_offline(again.directory(A), BROKEN)
        again.apply(kept)
        again.partitions.put_strays_aside()
        names = [name for path in (A, B, C) for name in again.names(path)]
        assert sorted(name for name in names if name.startswith(("t", "u", "v"))) == (
            ["t-0-delete"] * 2 + ["u-0-delete"] * 2 + ["v-0-future"] * 2
        )
        assert {log.topic for log in again.logs} == {"z"}
        assert set(image.topics) == {"x", "y", "z"}
        await again.stop()

    run(scenario())


def test_stray_log_is_put_aside_even_if_the_node_has_another_partition_of_the_topic() -> None:
    async def scenario() -> None:
        node = await DiskNode().start()
        node.create("t", "u", partitions=2)
        for name in ("t", "u"):
            for index in (0, 1):
                node.write(1, topic=name, index=index)
        image = node.image
        assert image is not None
        await node.stop()
        topics = {name: replace(each, partitions={1: each.partitions[1]}) for name, each in image.topics.items()}
        kept = replace(image, topics=topics, topics_by_id={each.topic_id: each for each in topics.values()})
        again = await DiskNode(node.disk).start(kept)
        again.partitions.put_strays_aside()
        assert sorted((log.topic, log.partition) for log in again.logs) == [("t", 1), ("u", 1)]
        names = sorted(name for path in (A, B, C) for name in again.names(path))
        assert names == ["t-0-stray", "t-1", "u-0-stray", "u-1"]
        await again.stop()

    run(scenario())


# Changes of the image.


def test_upgrade_to_directory_ids_reports_the_directory_of_every_open_log() -> None:
    async def scenario() -> None:
        disk, ids = await formatted()
        old = replace(EMPTY_IMAGE, features={"metadata.version": 15})
        node = await DiskNode(disk).start(old)
        node.create("t", "u", partitions=2)
        await node.partitions.settle()
        node.placed.clear()
        assert node.image is not None
        node.apply(replace(node.image, version=node.image.version + 1, features={"metadata.version": 20}))
        assert [key[:2] for key in node.placed] == [(name, index) for name in ("t", "u") for index in (0, 1)]
        assert {each for _, _, each in node.placed} <= set(ids.values())
        node.placed.clear()
        node.apply(replace(node.image, version=node.image.version + 1))
        assert node.placed == []
        await node.stop()

    run(scenario())


def with_configs(old: MetadataImage, kind: ResourceType, name: str, base: int, **configs: str) -> MetadataImage:
    key = (int(kind), name)
    return replace(
        old,
        version=old.version + 1,
        configs={**old.configs, key: {each.replace("_", "."): value for each, value in configs.items()}},
        changes=ImageChanges(base, configs=frozenset({key})),
    )


def test_new_config_reaches_every_open_log_of_its_topic_and_a_broker_default_reaches_all() -> None:
    async def scenario() -> None:
        node = await DiskNode().start()
        node.create("t", "u", partitions=2)
        await node.partitions.settle()
        logs = [node.log(name, index) for name in ("t", "u") for index in (0, 1)]

        def retention() -> list[int]:
            return [log.config.retention_ms for log in logs]

        [default] = set(retention())
        image = node.image
        assert image is not None
        node.apply(image := with_configs(image, ResourceType.TOPIC, "t", image.version, retention_ms="1000"))
        assert retention() == [1000, 1000, default, default]
        node.apply(image := with_configs(image, ResourceType.BROKER, "", image.version, log_retention_ms="2000"))
        assert retention() == [1000, 1000, 2000, 2000]
        skipped = with_configs(image, ResourceType.TOPIC, "u", image.version, retention_ms="3000")
        node.apply(image := with_configs(skipped, ResourceType.TOPIC, "t", skipped.version, retention_ms="4000"))
        assert retention() == [4000, 4000, 3000, 3000], "an image that skips versions has all changes"
        await node.stop()

    run(scenario())


def test_config_that_a_skipped_image_removed_no_longer_applies_to_the_logs_of_its_topic() -> None:
    async def scenario() -> None:
        node = await DiskNode().start()
        node.create("t", "u", partitions=2, retention_ms="1000")
        await node.partitions.settle()
        assert node.image is not None
        key = (int(ResourceType.TOPIC), "t")
        configs = {each: values for each, values in node.image.configs.items() if each != key}
        skipped = replace(node.image, version=node.image.version + 1, configs=configs)
        node.apply(with_configs(skipped, ResourceType.TOPIC, "u", skipped.version, retention_ms="3000"))
        retention = [node.log(name, index).config.retention_ms for name in ("t", "u") for index in (0, 1)]
        assert retention == [LogConfig().retention_ms] * 2 + [3000] * 2
        await node.stop()

    run(scenario())


def test_topic_that_requires_fsync_from_now_on_syncs_its_earlier_records() -> None:
    async def scenario() -> None:
        node = await DiskNode().start()
        node.create("t", "u")
        for name in ("t", "u"):
            node.write(2, topic=name)
        assert [node.log(name).flushed_offset for name in ("t", "u")] == [0, 0]
        image = node.image
        assert image is not None
        node.apply(with_configs(image, ResourceType.TOPIC, "t", image.version, flush_messages="1"))
        waiting = node.partitions.get("t", 0).when_committed(2)
        assert waiting is None, "committed records stay committed"
        for _ in range(5):
            await node.partitions.settle()
        await node.partitions.get("t", 0).committed(2)
        assert [node.log(name).flushed_offset for name in ("t", "u")] == [2, 0]
        await node.stop()

    run(scenario())


def test_topic_that_is_deleted_before_its_log_is_opened_gets_no_log() -> None:
    async def scenario() -> None:
        node = await DiskNode().start()
        node.create("t", "u")
        node.delete("t")
        await node.partitions.settle()
        assert [(log.topic, log.partition) for log in node.logs] == [("u", 0)]
        await node.stop()

    run(scenario())


def test_deleted_topic_whose_replicas_are_on_other_nodes_changes_nothing_on_this_node() -> None:
    async def scenario() -> None:
        node = await DiskNode().start()
        node.create("t", "u")
        image = node.image
        assert image is not None
        moved = replace(image.topics["u"].partitions[0], replicas=(5,), isr=(5,), leader=5)
        topics = {**image.topics, "u": replace(image.topics["u"], partitions={0: moved})}
        changes = ImageChanges(image.version, frozenset({"u"}))
        node.apply(replace(image, version=image.version + 1, topics=topics, changes=changes))
        assert node.partitions.find("u", 0) is None
        node.delete("u")
        assert [each.topic for each in node.partitions] == ["t"]
        await node.stop()

    run(scenario())


def test_stop_ends_the_waits_at_every_partition_and_opens_no_more_logs() -> None:
    async def scenario() -> None:
        node = await DiskNode().start()
        node.create("t", "u", "v")
        waits = [node.partitions.get(name, 0).waiters.commit(1) for name in ("t", "u", "v")]
        node.partitions.release_waiters()
        errors = [wait.exception() for wait in waits]
        assert [isinstance(each, KafkaError) and each.code for each in errors] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
        await node.partitions.close()
        assert list(node.logs) == []
        await node.stop()

    run(scenario())


def test_image_without_directory_ids_reports_no_directory_of_open_logs() -> None:
    async def scenario() -> None:
        node = await DiskNode().start(replace(EMPTY_IMAGE, features={"metadata.version": 15}))
        node.create("t")
        await node.partitions.settle()
        node.placed.clear()
        assert node.image is not None
        node.apply(replace(node.image, version=node.image.version + 1, features={"metadata.version": 16}))
        assert node.placed == []
        await node.stop()

    run(scenario())


def test_close_ends_the_opening_of_logs_that_several_images_have_added() -> None:
    async def scenario() -> None:
        node = await DiskNode().start()
        for name in ("t", "u", "v"):
            node.create(name)
        await node.partitions.close()
        for _ in range(5):
            await asyncio.sleep(0)
        assert list(node.logs) == []
        await node.stop()

    run(scenario())
