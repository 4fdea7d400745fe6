import random

import pytest
from transaction_driver import T0, T1, TIMEOUT_MS, Driver

from penstock.protocol.errors import ErrorCode
from penstock.transactions.config import TransactionConfig
from penstock.transactions.journal import JournalRecord, decode_record, encode_record
from penstock.transactions.queries import describe, list_transactions
from penstock.transactions.states import State
from penstock.transactions.transaction import Transaction
from penstock.transactions.turn import Answer

DAY_MS = 24 * 60 * 60 * 1000
REACHABLE = [each for each in State if each not in (State.DEAD, State.PREPARE_EPOCH_FENCE)]


@pytest.mark.parametrize("server_version", [0, 1, 2])
def test_a_transaction_survives_encoding_and_decoding(server_version: int) -> None:
    txn = Transaction("tx", 5, 6, 7, State.ONGOING, frozenset({T0, T1, ("u", 3)}), 8, 9)
    if server_version:
        txn = Transaction("tx", 5, 6, 7, State.PREPARE_ABORT, frozenset({T0}), 8, 9, 4, 10, 2, 11)
    key, value = encode_record(JournalRecord("tx", txn), server_version)
    assert key[:2] == b"\x00\x00"
    assert value is not None
    assert value[:2] == (b"\x00\x01" if server_version else b"\x00\x00")
    assert decode_record(key, value) == JournalRecord("tx", txn)


def test_a_tombstone_is_decoded_and_a_record_of_unknown_type_is_ignored() -> None:
    key, value = encode_record(JournalRecord("tx", None), 2)
    assert value is None
    assert decode_record(key, None) == JournalRecord("tx", None)
    assert decode_record(b"\x00\x63unknown", b"") is None
    assert decode_record(None, b"") is None


def run_a_while(driver: Driver, source: random.Random) -> None:
    who: dict[str, Answer] = {}
    for _ in range(120):
        name = source.choice("abc")
        match source.randrange(7):
            case 0:
                who[name] = driver.init(name)
            case 1 | 2 if name in who:
                driver.add(who[name], ("t", source.randrange(4)), name=name)
            case 3 | 4 if name in who:
                answer = driver.end(who[name], source.random() < 0.5, name=name)
                if answer.code is ErrorCode.NONE:
                    who[name] = answer
            case 5:
                driver.write_markers()
            case _:
                driver.advance(source.randrange(TIMEOUT_MS))


@pytest.mark.parametrize("seed", range(10))
def test_replaying_the_transaction_log_once_or_twice_gives_the_same_state(seed: int) -> None:
    driver = Driver()
    run_a_while(driver, random.Random(seed))
    once = driver.reload()
    assert once.shard.remembered() == driver.shard.remembered()
    assert driver.reload(driver.journal + driver.journal).shard.remembered() == driver.shard.remembered()
    compacted = list(dict(driver.journal).items())
    assert driver.reload(compacted).shard.remembered() == driver.shard.remembered()


@pytest.mark.parametrize("state", REACHABLE)
def test_new_coordinator_completes_only_prepared_transactions(state: State) -> None:
    driver = Driver()
    driver.in_state(state)
    after = driver.reload()
    if state in (State.PREPARE_COMMIT, State.PREPARE_ABORT):
        assert after.markers == driver.markers
        after.write_markers()
        assert after.state() is (State.COMPLETE_COMMIT if state is State.PREPARE_COMMIT else State.COMPLETE_ABORT)
    else:
        assert after.markers == []
        assert after.state() is state


def test_a_new_coordinator_counts_the_timeout_from_the_start_of_the_transaction() -> None:
    driver = Driver()
    driver.in_state(State.ONGOING)
    driver.advance(TIMEOUT_MS - 10)
    after = driver.reload()
    after.advance(9)
    assert after.state() is State.ONGOING
    after.advance(1)
    assert after.state() is State.PREPARE_ABORT


def test_a_new_coordinator_aborts_transactions_that_timed_out_without_a_coordinator() -> None:
    driver = Driver()
    driver.in_state(State.ONGOING)
    driver.now_ms += 3 * TIMEOUT_MS
    after = driver.reload()
    after.advance(0)
    assert after.state() is State.PREPARE_ABORT


@pytest.mark.parametrize("state", REACHABLE)
def test_an_unused_transactional_id_expires(state: State) -> None:
    driver = Driver(config=TransactionConfig(id_expiration_ms=DAY_MS))
    driver.in_state(state)
    driver.now_ms += DAY_MS - 1
    driver.expire()
    assert "tx" in driver.shard.transactions
    driver.now_ms += 1
    driver.expire()
    rests = state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    assert ("tx" not in driver.shard.transactions) == rests
    assert (driver.journal[-1][1] is None) == rests
    assert driver.reload().shard.remembered() == driver.shard.remembered()
    driver.expire("never seen")


def test_coordinator_resumes_every_transaction_after_a_load() -> None:
    driver = Driver()
    names = ("a", "b", "c", "d")
    for name in names:
        who = driver.init(name)
        driver.add(who, name=name)
        if name in ("a", "c"):
            driver.end(who, True, name=name)
    loaded = driver.reload()
    assert sorted(markers.transactional_id for markers in loaded.markers) == ["a", "c"]
    loaded.advance(TIMEOUT_MS)
    assert sorted(markers.transactional_id for markers in loaded.markers) == list(names)


def test_transaction_with_a_start_time_in_the_future_is_aborted_after_its_timeout() -> None:
    driver = Driver()
    driver.now_ms = DAY_MS  # the first coordinator's clock is one day ahead
    driver.in_state(State.ONGOING)
    driver.now_ms = 0
    loaded = driver.reload()
    loaded.advance(TIMEOUT_MS - 1)
    assert loaded.state() is State.ONGOING
    loaded.advance(1)
    assert loaded.state() is State.PREPARE_ABORT


def test_coordinator_that_loses_its_partition_keeps_no_transaction() -> None:
    driver = Driver()
    driver.in_state(State.ONGOING)
    driver.run(driver.shard.abandon)
    assert not driver.shard.transactions
    assert driver.shard.held_bytes == 0


def test_describe_transactions_returns_open_transactions() -> None:
    driver = Driver()
    who = driver.init()
    driver.add(who, T1, T0, ("a", 2))
    described = describe(driver.shard, "tx")
    assert (described.transaction_state, described.producer_id, described.producer_epoch) == ("Ongoing", 1000, 0)
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("a", [2]), ("t", [0, 1])]
    assert described.transaction_start_time_ms == driver.wall_ms
    assert describe(driver.shard, "other").error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    assert describe(driver.shard, "").error_code == ErrorCode.INVALID_REQUEST


def test_list_transactions_filters_by_state_and_producer_and_age_and_name() -> None:
    driver = Driver()
    driver.add(driver.init("old"), name="old")
    driver.advance(100)
    driver.add(driver.init("new"), name="new")
    driver.init("idle")

    def listed(**filters: object) -> list[str]:
        return [each.transactional_id for each in list_transactions(driver.shard, driver.wall_ms, **filters)]  # type: ignore[arg-type]

    assert listed() == ["old", "new", "idle"]
    assert listed(states={State.ONGOING}) == ["old", "new"]
    assert listed(producer_ids={1001}) == ["new"]
    assert listed(states={State.ONGOING}, longer_than_ms=99) == ["old"]
    assert listed(longer_than_ms=100, states={State.ONGOING}) == []
    assert listed(matches=lambda name: name.startswith("n")) == ["new"]
    driver.now_ms = -1000  # behind the clock of the coordinator that began the transactions
    assert listed() == ["old", "new", "idle"]
