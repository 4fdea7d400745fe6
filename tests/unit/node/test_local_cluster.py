"""Tests several nodes on one machine: their properties, and how their directories are formatted."""

from __future__ import annotations

import random

import pytest

from penstock.disk.memory import MemoryDisk
from penstock.metadata.checkpoint import checkpoint_name, read_checkpoint
from penstock.metadata.configs.settings import Settings
from penstock.node.local_cluster import format_new, local_nodes
from penstock.node.storage import FormatPlan, StorageError, format_storage, read_meta_properties
from penstock.raft.voters import Voter

PORTS = [9092, 9093, 9094]
CONTROLLERS = [9192, 9193, 9194]


@pytest.mark.parametrize(("count", "factor", "in_sync"), [(2, 2, 1), (3, 3, 2), (5, 3, 2)])
def test_default_replication_factor_depends_on_the_number_of_nodes(count: int, factor: int, in_sync: int) -> None:
    directories = [f"/data/{index}" for index in range(count)]
    ports = list(range(9092, 9092 + count))
    for node in local_nodes(directories, host="127.0.0.1", ports=ports, controller_ports=ports):
        settings = Settings(node.properties)
        assert settings.int("default.replication.factor") == factor
        assert settings.int("offsets.topic.replication.factor") == factor
        assert settings.int("min.insync.replicas") == in_sync


def test_new_directories_become_one_cluster_in_which_all_nodes_are_voters() -> None:
    disks = [MemoryDisk() for _ in range(3)]
    nodes = local_nodes(
        ["/1", "/2", "/3"], host="127.0.0.1", ports=PORTS, controller_ports=CONTROLLERS, overrides={"broker.rack": "r"}
    )
    chance = random.Random(1)
    assert format_new(disks, nodes, CONTROLLERS, host="127.0.0.1", random=chance, now_ms=1)
    found = [read_meta_properties(disk, node.directory) for disk, node in zip(disks, nodes)]
    assert len({each.cluster_id for each in found if each is not None}) == 1
    for disk, node in zip(disks, nodes):
        path = f"{node.directory}/__cluster_metadata-0/{checkpoint_name(0, 0)}"
        voters = read_checkpoint(disk.read_bytes(path)).voters
        assert [(voter.node_id, voter.endpoints[0][2]) for voter in voters] == list(zip((1, 2, 3), CONTROLLERS))
        assert [voter.directory_id for voter in voters] == [each.directory_id for each in found if each is not None]
    assert not format_new(disks, nodes, CONTROLLERS, host="127.0.0.1", random=chance, now_ms=1)


def test_format_for_a_joining_node_writes_no_voters_to_the_directory() -> None:
    disk = MemoryDisk()
    format_storage(disk, FormatPlan(("/4",), 4, joins=True), random=random.Random(1), now_ms=1)
    assert not disk.exists("/4/__cluster_metadata-0")


def test_format_with_a_duplicate_voter_is_refused_before_any_file_is_written() -> None:
    disk = MemoryDisk()
    twice = (Voter(1, b"a" * 16, ()), Voter(1, b"b" * 16, ()))
    with pytest.raises(StorageError, match="name a node twice"):
        format_storage(disk, FormatPlan(("/1",), 1, initial_controllers=twice), random=random.Random(1), now_ms=1)
    assert not disk.exists("/1")
