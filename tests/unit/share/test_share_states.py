"""Tests the state of a share coordinator: epochs, merging of writes, snapshots and pruning."""

from __future__ import annotations

import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_driver import KEY, StateDriver, image_with

from penstock.protocol.errors import ErrorCode, KafkaError
from penstock.share import state_requests
from penstock.share.state_requests import MAX_BATCHES, Read, Summary, Write
from penstock.share.state_shard import COLD_AFTER_RECORDS, ShareStateShard, Turn, snapshot_of
from penstock.share.states import RecordState, StateBatch

AVAILABLE, ACKNOWLEDGED, ARCHIVED = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED
ARCHIVING = RecordState.ARCHIVING
RANKS = {AVAILABLE: 0, ARCHIVING: 1, ACKNOWLEDGED: 2, ARCHIVED: 2}


def initialize(driver: StateDriver, state_epoch: int = 1, start_offset: int = -1) -> None:
    driver.run(lambda shard, turn: state_requests.initialize(shard, turn, KEY, state_epoch, start_offset))


def read(driver: StateDriver, leader_epoch: int = 0) -> Read:
    return driver.run(lambda shard, turn: state_requests.read(shard, turn, KEY, leader_epoch))


def _write(wanted: Write, shard: ShareStateShard, turn: Turn) -> None:
    state_requests.write(shard, turn, KEY, wanted)


def write(
    driver: StateDriver, *batches: StateBatch, start: int = 0, state_epoch: int = 1, leader_epoch: int = 0
) -> None:
    driver.run(partial(_write, Write(state_epoch, leader_epoch, start, 0, batches)))


def refusal(call: object, *arguments: object, **fields: object) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        call(*arguments, **fields)  # type: ignore[operator]
    return refused.value.code


def test_share_state_cannot_be_read_or_written_before_it_is_initialized() -> None:
    driver = StateDriver()
    assert refusal(read, driver) is ErrorCode.INVALID_REQUEST
    assert refusal(write, driver) is ErrorCode.INVALID_REQUEST
    assert driver.run(lambda shard, turn: state_requests.summary(shard, KEY)) == Summary()
    initialize(driver)
    assert read(driver) == Read(1, -1, ())


def test_requests_for_unknown_share_partitions_are_refused() -> None:
    driver = StateDriver()
    driver.shard.see(image_with())
    assert refusal(initialize, driver) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_writes_of_share_states_are_merged_and_records_before_the_start_offset_are_dropped() -> None:
    driver = StateDriver()
    initialize(driver)
    read(driver)
    write(driver, StateBatch(0, 9, ACKNOWLEDGED, 1), StateBatch(12, 14, AVAILABLE, 2))
    write(driver, StateBatch(13, 13, ACKNOWLEDGED, 2), start=5)
    assert read(driver).batches == (
        (5, 9, ACKNOWLEDGED, 1),
        (12, 12, AVAILABLE, 2),
        (13, 13, ACKNOWLEDGED, 2),
        (14, 14, AVAILABLE, 2),
    )


def test_late_write_of_a_share_state_does_not_make_an_acknowledged_record_available_again() -> None:
    driver = StateDriver()
    initialize(driver)
    read(driver)
    write(driver, StateBatch(0, 3, ACKNOWLEDGED, 1), start=0)
    write(driver, start=2)
    write(driver, StateBatch(0, 5, AVAILABLE, 1), start=0)
    assert read(driver) == Read(1, 2, (StateBatch(2, 3, ACKNOWLEDGED, 1), StateBatch(4, 5, AVAILABLE, 1)))


def test_new_leader_fences_the_writes_of_the_earlier_leader() -> None:
    driver = StateDriver()
    initialize(driver)
    read(driver)
    write(driver, leader_epoch=3)
    read(driver, leader_epoch=4)
    assert refusal(write, driver, leader_epoch=3) is ErrorCode.FENCED_LEADER_EPOCH
    assert refusal(read, driver, leader_epoch=3) is ErrorCode.FENCED_LEADER_EPOCH
    write(driver, leader_epoch=4)


