"""Tests the checks of published metadata and of answered decisions of controllers."""

from dataclasses import replace
from typing import Any

import pytest

from penstock.broker.controlplane.metadata_log import MetadataLog
from penstock.client.admin import Admin, NewTopic
from penstock.metadata import snapshot
from penstock.metadata.image import EMPTY_IMAGE, ImageChanges
from penstock.sim.checks.published_metadata import KEPT_IMAGES, PublishedMetadata
from penstock.sim.checks.taps import tapped
from penstock.sim.run.cluster import SimCluster


def test_rule_finds_two_images_of_one_offset_with_different_metadata() -> None:
    found: list[str] = []
    check = PublishedMetadata([], lambda rule, what: found.append(f"{rule}: {what}"))
    image = replace(EMPTY_IMAGE, offset=7, epoch=2, configs={(2, "t"): {"a": "1"}})
    check.published("n1", image)
    check.published("n2", replace(image, version=9, changes=ImageChanges(features=True)))
    check.published("n3", replace(image, offset=8, configs={}))
    assert found == []
    check.published("n2", replace(image, epoch=3, configs={}))
    assert found == ["published metadata: epoch, configs at offset 7 differ between the images of n1 and n2"]


def test_check_of_images_forgets_the_oldest_images_of_a_long_run() -> None:
    found: list[str] = []
    check = PublishedMetadata([], lambda rule, what: found.append(what))
    for offset in range(KEPT_IMAGES + 1):
        check.published("n1", replace(EMPTY_IMAGE, offset=offset))
    check.published("n2", replace(EMPTY_IMAGE, offset=0, epoch=1))
    assert found == []
    check.published("n2", replace(EMPTY_IMAGE, offset=KEPT_IMAGES, epoch=1))
    assert len(found) == 1


def test_rule_finds_a_node_that_has_not_published_a_committed_record() -> None:
    async def app(cluster: SimCluster) -> list[str]:
        found: list[str] = []
        check = PublishedMetadata(cluster.machines, lambda rule, what: found.append(what))
        async with cluster.client() as client:
            await Admin(client).create_topics([NewTopic("t", 1, 3)])
        check.look()
        assert found == []
        broker = cluster.machines[1].broker
        assert broker is not None
        metadata = broker.metadata
        published = metadata.image
        metadata.image = replace(published, offset=published.offset - 1)
        check.look()
        metadata.image = published
        return found

    [problem] = SimCluster(nodes=3, seed=2).run(app)
    assert problem.startswith("n2 has published offset")


def test_rules_find_other_voters_and_a_snapshot_that_restores_other_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    async def app(cluster: SimCluster) -> list[str]:
        found: list[str] = []
        check = PublishedMetadata(cluster.machines, lambda rule, what: found.append(f"{rule}: {what}"))
        async with cluster.client() as client:
            await Admin(client).create_topics([NewTopic("t", 1, 3, configs={"retention.ms": "1000"})])
        check.compare_healed()
        assert found == []
        broker = cluster.machines[1].broker
        assert broker is not None
        quorum = broker.metadata.quorum()
        monkeypatch.setattr(broker.metadata, "quorum", lambda: replace(quorum, voters=quorum.voters[1:]))
        check.compare_healed()
        monkeypatch.setattr(snapshot, "_configs", lambda image: iter(()))
        check.compare_healed()
        return found

    voters, restored = SimCluster(nodes=3, seed=2).run(app)
    assert voters.startswith("one set of voters: n1 knows [ReplicaKey")
    assert restored.startswith("snapshots of metadata: a snapshot of n1")
    assert restored.endswith("would restore other configs")


@pytest.mark.parametrize("waits", [True, False])
def test_rule_finds_a_decision_that_is_answered_before_its_commit(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(metadata: MetadataLog) -> None:
        """Does not wait."""

    async def app(cluster: SimCluster) -> list[str]:
        found: list[str] = []
        check = PublishedMetadata(cluster.machines, lambda rule, what: found.append(rule))
        if not waits:
            monkeypatch.setattr(MetadataLog, "_commit", at_once)
        with tapped(check.taps()):
            async with cluster.client() as client:
                await Admin(client).create_topics([NewTopic("t", 1, 3)])
        return found

    assert SimCluster(nodes=3, seed=2).run(app) == ([] if waits else ["answered decisions"])


def test_rule_finds_a_decision_whose_offset_has_the_record_of_another_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    appended = MetadataLog._append

    def in_a_later_epoch(metadata: MetadataLog, records: Any) -> None:
        appended(metadata, records)
        monkeypatch.setattr(metadata, "leader_epoch", metadata.leader_epoch + 1)

    async def app(cluster: SimCluster) -> list[str]:
        found: list[str] = []
        check = PublishedMetadata(cluster.machines, lambda rule, what: found.append(what))
        monkeypatch.setattr(MetadataLog, "_append", in_a_later_epoch)
        with tapped(check.taps()):
            async with cluster.client() as client:
                await Admin(client).create_topics([NewTopic("t", 1, 1)])
        return found

    [problem] = SimCluster(nodes=1, seed=2).run(app)
    assert "was answered; the log has epoch" in problem
