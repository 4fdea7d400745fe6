"""Tests how log directories are formatted, and which problems `storage info` reports."""

from random import Random

import pytest

from penstock.disk.memory import MemoryDisk
from penstock.metadata.checkpoint import read_checkpoint
from penstock.metadata.voters import Voter
from penstock.node.storage import (
    FormatPlan,
    StorageError,
    format_storage,
    read_meta_properties,
    storage_info,
)


def formatted(plan: FormatPlan, disk: MemoryDisk | None = None) -> MemoryDisk:
    disk = disk or MemoryDisk()
    format_storage(disk, plan, random=Random(1), now_ms=1)
    return disk


def test_format_gives_each_directory_an_id_and_writes_the_voter_to_the_first_directory() -> None:
    disk = formatted(FormatPlan(["/a", "/b"], node_id=3, cluster_id="c", controller_endpoints=(("C", "h", 9093),)))
    first, second = read_meta_properties(disk, "/a"), read_meta_properties(disk, "/b")
    assert first is not None
    assert second is not None
    assert (first.cluster_id, first.node_id) == (second.cluster_id, second.node_id) == ("c", 3)
    assert first.directory_id != second.directory_id
    voters = read_checkpoint(disk.read_bytes("/a/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"))
    assert [voter.directory_id for voter in voters.voters] == [first.directory_id]
    assert not disk.exists("/b/__cluster_metadata-0")
    bootstrap = read_checkpoint(disk.read_bytes("/b/bootstrap.checkpoint"))
    assert [(record.name, record.feature_level) for record in bootstrap.records] == [
        ("metadata.version", 30),
        ("eligible.leader.replicas.version", 1),
        ("group.version", 1),
        ("share.version", 1),
        ("streams.version", 1),
        ("transaction.version", 2),
    ]


def test_format_without_a_cluster_id_uses_a_random_cluster_id() -> None:
    properties = read_meta_properties(formatted(FormatPlan(["/a"], node_id=1)), "/a")
    assert properties is not None
    assert len(properties.cluster_id) == 22


def test_directory_formatted_for_an_older_release_gets_the_feature_levels_of_that_release() -> None:
    disk = formatted(FormatPlan(["/a"], node_id=1, release_version="3.9", features={"group.version": 1}))
    bootstrap = read_checkpoint(disk.read_bytes("/a/bootstrap.checkpoint"))
    assert [(record.name, record.feature_level) for record in bootstrap.records] == [
        ("metadata.version", 21),
        ("group.version", 1),
    ]


def test_format_for_an_old_release_still_writes_the_voters_of_the_quorum() -> None:
    disk = formatted(FormatPlan(["/a"], node_id=1, release_version="3.6"))
    content = read_checkpoint(disk.read_bytes("/a/__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"))
    assert content.kraft_version == 1
    assert [voter.node_id for voter in content.voters] == [1]


def test_a_formatted_directory_is_not_formatted_again() -> None:
    disk = formatted(FormatPlan(["/a"], node_id=1, cluster_id="c"))
    with pytest.raises(StorageError, match="/a was already formatted: add --ignore-formatted"):
        formatted(FormatPlan(["/a"], node_id=1, cluster_id="c"), disk)
    result = format_storage(
        disk, FormatPlan(["/a", "/b"], node_id=1, ignore_formatted=True), random=Random(2), now_ms=1
    )
    assert result.directories == ("/b",)
    assert result.cluster_id == "c"


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (FormatPlan([], node_id=1), "log.dirs"),
        (FormatPlan(["/a"], node_id=-1), "node.id"),
        (FormatPlan(["/a"], node_id=1, release_version="9.9"), "Release version 9.9"),
        (FormatPlan(["/a"], node_id=1, features={"nosuch": 1}), "There is no feature nosuch: use"),
        (FormatPlan(["/a"], node_id=1, features={"group.version": 4}), "group.version has no level 4"),
        (
            FormatPlan(["/a"], node_id=1, features={"kraft.version": 0}),
            "kraft.version must be 1, because .* is not set:",
        ),
        (
            FormatPlan(["/a"], node_id=1, static_voters=True, features={"kraft.version": 1}),
            "kraft.version must be 0, because .* is set:",
        ),
        (
            FormatPlan(["/a"], node_id=1, release_version="3.9", features={"eligible.leader.replicas.version": 1}),
            "needs metadata.version",
        ),
    ],
)
def test_format_with_invalid_arguments_writes_no_file(plan: FormatPlan, message: str) -> None:
    disk = MemoryDisk()
    with pytest.raises(StorageError, match=message):
        formatted(plan, disk)
    assert not disk.exists("/a")


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (FormatPlan(["/a"], node_id=2, ignore_formatted=True), "belongs to node 1"),
        (FormatPlan(["/a"], node_id=1, cluster_id="d", ignore_formatted=True), "belongs to cluster c"),
    ],
)
def test_format_refuses_a_directory_of_another_node_or_cluster(plan: FormatPlan, message: str) -> None:
    disk = formatted(FormatPlan(["/a"], node_id=1, cluster_id="c"))
    with pytest.raises(StorageError, match=message):
        formatted(plan, disk)


def test_storage_info_reports_every_problem_of_the_log_directories() -> None:
    disk = formatted(FormatPlan(["/a"], node_id=1, cluster_id="c"))
    formatted(FormatPlan(["/b"], node_id=2, cluster_id="d"), disk)
    disk.mkdir("/c")
    disk.write_atomic("/file", b"")
    info = storage_info(disk, ["/a", "/b", "/c", "/file", "/none"])
    assert info.directories == ("/a", "/b", "/c")
    assert info.problems == (
        "/c is not formatted: run `penstock storage format` first.",
        "/file is not a directory: name a directory.",
        "/none does not exist: run `penstock storage format` first.",
        "The directories belong to different clusters (c, d): use one cluster's.",
        "The directories belong to different nodes (1, 2): use one node's.",
        "Two directories have the same directory.id: remove the copy.",
    )


def test_directory_of_a_zookeeper_cluster_is_reported_as_a_zookeeper_directory() -> None:
    disk = MemoryDisk()
    disk.mkdir("/a")
    disk.write_atomic("/a/meta.properties", b"version=0\nbroker.id=1\ncluster.id=c\n")
    with pytest.raises(StorageError, match="ZooKeeper"):
        read_meta_properties(disk, "/a")


def test_formatting_is_refused_if_a_voter_has_a_reserved_directory_id() -> None:
    disk = MemoryDisk()
    voters = (Voter(1, bytes(15) + b"\x01"), Voter(2, b"\x01" * 16))
    with pytest.raises(StorageError, match=r"AAAAAAAAAAAAAAAAAAAAAQ of node 1 is .* reserved: .* random-uuid"):
        formatted(FormatPlan(["/a"], node_id=2, initial_controllers=voters), disk)
    assert not disk.exists("/a")


def test_format_with_an_unknown_feature_level_is_refused() -> None:
    with pytest.raises(StorageError, match=r"streams\.version has no level 2: give a level from 0 to 1"):
        formatted(FormatPlan(["/a"], node_id=1, features={"streams.version": 2}))
    formatted(FormatPlan(["/a"], node_id=1, features={"streams.version": 0}))
