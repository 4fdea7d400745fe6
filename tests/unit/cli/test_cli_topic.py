"""Tests `penstock topic` in a cluster with a partition that has no leader."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.cli import connect, topic
from penstock.protocol.messages.api_03_metadata import MetadataResponsePartition, MetadataResponseTopic

LED, LEADERLESS = 0, 1


def test_topic_describe_shows_a_partition_without_a_leader_and_does_not_wait_for_an_election(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    described = MetadataResponseTopic(
        name="t",
        partitions=[
            MetadataResponsePartition(partition_index=LED, leader_id=1, replica_nodes=[1], isr_nodes=[1]),
            MetadataResponsePartition(partition_index=LEADERLESS, leader_id=-1, replica_nodes=[1], isr_nodes=[]),
        ],
    )

    def offsets(partitions: list[tuple[str, int]], _: int) -> dict[tuple[str, int], int]:
        assert partitions == [("t", LED)]
        return {("t", LED): 7}

    @contextmanager
    def connected(_: argparse.Namespace) -> Iterator[Any]:
        yield SimpleNamespace(existing=lambda names: [described], offsets=offsets, configs=lambda kind, name: [])

    monkeypatch.setattr(connect, "connect", connected)
    topic.run_describe(argparse.Namespace(names=["t"], output="json"))
    rows = json.loads(capsys.readouterr().out)[0]["partitions"]
    assert [(row["leader"], row["end_offset"]) for row in rows] == [(1, 7), (None, None)]
