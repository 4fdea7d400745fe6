"""Tests ListOffsets on a new leader."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.handlers import api_02_list_offsets as api
from penstock.protocol.errors import ErrorCode
from penstock.protocol.messages.api_02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
EPOCH_START = 30


def ask(*, high_watermark: int, last_stable_offset: int, isolation: int) -> tuple[ErrorCode, int]:
    log = SimpleNamespace(
        log_end_offset=31, high_watermark=high_watermark, last_stable_offset=last_stable_offset, log_start_offset=0
    )
    partition = SimpleNamespace(
        log=log,
        leading=SimpleNamespace(epoch_start=EPOCH_START),
        leader_epoch=3,
        leader_log=lambda epoch: log,
        topic="t",
        index=0,
    )
    broker: Any = SimpleNamespace(partitions=SimpleNamespace(get=lambda topic, index: partition))
    ctx: Any = SimpleNamespace(api_key=2, api_version=10)
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])],
    )
    answer: Any = api.handle(broker, ctx, request)
    assert isinstance(answer, ListOffsetsResponse)
    (told,) = answer.topics[0].partitions
    return ErrorCode(told.error_code), told.offset


@pytest.mark.parametrize("isolation", [READ_UNCOMMITTED, READ_COMMITTED])
def test_new_leader_returns_offset_not_available_until_its_high_watermark_reaches_its_epoch_start(
    isolation: int,
) -> None:
    code, _ = ask(high_watermark=EPOCH_START - 1, last_stable_offset=10, isolation=isolation)
    assert code is ErrorCode.OFFSET_NOT_AVAILABLE


def test_an_open_transaction_does_not_delay_list_offsets_at_a_new_leader() -> None:
    told = ask(high_watermark=EPOCH_START, last_stable_offset=10, isolation=READ_COMMITTED)
    assert told == (ErrorCode.NONE, 10)


def test_list_offsets_spreads_the_check_for_repeated_partitions_over_several_event_loop_iterations() -> None:
    counted: list[int] = []

    class Spec:
        @property
        def partition_index(self) -> int:
            counted.append(1)
            return len(counted)

    specs: Any = [Spec() for _ in range(10_000)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=specs)])
    broker: Any = None
    ctx: Any = None
    next(api._steps(broker, ctx, request))
    assert len(counted) == api.COUNTED_IN_A_STEP
