"""Tests real disks that fill up: a real process writes to a small tmpfs, and no acknowledged record is lost.

Mounting needs root: the tests are skipped if it is not allowed.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos_node import MIB, VALUE, fill, read, running

from penstock.cli.exit import Exit
from penstock.client.cluster_admin import ClusterAdmin

pytestmark = [pytest.mark.programs, pytest.mark.slow]

SMALL_MIB, LARGE_MIB = 32, 64
#: More records than fit on the small disk.
TOO_MANY = SMALL_MIB * MIB // len(VALUE) + 10


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mounts a tmpfs, and unmounts it at the end."""
    where = tmp_path / "small"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL_MIB}m", "tmpfs", str(where)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs can't be mounted here: {mounted.stderr.strip()}")
    yield where
    subprocess.run(["umount", "--lazy", str(where)], check=True)


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", f"remount,size={LARGE_MIB}m", str(disk)], check=True)


def test_full_disk_refuses_new_records_and_loses_no_acknowledged_record(tmp_path: Path, small_disk: Path) -> None:
    limit = 8 * MIB
    with running(tmp_path, str(small_disk / "logs"), penstock_log_dirs_min_free_bytes=str(limit)) as node:
        with node.client() as client:
            client.create_topic("t", 1)
            acknowledged, refusal = fill(client, "t", most=TOO_MANY)
            assert refusal is not None
            assert len(acknowledged) * len(VALUE) > (SMALL_MIB * MIB - limit) * 0.8
            assert read(client, "t") == acknowledged
            assert node.process.poll() is None

            # Deleting frees space: the node takes records again, without a restart.
            kept = len(acknowledged) // 2
            client.delete_records({("t", 0): kept})
            again: list[int] = []
            for _ in range(20):
                again, refusal = fill(client, "t", first=len(acknowledged), most=5)
                if refusal is None:
                    break
            assert again == list(range(len(acknowledged), len(acknowledged) + 5))
        node.process.send_signal(signal.SIGKILL)
        _, said = node.end()
        assert f"Log directory {small_disk}/logs is nearly full" in said
        assert "is offline" not in said
    with (
        running(tmp_path, str(small_disk / "logs"), penstock_log_dirs_min_free_bytes=str(limit)) as node,
        node.client() as client,
    ):
        assert [each for each in read(client, "t") if each >= kept] == [*acknowledged[kept:], *again]


def test_a_node_whose_only_disk_is_full_stops_and_has_all_records_after_the_repair(
    tmp_path: Path, small_disk: Path
) -> None:
    with running(tmp_path, str(small_disk / "logs"), penstock_log_dirs_min_free_bytes="0") as node:
        with node.client() as client:
            client.create_topic("t", 1)
            acknowledged, refusal = fill(client, "t", most=TOO_MANY)
            assert refusal is not None
        code, said = node.end()
        assert code == Exit.STORAGE
        assert "This node can't go on without all its log directories" in said
        assert "No space left on device" in said
    enlarge(small_disk)
    with (
        running(tmp_path, str(small_disk / "logs"), penstock_log_dirs_min_free_bytes="0") as node,
        node.client() as client,
    ):
        assert read(client, "t")[: len(acknowledged)] == acknowledged
        more, refusal = fill(client, "t", first=len(acknowledged) + 1, most=5)
        assert refusal is None
        assert read(client, "t")[-5:] == more


def test_a_disk_that_fails_takes_only_its_own_replicas_offline(tmp_path: Path, small_disk: Path) -> None:
    small, large = str(small_disk / "logs"), str(tmp_path / "large")
    with running(tmp_path, f"{large},{small}", penstock_log_dirs_min_free_bytes="0") as node:
        with node.client() as client:
            client.create_topic("a", 1)
            client.create_topic("b", 1)
            held = client.run(ClusterAdmin(client.asynchronous).holdings(1)).replicas
            on_small = next(name for name in "ab" if held[name, 0].directory == small)
            on_large = next(name for name in "ab" if held[name, 0].directory == large)
            acknowledged, refusal = fill(client, on_small, most=TOO_MANY)
            assert refusal is not None
            others, refusal = fill(client, on_large, most=20)
            assert refusal is None
            assert node.process.poll() is None
        node.process.send_signal(signal.SIGTERM)
        node.end()
    enlarge(small_disk)
    with running(tmp_path, f"{large},{small}", penstock_log_dirs_min_free_bytes="0") as node, node.client() as client:
        assert read(client, on_small)[: len(acknowledged)] == acknowledged
        assert read(client, on_large) == others