def test_share_state_write_with_an_older_state_epoch_is_fenced_after_offsets_were_altered() -> None:
    driver = StateDriver()
    initialize(driver)
    read(driver)
    write(driver, StateBatch(0, 9, ACKNOWLEDGED, 1))
    initialize(driver, state_epoch=2, start_offset=4)
    assert refusal(write, driver, StateBatch(0, 9, ACKNOWLEDGED, 1)) is ErrorCode.FENCED_STATE_EPOCH
    assert refusal(initialize, driver, state_epoch=1) is ErrorCode.FENCED_STATE_EPOCH
    assert read(driver) == Read(2, 4, ())


@pytest.mark.parametrize("late", [1, 3])
def test_late_write_of_a_deleted_share_group_does_not_change_a_new_group_of_the_same_name(late: int) -> None:
    driver = StateDriver()
    initialize(driver, state_epoch=late)
    read(driver)
    driver.run(lambda shard, turn: state_requests.delete(shard, turn, KEY))
    initialize(driver, state_epoch=2)
    read(driver)
    batch = StateBatch(0, 9, ACKNOWLEDGED, 1)
    assert refusal(write, driver, batch, start=10, state_epoch=late) is ErrorCode.FENCED_STATE_EPOCH
    assert read(driver) == Read(2, -1, ())


def test_write_to_a_new_share_group_is_fenced_until_a_leader_has_read_its_state() -> None:
    driver = StateDriver()
    initialize(driver)
    read(driver)
    driver.run(lambda shard, turn: state_requests.delete(shard, turn, KEY))
    initialize(driver)
    assert refusal(write, driver, StateBatch(0, 9, ACKNOWLEDGED, 1), start=10) is ErrorCode.FENCED_STATE_EPOCH
    assert read(driver) == Read(1, -1, ())
    write(driver, StateBatch(0, 9, ACKNOWLEDGED, 1))


@pytest.mark.parametrize("state", [-1, 1, 5, 6, 99])
def test_share_state_write_with_a_record_state_that_is_not_persistent_is_refused(state: int) -> None:
    driver = StateDriver()
    initialize(driver)
    read(driver)
    assert refusal(write, driver, StateBatch(0, 9, state, 1)) is ErrorCode.INVALID_REQUEST
    assert read(driver).batches == ()


def test_repeated_initialization_does_not_change_the_share_state() -> None:
    driver = StateDriver()
    initialize(driver)
    read(driver)
    write(driver, StateBatch(0, 9, ACKNOWLEDGED, 1))
    initialize(driver)
    assert read(driver).batches == ((0, 9, ACKNOWLEDGED, 1),)


def test_deleted_share_state_does_not_exist_after_a_reload() -> None:
    driver = StateDriver()
    initialize(driver)
    read(driver)
    write(driver, StateBatch(0, 9, ACKNOWLEDGED, 1))
    driver.run(lambda shard, turn: state_requests.delete(shard, turn, KEY))
    assert not driver.shard.states
    assert not driver.reloaded().states


def test_share_states_of_deleted_topics_are_erased() -> None:
    driver = StateDriver()
    initialize(driver)
    driver.shard.see(image_with(), now_ms=0)
    assert driver.shard.next_deadline() == 0
    driver.run(lambda shard, turn: shard.on_timers(turn))
    assert not driver.shard.states


@given(
    st.lists(
        st.tuples(
            st.integers(0, 30),
            st.integers(0, 6),
            st.sampled_from((AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED)),
            st.integers(1, 3),
        ),
        max_size=30,
    ),
    st.integers(0, 5),
)
def test_replay_of_the_whole_log_or_from_the_last_snapshot_restores_the_share_state(
    writes: list[tuple[int, int, RecordState, int]], updates_per_snapshot: int
) -> None:
    driver = StateDriver(updates_per_snapshot)
    initialize(driver)
    read(driver)
    expected: dict[int, tuple[RecordState, int]] = {}
    for first, size, state, count in writes:
        write(driver, StateBatch(first, first + size, state, count))
        for each in range(first, first + size + 1):
            if RANKS[state] >= RANKS[expected.get(each, (AVAILABLE, 0))[0]]:
                expected[each] = (state, count)
    found = {
        each: (RecordState(batch.state), batch.deliveries)
        for batch in read(driver).batches
        for each in range(batch.first, batch.last + 1)
    }
    assert found == expected
    assert driver.reloaded().remembered() == driver.shard.remembered()
    since = driver.shard.redundant_before()
    assert driver.reloaded(since).remembered() == driver.shard.remembered()


