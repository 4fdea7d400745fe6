"""Tests decisions of the metadata log that depend on records which are not committed yet, or that fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from metadata_stage import FEATURES, MetadataStage, config, play, settle

from penstock.broker.controlplane import metadata_batches
from penstock.broker.controlplane.metadata_storage import replay
from penstock.log.log import Log
from penstock.metadata.decision import Decision
from penstock.metadata.image import EMPTY_IMAGE, MetadataImage
from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.protocol.persisted.metadata.feature_level_record import FeatureLevelRecord
from penstock.protocol.persisted.metadata.partition_change_record import PartitionChangeRecord
from penstock.protocol.persisted.metadata.register_broker_record import RegisterBrokerRecord
from penstock.protocol.persisted.metadata.user_scram_credential_record import UserScramCredentialRecord

DIRECTORY = bytes([7] * 16)


def registration(broker_id: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(broker_id=broker_id, incarnation_id=bytes(16), broker_epoch=5, log_dirs=[DIRECTORY])


def credential(name: str) -> UserScramCredentialRecord:
    return UserScramCredentialRecord(
        name=name, mechanism=1, salt=b"s", stored_key=b"k", server_key=b"k", iterations=4096
    )


def test_record_that_cannot_be_applied_enters_neither_the_log_nor_the_next_decision() -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.leading()
        end = stage.log.log_end_offset
        unknown = PartitionChangeRecord(partition_id=0, topic_id=bytes([9] * 16), leader=1)
        failed = stage.submit(config("a"), unknown)
        await settle()
        assert failed.exception() is not None
        assert stage.log.log_end_offset == end
        fine = stage.submit(config("b"))
        await settle()
        stage.commit()
        assert await fine == "done"
        assert {name for _, name in stage.image.configs if name} == {"b"}
        assert replay(stage.log, EMPTY_IMAGE, stage.log.log_end_offset).image.configs == stage.image.configs

    play(script)


@pytest.mark.parametrize("together", [False, True])
def test_records_are_encoded_at_the_metadata_version_of_a_record_that_is_not_committed_yet(together: bool) -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.leading()
        older = stage.submit(FeatureLevelRecord(name="metadata.version", feature_level=16))
        await settle()
        stage.commit()
        await older
        if together:
            tasks = [stage.submit(FEATURES, registration(1))]
        else:
            tasks = [stage.submit(FEATURES), stage.submit(registration(1))]
        await settle()
        stage.commit()
        await asyncio.gather(*tasks)
        assert stage.image.brokers[1].log_dirs == (DIRECTORY,)
        stored = replay(stage.log, EMPTY_IMAGE, stage.log.log_end_offset).image
        assert stored.brokers == stage.image.brokers  # a restarted node reads what this node decided on

    play(script)


def test_credentials_of_a_record_that_another_leader_replaced_are_not_used_any_more() -> None:
    async def script() -> None:
        stage = MetadataStage()
        stage.write(FEATURES)
        stage.write(credential("committed"))
        stage.write(credential("replaced"))  # no other voter has it
        await stage.metadata.start(keep_credentials=True)
        assert {name for name, _ in stage.metadata.credentials_for_controllers()} == {"committed", "replaced"}
        stage.role("follower", 2, 2)
        stage.log.truncate_to(2)
        stage.write(config("t"), epoch=2)
        stage.commit()
        assert {name for name, _ in stage.metadata.credentials_for_controllers()} == {"committed"}

    play(script)


def test_metadata_log_is_closed_even_if_it_cannot_be_flushed_at_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        stage = MetadataStage()
        await stage.leading()

        async def refuse(*_: Any) -> None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space")

        monkeypatch.setattr(Log, "flush", refuse)
        await stage.metadata.close()
        assert stage.log.health.closed

    play(script)


def test_error_of_a_decision_waits_for_earlier_records_and_leaves_later_decisions_alone() -> None:
    def refuse(image: Any) -> Decision[str]:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"at {image.offset}")

    async def script() -> None:
        stage = MetadataStage()
        await stage.leading()
        first = stage.submit(config("a"))
        await asyncio.sleep(0)
        refused = asyncio.ensure_future(stage.metadata.submit(refuse))
        await asyncio.sleep(0)
        end = stage.log.log_end_offset
        later = stage.submit(config("b"))
        await settle()
        stage.commit(end)
        await settle()
        assert (first.done(), refused.done(), later.done()) == (True, True, False)
        with pytest.raises(KafkaError, match=f"at {end - 1}"):
            await refused
        stage.commit()
        assert (await first, await later) == ("done", "done")

    play(script)


@pytest.mark.parametrize("code", [ErrorCode.THROTTLING_QUOTA_EXCEEDED, ErrorCode.NOT_CONTROLLER])
@pytest.mark.parametrize("batch_bytes", [metadata_batches.MAX_BATCH_BYTES, 100], ids=["one batch", "several batches"])
def test_next_decision_after_a_refused_proposal_reads_exactly_the_records_of_the_log(
    code: ErrorCode, batch_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[MetadataImage] = []

    def decide(image: MetadataImage) -> Decision[str]:
        seen.append(image)
        return Decision([config("later")], "done")

    def refuse(epoch: int, batches: list[tuple[int, bytes]]) -> int:
        assert (len(batches) > 1) == (batch_bytes == 100)
        raise KafkaError(code, "The quorum refuses these records.")

    async def script() -> None:
        stage = MetadataStage()
        await stage.leading()
        monkeypatch.setattr(metadata_batches, "MAX_BATCH_BYTES", batch_bytes)
        earlier = stage.submit(config("earlier"))
        await settle()
        for _ in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(stage.quorum, "propose", refuse)
                refused = stage.submit(*[config(f"refused-{each}") for each in range(10)])
                await settle()
            assert refused.done()
            with pytest.raises(KafkaError) as raised:
                await refused
            assert raised.value.code is code
            stored = replay(stage.log, EMPTY_IMAGE, stage.log.log_end_offset).image
            later = asyncio.ensure_future(stage.metadata.submit(decide))
            await settle()
            assert (seen[-1].offset, seen[-1].configs) == (stored.offset, stored.configs)
            assert not later.done()
            stage.commit()
            assert await later == "done"
        assert await earlier == "done"
        assert {name for _, new in stage.shown for _, name in new.configs if name} == {"earlier", "later"}
        assert stage.image.configs == replay(stage.log, EMPTY_IMAGE, stage.log.log_end_offset).image.configs
        for role, epoch, leader in [("follower", 2, 2), ("leader", 3, 1)]:
            stage.role(role, epoch, leader)
        again = asyncio.ensure_future(stage.metadata.submit(decide))
        await settle()
        assert {name for _, name in seen[-1].configs if name} == {"earlier", "later"}
        stage.commit()
        assert await again == "done"

    play(script)