BATCHES = st.lists(
    st.builds(
        lambda first, size, state, count: StateBatch(first, first + size, state, count),
        st.integers(0, 20),
        st.integers(0, 8),
        st.sampled_from((AVAILABLE, ARCHIVING, ACKNOWLEDGED, ARCHIVED)),
        st.integers(0, 3),
    ),
    max_size=8,
)


@given(BATCHES, BATCHES)
def test_overlapping_state_batches_in_one_write_have_the_same_result_as_in_separate_writes(
    before: list[StateBatch], batches: list[StateBatch]
) -> None:
    together, apart = StateDriver(), StateDriver()
    for driver in (together, apart):
        initialize(driver, start_offset=0)
        read(driver)
        write(driver, *before)
    write(together, *batches)
    for batch in batches:
        write(apart, batch)
    assert read(together) == read(apart)


def test_many_overlapping_state_batches_take_little_time() -> None:
    driver = StateDriver()
    initialize(driver, start_offset=0)
    read(driver)
    half = MAX_BATCHES // 2
    write(driver, *(StateBatch(2 * each, 2 * each, ACKNOWLEDGED, 1) for each in range(half)))
    started = time.process_time()
    singles = (StateBatch(2 * each, 2 * each, ACKNOWLEDGED, 2) for each in range(half))
    write(driver, *singles, *(StateBatch(0, 10**12, AVAILABLE, each % 3) for each in range(half)))
    assert time.process_time() - started < 2, "each batch is looked at some times, not once for each other batch"
    assert len(read(driver).batches) == 2 * half


def test_write_with_too_many_state_batches_is_refused() -> None:
    driver = StateDriver()
    initialize(driver, start_offset=0)
    read(driver)
    batches = [StateBatch(each, each, ACKNOWLEDGED, 1) for each in range(MAX_BATCHES + 1)]
    assert refusal(write, driver, *batches) is ErrorCode.INVALID_REQUEST
    assert read(driver).batches == ()


def test_log_of_a_share_coordinator_is_pruned_even_if_one_share_partition_is_never_written() -> None:
    driver = StateDriver(updates_per_snapshot=10)
    other = KEY._replace(partition=1)
    driver.run(lambda shard, turn: state_requests.initialize(shard, turn, other, 1, 0))
    initialize(driver)
    read(driver)
    for offset in range(COLD_AFTER_RECORDS + 1):
        write(driver, StateBatch(offset, offset, ACKNOWLEDGED, 1), start=offset)
    assert driver.shard.redundant_before() == 0
    driver.run(lambda shard, turn: shard.copy_cold(turn))
    assert driver.shard.redundant_before() > COLD_AFTER_RECORDS - 20
    assert driver.reloaded(driver.shard.redundant_before()).remembered() == driver.shard.remembered()


def test_snapshot_of_a_share_partition_contains_the_whole_state_of_the_partition() -> None:
    driver = StateDriver(updates_per_snapshot=10)
    initialize(driver)
    read(driver, leader_epoch=4)
    batches = StateBatch(5, 6, ACKNOWLEDGED, 1), StateBatch(7, 9, AVAILABLE, 3)
    driver.run(partial(_write, Write(1, 4, 5, 2, batches)))
    before = driver.shard.states[KEY]
    driver.run(lambda shard, turn: turn.write(KEY, snapshot_of(before, 0)))
    after = driver.shard.states[KEY]
    assert after.snapshot_epoch == before.snapshot_epoch + 1
    assert (after.state_epoch, after.leader_epoch, after.start_offset) == (before.state_epoch, 4, 5)
    assert (after.complete_count, after.batches()) == (2, batches)
    assert refusal(read, driver, leader_epoch=3) is ErrorCode.FENCED_LEADER_EPOCH
